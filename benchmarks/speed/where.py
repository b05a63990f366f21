"""Where the time of a round goes on a CPU, and whether two threads or two processes share a cohort better.

    python benchmarks/speed/where.py [--models linear,mlp,lenet5] [--rounds 60]

One process, compiled, standard work (FedAvg, 16 of 500 clients, 12 steps of batch 10). Prints Markdown.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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

KINDS = {  # what a function of the profile is counted as, by a part of its name
    "matrix products and convolutions": ("bmm", "addmm", "built-in method mm", "torch.mm", "conv", "mkldnn"),
    "compiled elementwise loops": ("kernel.kernel",),
    "calling them from Python": ("/torchinductor", "output_code", "_empty_strided", "_reinterpret_tensor",
                                 "assert_size_stride", "eval_with_key", "programs/"),
    "fetching rows": ("index_select",),
    "drawing rows": ("streams.py", "draws.py", "torch.sort", "torch.where"),
    "sums over clients": ("sums.py", "tensordot"),
}


def job(work: SimpleNamespace, chunk: int | None = None) -> Any:
    inputs, targets, starts = nets.data(work)
    clients = Clients(inputs, targets, Run(starts, torch.full_like(starts, work.rows)))
    settings = Settings(rounds=10**6, batch_size=work.batch, execution="compiled", chunk=chunk, device=work.device,
                        **work.run)
    return assemble(ours.algorithm(work), fedsaddle.Agnostic(ours.model(work)), clients, None, Participation(),
                    settings)


def rounds(job: Any, progress: Progress, count: int) -> Progress:
    for _ in range(count):
        server, _ = one_round(job.algorithm, job.federation, progress)
        progress = Progress(server, progress.round + 1, progress.traffic)
    return progress


def shares(job: Any, count: int) -> list[tuple[str, float]]:
    """Shares of the time, by kind."""
    progress = rounds(job, job.progress, 5)
    profile = cProfile.Profile()
    profile.enable()
    rounds(job, progress, count)
    profile.disable()
    found = dict.fromkeys([*KINDS, "the rest: cohorts, messages, accounts"], 0.0)
    for (file, _, name), (_, _, own, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        text = f"{file} {name}"
        kind = next((kind for kind, parts in KINDS.items() if any(part in text for part in parts)), None)
        found[kind or "the rest: cohorts, messages, accounts"] += own
    total = sum(found.values())
    return [(kind, own / total) for kind, own in found.items()]


def best(function: Callable[[], Any], count: int = 12) -> float:
    function()
    spent = []
    for _ in range(count):
        began = time.perf_counter()
        function()
        spent.append(time.perf_counter() - began)
    return sorted(spent)[count // 4]


def shared_by(work: SimpleNamespace, chunk: int) -> dict[str, float]:
    """Seconds for 16 clients: by this process alone, by two threads of it, by two processes (one forked)."""
    whole = job(work, chunk)
    engine, asks, run = whole.federation.engine, [], whole.federation.engine.run
    engine.run = lambda ask: (asks.append(ask), run(ask))[1]
    rounds(whole, whole.progress, 2)
    ask, way = asks[-1], next(iter(engine.calibration.settled.values()))
    halves = [torch.arange(0, 8), torch.arange(8, 16)]

    def half(part: torch.Tensor) -> Any:
        return engine.compute(ask, part, way, keep=False)

    times = {"one": best(lambda: [half(part) for part in halves])}
    with ThreadPoolExecutor(2) as pool:
        times["two threads"] = best(lambda: list(pool.map(half, halves)))
    ask_read, ask_write = os.pipe()
    done_read, done_write = os.pipe()
    if not os.fork():
        while os.read(ask_read, 1) == b"g":
            half(halves[1])
            os.write(done_write, b"d")
        os._exit(0)

    def together() -> None:
        os.write(ask_write, b"g")
        half(halves[0])
        os.read(done_read, 1)

    times["two processes"] = best(together)
    os.write(ask_write, b"x")
    os.wait()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="linear,mlp,lenet5")
    parser.add_argument("--rounds", type=int, default=60)
    given = parser.parse_args()
    torch.set_num_threads(1)
    models = given.models.split(",")
    works = {model: SimpleNamespace(**{**shared.STANDARD, "model": model}) for model in models}
    columns = {model: dict(shares(job(work, 8 if model == "linear" else 4), given.rounds))
               for model, work in works.items()}
    print("| share of a round | " + " | ".join(models) + " |\n|---" + "|---" * len(models) + "|")
    for kind in next(iter(columns.values())):
        print(f"| {kind} | " + " | ".join(f"{columns[model][kind]:.0%}" for model in models) + " |")
    print("\n| 16 clients by | " + " | ".join(models) + " |\n|---" + "|---" * len(models) + "|")
    results = {model: shared_by(work, 8 if model == "linear" else 4) for model, work in works.items()}
    for how in next(iter(results.values())):
        print(f"| {how} | " + " | ".join(f"{results[m]['one'] / results[m][how]:.2f}x" for m in models) + " |")


if __name__ == "__main__":
    main()
