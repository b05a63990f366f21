"""Where the time of a round goes on a GPU: its kernels, by the profiler of the device.

    python benchmarks/speed/kernels.py [--models linear,mlp,lenet5,resnet20] [--matmul highest|high] [--out FILE.json]
    python benchmarks/speed/kernels.py --recipe cdma/gan-mnist --method CDMA-ADA [--set run.execution=traced] ...

Compiled, standard work (FedAvg, 16 of 500 clients, 12 steps of batch 10); or a method of a recipe, as its settings say.
Prints Markdown; the names are the device's.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent / "contenders"))
import torch
import where
import work as shared
from torch.profiler import ProfilerActivity, profile

from fedsaddle.assemble import job_from_settings
from fedsaddle.config import settle
from fedsaddle.studies import study

ROUNDS, SHOWN = 20, 12


class Kernel(NamedTuple):
    name: str
    calls: float  # a round
    microseconds: float  # one call


class Found(NamedTuple):
    first_round: float  # seconds, with everything that is prepared once
    milliseconds: float  # a round, of the wall clock, without the profiler
    kernels: list[Kernel]

    @property
    def on_device(self) -> float:
        return sum(one.calls * one.microseconds for one in self.kernels) / 1e3


def examined(job: Any, rounds: int) -> Found:
    began = time.perf_counter()
    progress = where.rounds(job, job.progress, 1)
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    progress = where.rounds(job, progress, 10)
    laps = []
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        progress = where.rounds(job, progress, rounds)
        torch.cuda.synchronize()
        laps.append((time.perf_counter() - began) / rounds * 1e3)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        where.rounds(job, progress, rounds)
        torch.cuda.synchronize()
    kernels = [Kernel(one.key, one.count / rounds, one.device_time_total / one.count)
               for one in seen.key_averages() if one.device_time_total]
    return Found(first, sorted(laps)[2], sorted(kernels, key=lambda one: -one.calls * one.microseconds))


def table(model: str, found: Found) -> str:
    lines = [f"{model}: {found.milliseconds:.3f} ms a round, kernels {found.on_device:.3f} ms in "
             f"{sum(one.calls for one in found.kernels):.0f} calls; first round {found.first_round:.1f} s",
             "", "| kernel | calls a round | us each | ms a round |", "|---|---|---|---|"]
    for one in found.kernels[:SHOWN]:
        lines.append(f"| {one.name.split('<')[0][:60]} | {one.calls:.1f} | {one.microseconds:.1f} | "
                     f"{one.calls * one.microseconds / 1e3:.3f} |")
    return "\n".join(lines)


def jobs(given: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """What is to be examined, by name."""
    if given.recipe:
        settings = settle(study.load(given.recipe).tables, [*given.set, "run.device=cuda"])
        yield f"{given.recipe} {given.method}", job_from_settings(settings, given.method)
        return
    for model in given.models.split(","):
        work = {**shared.STANDARD, "model": model, "device": "cuda", "run": {"matmul": given.matmul}}
        if model == "resnet20":
            work["table"] = 12_000
        yield model, where.job(SimpleNamespace(**work))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="linear,mlp,lenet5")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--matmul", choices=("highest", "high"), default="highest")
    parser.add_argument("--recipe", help="instead of --models; --method is one of its labels")
    parser.add_argument("--method", default="")
    parser.add_argument("--set", action="append", default=[], help="section.key=value, over the recipe")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("kernels.py: torch finds no CUDA device; where.py looks at a CPU")
    results: dict[str, Any] = {}
    for model, job in jobs(given):
        found = examined(job, given.rounds)
        results[model] = found._asdict() | {"kernels": [one._asdict() for one in found.kernels]}
        print(table(model, found), flush=True)
        print()
        if given.out:
            given.out.write_text(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
                                             "matmul": given.matmul, "models": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
