"""Trackers: further places for the records of a run, besides records.jsonl, which always holds all of them.

A tracker is made with the run folder and then told everything in order. A run that goes on after a stop tells its
records from the first round on again, so that nothing is missing wherever it was stopped: whoever keeps them leaves out
what it has (a round is the same when it is done again), or begins anew.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from fedsaddle.config.lookup import lookup
from fedsaddle.config.validation import nearest
from fedsaddle.contracts import SettingError
from fedsaddle.report.folder import replace_file

Record = Mapping[str, Any]
ENDS = {"stopped": "KILLED", "diverged": "FAILED"}  # as MLflow calls it
TOTALS = ("floats_up", "bytes_up", "bytes_down", "virtual_seconds")


class Tracker(Protocol):
    """Made as `Tracker(folder)`, with the path of the run folder."""

    def start(self, name: str, tables: Mapping[str, Any]) -> None:
        """The name of the run and its settings, as the sections of run.toml. Again after a resume."""

    def log(self, record: Record) -> None:
        """A line of records.jsonl; after a resume once more from the first on."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """How it ended: summary.json, or for a run that did not get to its end `how`, `round` and `why`."""


class Curves:
    """The points of the rounds with an evaluation: measures, and traffic and seconds of training up to then."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def points(self, record: Record) -> dict[str, float]:
        """To be asked about every record in order. Numbers that are not finite have no point."""
        self.seconds += record["seconds"]
        if "measures" not in record:
            return {}
        found = {f"{name}/{measure}": value for name, values in record["measures"].items()
                 for measure, value in values.items()}
        found |= {f"traffic/{name}": record["total"][name] for name in TOTALS}
        found["seconds"] = self.seconds
        return {name: float(value) for name, value in found.items() if value is not None and isfinite(value)}


class TensorBoard:
    """Event files in the folder `tensorboard` of the run, one for each start; the last one tells all."""

    needs = ("tensorboard",)

    def __init__(self, folder: Path) -> None:
        self.folder, self.curves = folder / "tensorboard", Curves()

    def start(self, name: str, tables: Mapping[str, Any]) -> None:
        self.event = _imported("tensorboard.compat.proto.event_pb2", "tensorboard").Event
        writing = _imported("tensorboard.summary.writer.record_writer", "tensorboard")
        self.folder.mkdir(exist_ok=True)
        # A writer of our own file: tensorboard's puts the machine's name into the file's, and has a thread.
        file = (self.folder / f"events.out.tfevents.{time.time_ns() // 10**9:010d}.fedsaddle").open("wb")
        self.writer = writing.RecordWriter(file)
        self._write(file_version="brain.Event:2")
        self._write(session_log={"status": "START"}, step=0)  # whoever has read earlier files forgets their points

    def log(self, record: Record) -> None:
        points = self.curves.points(record)
        if points:
            values = [{"tag": name, "simple_value": number} for name, number in points.items()]
            self._write(step=record["round"], summary={"value": values})

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.writer.close()

    def _write(self, **parts: Any) -> None:
        self.writer.write(self.event(wall_time=time.time(), **parts).SerializeToString())
        self.writer.flush()  # once it is told, it is there, whatever becomes of the run


