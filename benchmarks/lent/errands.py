"""Runs of several recipes in one queue, for a machine that is lent for minutes.

    python benchmarks/lent/errands.py PLAN.json --out results [--jobs 4] [--seconds 500]

PLAN.json is a list of {"recipe": NAME, "to": FOLDER, "set": [...], "only": [...], "seeds": [0, 1, 2]}; all but the
first may be left out. Runs start in the order of the list. After --seconds all stop, with checkpoints; what has ended
by then is in OUT/FOLDER, in the form of `fedsaddle reproduce`, which writes the pages: with `--out OUT/FOLDER`, on any
machine, it skips what is done.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from fedsaddle.studies import errands, reproduce, study


def planned(entry: dict[str, Any], out: Path) -> list[errands.Errand]:
    seeds = entry.get("seeds", [0, 1, 2])
    plan = reproduce.planned(study.load(entry["recipe"]), max(seeds) + 1, False, entry.get("only", ()),
                             entry.get("set", ()))
    wanted = {f"seed-{seed}" for seed in seeds}
    found = reproduce.errands(plan, out / entry.get("to", entry["recipe"]), alone=False)
    return [errand for errand in found if errand.folder.name in wanted]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plan", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--seconds", type=float)
    given = parser.parse_args()
    whole = [errand for entry in json.loads(given.plan.read_text()) for errand in planned(entry, given.out)]
    began = time.monotonic()
    if given.seconds:
        os.setpgid(0, 0)  # as Ctrl-C in a terminal: this process and its workers, and nobody else
        timer = threading.Timer(given.seconds, os.killpg, (0, signal.SIGINT))
        timer.daemon = True
        timer.start()

    def tell(news: errands.News) -> None:
        if news.state:
            where = news.folder.relative_to(given.out)
            print(f"{time.monotonic() - began:6.0f} s  {where}: {news.state} {news.why}", flush=True)

    found = errands.carry_out(whole, given.jobs, tell)
    complete = sum(news.state in (errands.COMPLETE, errands.DIVERGED) for news in found.values())
    print(f"{complete} of {len(whole)} runs have ended, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
