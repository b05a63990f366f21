"""How long compiling takes, by the length of the traced code: where calibration has its seconds per operation from.

    python benchmarks/speed/compiling.py [RECIPE:METHOD ...]

One process, with an empty cache of compiled code; then another that finds what the first has left there. Prints
Markdown; all of it takes seven minutes on a CPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

import torch

from fedsaddle.assemble import deal, job_from_settings
from fedsaddle.config import method, settle
from fedsaddle.engine.programs.compiling import decompositions
from fedsaddle.engine.training import one_round
from fedsaddle.studies import study

AGAIN = "--again"
USUAL = ("drfa/fashion:DRFA", "cdma/robust-fashion:CDMA-ADA", "cdma/auc-mnist:CDMA-ADA", "drfa/shakespeare:FedAvg")


def first_round(name: str, kind: str) -> tuple[float, int]:
    """Seconds of it, and how many operations its works have."""
    recipe, _, label = name.partition(":")
    tables = study.load(recipe).tables
    settings = settle(tables, [f"run.execution={kind}", "run.workers=1"])
    job = job_from_settings(settings, label, dealt=deal(method(settle(tables), label)))
    began = time.perf_counter()
    one_round(job.algorithm, job.federation, job.progress)
    return time.perf_counter() - began, sum(body.operations for body in job.federation.engine.bodies.made.values())


def main() -> None:
    torch.set_num_threads(1)
    decompositions()  # loads the compiler, which takes seconds and is not what is asked here
    if AGAIN in sys.argv:
        print(first_round(sys.argv[-1], "compiled")[0])
        return
    print("| method of a recipe | operations | seconds to compile | of one operation | another time |\n"
          "|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        for name in sys.argv[1:] or USUAL:
            traced, length = first_round(name, "traced")
            seconds = first_round(name, "compiled")[0] - traced
            again = subprocess.run([sys.executable, __file__, AGAIN, name], check=True, capture_output=True, text=True)
            print(f"| {name.replace(':', ' ')} | {length:,} | {seconds:.0f} | {seconds / length:.3f} | "
                  f"{float(again.stdout) - traced:.0f} |", flush=True)


if __name__ == "__main__":
    main()
