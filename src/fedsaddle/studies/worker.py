"""A process that carries out runs: folders come in as lines, progress goes out.

Data that several runs share are dealt once, and a run is given up where its pruning says so.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from fedsaddle.assemble import Dealt, deal, job_from_settings
from fedsaddle.config import Settings, read, settle, tables_of
from fedsaddle.contracts import SettingError
from fedsaddle.engine.training import Diverged, Record
from fedsaddle.report.folder import RunFolder, plain
from fedsaddle.runs import carry_out
from fedsaddle.studies.errands import COMPLETE, DIVERGED, FAILED, PRUNED, STOPPED
from fedsaddle.studies.pruning import Pruning

EVERY = 10  # rounds between two lines


class Shared:
    """The data of the last run, kept where the next one needs the same."""

    def __init__(self) -> None:
        self.key = ""
        self.dealt: Dealt | None = None

    def of(self, settings: Settings) -> Dealt:
        key = json.dumps(tables_of(settings)["data"], sort_keys=True, default=str)
        if key != self.key or self.dealt is None:
            self.key, self.dealt = key, deal(settings)
        return self.dealt


def main() -> None:
    stopped = False

    def stop(number: int, frame: Any) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGINT, stop)
    shared, parent = Shared(), os.getppid()

    def over() -> bool:  # nobody listens any more: the next search may want the folder
        return stopped or os.getppid() != parent

    for line in sys.stdin:
        _say(**({"state": STOPPED} if over() else carried(json.loads(line), shared, over)))


def carried(errand: dict[str, Any], shared: Shared, stopped: Any) -> dict[str, Any]:
    """How the run of this errand ended."""
    folder = RunFolder(Path(errand["folder"]))
    pruning = Pruning(**errand["pruning"]) if errand["pruning"] else None
    given_up = ""

    def watch(record: Record) -> None:
        nonlocal given_up
        if "measures" in record:
            given_up = given_up or (pruning.hopeless(folder.path, record) if pruning else "")
        if "measures" in record or record["round"] % EVERY == 0:
            _say(round=record["round"], measures=plain(record.get("measures")))

    try:
        settings = settle(read(folder.path / "run.toml"))
        job = job_from_settings(settings, "", folder.checkpoints, shared.of(settings))
        result = carry_out(job, settings.run, folder, watch, lambda: stopped() or bool(given_up))
    except Diverged as error:
        return {"state": DIVERGED, "why": str(error)}
    except SettingError as error:
        return {"state": FAILED, "why": str(error)}
    if given_up and not result.complete:
        folder.end({"how": PRUNED, "round": result.records[-1]["round"], "why": given_up})
        return {"state": PRUNED, "why": given_up}
    return {"state": COMPLETE if result.complete else STOPPED, "round": settings.run.rounds}


def _say(**news: Any) -> None:
    print(json.dumps(news), flush=True)
