"""How fast rounding grows: one run computed in two ways, round by round, in single and in double precision.

    python benchmarks/rounding.py RECIPE:METHOD [--rounds 12] [--ways traced:5 eager:1] [--set run.seed=1 ...]

A way is `run.execution:run.chunk`. Prints the distance of the two solutions x as a share of x. Where both precisions
grow alike the method's steps enlarge what is small; where single precision jumps and double does not, a likely reason
is a ReLU or a pool that switches for a number within rounding of it.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from fedsaddle.assemble import job_from_settings
from fedsaddle.config import settle
from fedsaddle.engine.training import Progress, one_round
from fedsaddle.studies import study


def job(name: str, way: str, dtype: str, sets: list[str]) -> Any:
    recipe, _, label = name.partition(":")
    execution, _, chunk = way.partition(":")
    how = ["run.workers=1", f"run.execution={execution}", f"run.chunk={chunk}", f"run.dtype={dtype}"]
    return job_from_settings(settle(study.load(recipe).tables, [*sets, *how]), label)


def further(job: Any) -> Any:
    """One round."""
    server, _ = one_round(job.algorithm, job.federation, job.progress)
    return job._replace(progress=Progress(server, job.progress.round + 1, job.progress.traffic))


def distance(jobs: list[Any]) -> float:
    one, other = (each.algorithm.solution(each.progress.server).x for each in jobs)
    return float((one - other).norm() / other.norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("method", help="RECIPE:METHOD")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--ways", nargs=2, default=["traced:5", "eager:1"])
    parser.add_argument("--set", action="append", default=[], dest="sets")
    given = parser.parse_args()
    torch.set_num_threads(1)
    pairs = {dtype: [job(given.method, way, dtype, given.sets) for way in given.ways]
             for dtype in ("float32", "float64")}
    print("| round | " + " | ".join(pairs) + " |\n|---|---|---|", flush=True)
    for number in range(1, given.rounds + 1):
        pairs = {dtype: [further(each) for each in jobs] for dtype, jobs in pairs.items()}
        print(f"| {number} | " + " | ".join(f"{distance(jobs):.0e}" for jobs in pairs.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
