"""Whether a round with 16 of 1,000,000 clients costs what one with 16 of 500 costs, turn by turn in one process.

    python benchmarks/speed/population.py [--rounds 150]

Two runs take turns round by round, so that whatever else the machine does hurts both. Logistic regression, one
process, traced. Prints Markdown: the ratio of the medians and of the lower quartiles.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "contenders"))
import nets
import ours
import torch
import work as shared

import fedsaddle
from fedsaddle.assemble import assemble
from fedsaddle.config import Run as Settings
from fedsaddle.data.clients import Clients, Run
from fedsaddle.engine.training import Progress, one_round
from fedsaddle.participation import Participation

FEW, MANY, WARM = 500, 1_000_000, 20


def job(work: SimpleNamespace) -> Any:
    inputs, targets, starts = nets.data(work)
    clients = Clients(inputs, targets, Run(starts, torch.full_like(starts, work.rows)))
    settings = Settings(rounds=10**5, batch_size=work.batch, execution="traced")
    return assemble(ours.algorithm(work), fedsaddle.Agnostic(ours.model(work)), clients, None, Participation(),
                    settings)


def ratios(method: str, rounds: int) -> tuple[float, float]:
    jobs = [job(SimpleNamespace(**{**shared.STANDARD, "model": "linear", "method": method, "clients": clients}))
            for clients in (FEW, MANY)]
    states, spent = [one.progress for one in jobs], ([], [])
    for number in range(WARM + rounds):
        for which, one in enumerate(jobs):
            began = time.perf_counter()
            server, _ = one_round(one.algorithm, one.federation, states[which])
            seconds = time.perf_counter() - began
            states[which] = Progress(server, states[which].round + 1, states[which].traffic)
            if number >= WARM:
                spent[which].append(seconds)
    return median(spent[1]) / median(spent[0]), quantiles(spent[1], n=4)[0] / quantiles(spent[0], n=4)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=150)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| method | medians | lower quartiles |\n|---|---|---|")
    for method in ("fedavg", "cdma-one", "codasca", "drfa"):
        middle, low = ratios(method, given.rounds)
        print(f"| {method} | {middle:.2f}x | {low:.2f}x |", flush=True)


if __name__ == "__main__":
    main()
