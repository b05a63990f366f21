"""Milliseconds a round of single methods of recipes, in ways of one's choice, one after the other in one process.

    python benchmarks/speed/rounds.py cdma/gan-mnist:CDMA-ADA [--ways traced,compiled] [--convolutions usual,library]
        [--set run.device=cuda ...] [--inductor force_layout_optimization=true ...] [--rounds 10] [--json FILE]

convolutions: on a GPU, `usual` has kernels of our own where FedSaddle chooses them, `library` none, `ours` wherever
traced works have them, among compiled operations too. inductor: further settings of the compiler, on a GPU. Prints
Markdown; the first round, with all preparation, apart.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from where import rounds

from fedsaddle.assemble import job_from_settings
from fedsaddle.config import settle
from fedsaddle.engine.programs import compiling, segments
from fedsaddle.engine.programs.convolutions import write_in_own_convolutions
from fedsaddle.engine.training import Progress
from fedsaddle.studies import study

WARM_UPS = 3


def after(job: Any, progress: Progress, count: int) -> Progress:
    progress = rounds(job, progress, count)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return progress


@contextmanager
def kernels(which: str) -> Iterator[None]:
    """Whose convolutions are written into programs meanwhile."""
    places, before = (compiling, segments), (compiling.write_in_own_convolutions, segments.write_in_own_convolutions)
    chosen: Any = {"library": lambda module, beyond=0: None,
                   "ours": lambda module, beyond=0: write_in_own_convolutions(module)}
    for place, usual in zip(places, before, strict=True):
        place.write_in_own_convolutions = chosen.get(which, usual)
    try:
        yield
    finally:
        for place, usual in zip(places, before, strict=True):
            place.write_in_own_convolutions = usual


def measured(name: str, way: str, which: str, sets: list[str], count: int) -> dict[str, Any]:
    recipe, _, label = name.partition(":")
    settings = settle(study.load(recipe).tables, ["run.image_samples=0", *sets, f"run.execution={way}"])
    with kernels(which):
        job = job_from_settings(settings, label)
        began = time.perf_counter()
        progress = after(job, job.progress, 1)
        first = time.perf_counter() - began
        progress = after(job, progress, WARM_UPS)
        began = time.perf_counter()
        after(job, progress, count)
        each = (time.perf_counter() - began) / count
    kinds = {found["kind"] for found in job.federation.engine.calibration.report.values()}
    return {"method": name, "way": way, "ran": sorted(kinds), "convolutions": which, "set": sets,
            "first_seconds": first, "milliseconds": 1e3 * each}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="+", help="RECIPE:METHOD")
    parser.add_argument("--ways", default="traced,compiled")
    parser.add_argument("--convolutions", default="usual")
    parser.add_argument("--set", action="append", default=[], dest="sets")
    parser.add_argument("--inductor", action="append", default=[], help="name=value, as JSON")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    compiling.ON_GPU |= {name: json.loads(value) for name, _, value in (one.partition("=") for one in given.inductor)}
    found = []
    print("| method | way | convolutions | first round, s | a round, ms |\n|---|---|---|---|---|", flush=True)
    for name in given.methods:
        for way in given.ways.split(","):
            for which in given.convolutions.split(","):
                one = measured(name, way, which, given.sets, given.rounds)
                found.append(one)
                print(f"| {name} | {', '.join(one['ran'])} | {which} | {one['first_seconds']:.1f} | "
                      f"{one['milliseconds']:.1f} |", flush=True)
    if given.json:
        about = {"torch": torch.__version__, "inductor": given.inductor,
                 "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None}
        given.json.write_text(json.dumps({**about, "rounds": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
