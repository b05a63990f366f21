"""How long compiling takes, by the length of the traced code: where calibration has its seconds per operation from.

    python benchmarks/speed/compiling.py [RECIPE:METHOD ...]

One process, no cache of compiled code. Prints Markdown; all of it takes six minutes on a CPU.
"""

from __future__ import annotations

import os
import sys
import time

os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"  # read when torch is imported

import torch

from fedsaddle.assemble import deal, job_from_settings
from fedsaddle.config import method, settle
from fedsaddle.engine.programs.compiling import decompositions
from fedsaddle.engine.training import one_round
from fedsaddle.studies import study

USUAL = ("drfa/fashion:DRFA", "cdma/robust-fashion:CDMA-ADA", "cdma/auc-mnist:CDMA-ADA", "drfa/shakespeare:FedAvg")


def main() -> None:
    torch.set_num_threads(1)
    decompositions()  # loads the compiler, which takes seconds and is not what is asked here
    print("| method of a recipe | operations | seconds to compile | of one operation |\n|---|---|---|---|", flush=True)
    for name in sys.argv[1:] or USUAL:
        recipe, _, label = name.partition(":")
        tables = study.load(recipe).tables
        dealt, first, length = deal(method(settle(tables), label)), {}, 0
        for kind in ("traced", "compiled"):
            settings = settle(tables, [f"run.execution={kind}", "run.workers=1"])
            job = job_from_settings(settings, label, dealt=dealt)
            began = time.perf_counter()
            one_round(job.algorithm, job.federation, job.progress)
            first[kind] = time.perf_counter() - began
            length = length or sum(body.operations for body in job.federation.engine.bodies.made.values())
        seconds = first["compiled"] - first["traced"]
        print(f"| {recipe} {label} | {length:,} | {seconds:.0f} | {seconds / length:.3f} |", flush=True)


if __name__ == "__main__":
    main()