class MLflow:
    """A run of the experiment `fedsaddle`, at MLFLOW_TRACKING_URI or in mlflow.db in the run folder."""

    needs = ("mlflow", "sqlalchemy")

    def __init__(self, folder: Path) -> None:
        self.folder, self.curves = folder, Curves()

    def start(self, name: str, tables: Mapping[str, Any]) -> None:
        os.environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}  # before mlflow is imported
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # that tables are made is no news
        self.entities = _imported("mlflow.entities", "mlflow")
        own = f"sqlite:///{(self.folder / 'mlflow.db').resolve()}"
        uri = os.environ.get("MLFLOW_TRACKING_URI") or own
        self.client = _imported("mlflow.tracking", "mlflow").MlflowClient(tracking_uri=uri)
        self.run = self._known() or self._new(name, tables, uri == own)
        self.client.update_run(self.run, status="RUNNING")
        metrics = self.client.get_run(self.run).data.metrics
        self.told = {(name, point.step) for name in metrics for point in self.client.get_metric_history(self.run, name)}

    def log(self, record: Record) -> None:
        points, step, now = self.curves.points(record), record["round"], time.time_ns() // 10**6
        new = [self.entities.Metric(name, number, now, step) for name, number in points.items()
               if (name, step) not in self.told]
        if new:
            self.client.log_batch(self.run, metrics=new)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.client.set_terminated(self.run, status=ENDS.get(summary.get("how", ""), "FINISHED"))

    def _known(self) -> str:
        """The run that this folder has had, if it is in this store."""
        note = self.folder / "mlflow.json"
        experiment = self.client.get_experiment_by_name("fedsaddle") if note.exists() else None
        if experiment is None:
            return ""
        run: str = json.loads(note.read_text(encoding="utf-8"))["run"]
        return run if self.client.search_runs([experiment.experiment_id], f"attributes.run_id = '{run}'") else ""

    def _new(self, name: str, tables: Mapping[str, Any], own: bool) -> str:
        found = self.client.get_experiment_by_name("fedsaddle")
        place = (self.folder / "mlflow").resolve().as_uri() if own else None
        experiment = found.experiment_id if found else self.client.create_experiment("fedsaddle", place)
        run: str = self.client.create_run(experiment, run_name=name).info.run_id
        given = [self.entities.Param(key, str(value)[:500]) for key, value in flat(tables)]
        for first in range(0, len(given), 100):  # as many as a batch may hold
            self.client.log_batch(run, params=given[first : first + 100])
        replace_file(self.folder / "mlflow.json", (json.dumps({"run": run}) + "\n").encode())
        return run


TRACKERS: dict[str, Callable[[Path], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow}


class Tracking:
    """The trackers of a run. One that fails is told of, once, and left out: the run goes on."""

    def __init__(self, trackers: Mapping[str, Tracker] | None = None) -> None:
        self.trackers = dict(trackers or {})

    def log(self, record: Record) -> None:
        self._tell(lambda tracker: tracker.log(record))

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._tell(lambda tracker: tracker.finish(summary))

    def _tell(self, tell: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self.trackers.items()):
            try:
                tell(tracker)
            except Exception as error:  # whatever a store does, the run is worth more
                del self.trackers[name]
                warnings.warn(f"tracker {name} failed ({type(error).__name__}: {error}) and gets no more records of "
                              "this run; records.jsonl has them all", RuntimeWarning, stacklevel=3)


def started(names: Sequence[str], folder: Path, tables: Mapping[str, Any], records: Iterable[Record]) -> Tracking:
    """The trackers of these names, each told of the settings and of the records so far."""
    found: dict[str, Tracker] = {}
    for name, make in makers(names).items():
        found[name] = make(folder)
        try:
            found[name].start(folder.name, tables)
        except SettingError:
            raise
        except Exception as error:
            raise SettingError(f"run.trackers = {name!r}: cannot be started ({type(error).__name__}: {error}); see to "
                               "its store, or leave it out") from error
    tracking = Tracking(found)
    for record in records if found else ():
        tracking.log(record)
    return tracking


def makers(names: Sequence[str]) -> dict[str, Callable[[Path], Tracker]]:
    """What makes each tracker; wrong names and missing packages are told before a run begins."""
    found = {}
    for name in names:
        if name not in TRACKERS and ":" not in name:
            raise SettingError(f"run.trackers = {name!r}: is not known{nearest(name, TRACKERS)}; choose from "
                               f"{', '.join(TRACKERS)}, or give your own as package.module:Name")
        found[name] = lookup(TRACKERS, name, "run.trackers")
        for package in getattr(found[name], "needs", ()):
            if find_spec(package) is None:
                raise _missing(name, f"no module named {package!r}")
    return found


def flat(tables: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """Settings one by one, as `section.key` and value."""
    return [pair for key, value in tables.items() for pair in
            (flat(value, f"{before}{key}.") if isinstance(value, Mapping) else [(f"{before}{key}", value)])]


def _imported(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _missing(extra, str(error)) from error


def _missing(extra: str, why: str) -> SettingError:
    return SettingError(f"run.trackers = {extra!r}: its packages are not installed ({why}); install "
                        f"fedsaddle[{extra}], or leave it out")
