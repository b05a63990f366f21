"""Carrying out a job: records, checkpoints, the model at the end. Used by the command line and by Python alike."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.assemble import Job, algorithm_of, assemble
from fedsaddle.config import Run, check, named, validated
from fedsaddle.contracts import Algorithm, Point, Problem, Rows, SettingError
from fedsaddle.data.clients import Clients, as_tensor, checked, clients_from_arrays, clients_from_list
from fedsaddle.engine import checkpoint
from fedsaddle.engine.ledger import Traffic
from fedsaddle.engine.team import END, GO, SAVE, Team
from fedsaddle.engine.training import Diverged, Record, rounds
from fedsaddle.participation import as_participation
from fedsaddle.report.environment import environment
from fedsaddle.report.folder import RunFolder
from fedsaddle.report.png import png
from fedsaddle.report.trackers import Tracking, makers, started

Watch = Callable[[Record], None]


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C is noted, for whoever looks between two rounds; a second one ends it at once."""
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield lambda: asked
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


class Result(NamedTuple):
    """What a run gives back."""

    point: Point  # the solution (x, y)
    problem: Problem  # with its constants
    server: Any  # the algorithm's last state
    records: list[Record]
    traffic: Traffic  # of the whole run
    complete: bool  # False: stopped before its last round

    @property
    def measures(self) -> dict[str, dict[str, float]]:
        """Of the last evaluation."""
        return next((r["measures"] for r in reversed(self.records) if "measures" in r), {})

    def named(self) -> dict[str, Tensor]:
        """The solution under the problem's own names, such as those of its module."""
        named = getattr(self.problem, "named", None)
        return {"x": self.point.x, "y": self.point.y, **(named(self.point) if named else {})}


def carry_out(
    job: Job, run: Run, folder: RunFolder | None = None,
    watch: Watch | None = None, stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Run the rounds that are left. `stop` is looked at after every round: a checkpoint is written, and it ends.

    Of several processes that share the run, the first one writes and watches.
    """
    team = Team(job.algorithm, job.federation, job.plan, run.workers)
    team.recall(folder.calibration() if folder else {})
    if team.ranks.rank:
        with threads(run.threads):
            progress = team.follow(job.progress)
        return Result(job.algorithm.solution(progress.server), job.problem, progress.server, [], progress.traffic, True)
    with folder.held() if folder else nullcontext():
        return _led(job, run, team, folder, watch, stop)


def _led(
    job: Job, run: Run, team: Team, folder: RunFolder | None, watch: Watch | None, stop: Callable[[], bool],
) -> Result:
    """The run in its first process."""
    progress, saved_at, stopped = job.progress, -1, False
    records, tracking = opened(job, run, folder)

    def save(clients: dict[str, Tensor]) -> None:
        nonlocal saved_at
        if folder and saved_at != progress.round:
            constants: dict[str, float] = getattr(job.problem, "constants", dict)()
            checkpoint.save(folder.checkpoints, progress, clients, constants, run.keep_checkpoints)
            saved_at = progress.round

    with threads(run.threads), ending(folder, tracking, lambda: progress.round), team:
        if team.command(GO if records else SAVE):
            save(team.states())  # the constants of the problem are never asked for twice
        team.gather(progress)
        for progress, record in rounds(job.algorithm, job.federation, job.progress, job.plan, job.evaluate):
            records.append(record)
            if folder:
                folder.append(record)
            tracking.log(record)
            if watch:
                watch(record)
            stopped = stop() and not job.plan.over(progress)
            ends = stopped or job.plan.over(progress)
            due = not record.get("diverged") and progress.round % run.checkpoint_every == 0
            if team.command(END if ends else SAVE if due else GO):
                save(team.states())
            if folder and team.news():
                folder.keep_calibration(team.report())
            if stopped:
                break
            team.gather(progress, record)
    point = job.algorithm.solution(progress.server)
    result = Result(point, job.problem, progress.server, records, progress.traffic, not stopped)
    if folder and result.complete:
        folder.finish(result.named(), summary(result))
        with threads(run.threads):
            keep_look(job, point, folder)
    tracking.finish(summary(result) if result.complete else
                    {"how": "stopped", "round": progress.round, "why": "it was told to stop"})
    return result


def opened(job: Job, run: Run, folder: RunFolder | None) -> tuple[list[Record], Tracking]:
    """The records so far of a run that starts or goes on, and its trackers, which know them."""
    if folder is None:
        return [], Tracking()
    folder.forget_after(job.progress.round)
    folder.go_on()
    folder.keep(job.files)
    folder.keep_values("environment", environment(job.federation.engine.device))
    if hasattr(job.federation.engine, "settle_in"):
        job.federation.engine.settle_in(folder.path)
    records = folder.records()
    return records, started(run.trackers, folder.path, folder.tables() if run.trackers else {}, records)


@contextmanager
def ending(folder: RunFolder | None, tracking: Tracking, round: Callable[[], int]) -> Iterator[None]:
    """Note in the folder, and tell trackers, when a run diverges."""
    try:
        yield
    except Diverged as error:
        how = {"how": "diverged", "round": round(), "why": str(error)}
        if folder:
            folder.end(how)
        tracking.finish(how)
        raise


def keep_look(job: Job, point: Point, folder: RunFolder) -> None:
    """The last look at the solution, in the folder. The run is done by then: if this fails, it says so, aloud."""
    try:
        seen = job.look(point)
        told, images = seen.told(), {} if seen.images is None else {"images.png": png(seen.images)}
    except Exception as error:  # a user's own problem, or too little memory
        told, images = {"failed": f"{type(error).__name__}: {error}"}, {}
        warnings.warn(f"the run is complete, but the last look at its solution failed ({told['failed']})",
                      RuntimeWarning, stacklevel=3)
    folder.keep_values("final", told)
    folder.keep(images)


def summary(result: Result) -> dict[str, Any]:
    """How a run ended, in numbers."""
    last = result.records[-1] if result.records else {}
    return {
        "rounds": last.get("round", 0), "skipped": sum(r["skipped"] for r in result.records),
        "measures": result.measures, "alarms": last.get("alarms", []), "traffic": result.traffic._asdict(),
        "seconds": sum(r["seconds"] for r in result.records),
        "evaluation_seconds": sum(r["evaluation_seconds"] for r in result.records),
    }


@contextmanager
def threads(number: int) -> Iterator[None]:
    """So many threads inside an operation, and as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train(
    algorithm: str | Algorithm, problem: Problem, clients: Any, *, test: tuple[Any, Any] | None = None,
    held_out: Any = None, participation: Any = (), out: str | Path | None = None, resume: bool = False,
    watch: Watch | None = None, **run: Any,
) -> Result:
    """Train from Python.

    algorithm: a name out of `fedsaddle list algorithms`, or its settings as an object.
    clients: one (inputs, targets) pair per client, or arrays (inputs, targets, client of each row).
    held_out: rows of the same clients, in the same form, that are not trained on: per_client=True measures on them.
    participation: a selection, responses, or a tuple of both.
    out: a folder for records, checkpoints and the model; resume=True goes on in it.
    run: the settings of [run], such as rounds, seed, batch_size, weights, engine, device, chunk.
    """
    method = algorithm_of(named(ALGORITHMS, algorithm, "algorithm")) if isinstance(algorithm, str) else algorithm
    for part, where in ((method, "algorithm"), (problem, "problem")):
        check(part, where)
    how = Run(**validated(Run, run, "run"))
    parts = participation if isinstance(participation, tuple) else (participation,)
    for part in parts:
        check(part, "participation")
    if how.trackers and out is None:
        raise SettingError(f"run.trackers = {list(how.trackers)}: need a run folder; give one with out=, or leave them "
                           "out")
    makers(how.trackers)
    folder = RunFolder(Path(out)) if out is not None else None
    going_on = folder is not None and resume and folder.path.exists()
    everyone, held = as_clients(clients), None if held_out is None else as_clients(held_out)
    if held is not None and (held.count != everyone.count or not how.per_client):
        raise SettingError(f"held_out: has rows of {held.count} clients, of {everyone.count}; give some of each, and "
                           "per_client=True to measure on them")
    job = assemble(method, problem, everyone, as_rows(test), as_participation(*parts), how,
                   folder.checkpoints if folder and going_on else None, held=held)
    if folder and not going_on:
        folder.create({"run": {name: value for name, value in run.items() if value is not None}})
    return carry_out(job, how, folder, watch)


def as_clients(data: Any) -> Clients:
    """Clients from what a user has: a table of ours, a list of pairs, or three arrays."""
    if isinstance(data, Clients):
        return checked(data)
    if isinstance(data, tuple) and len(data) == 3:
        return clients_from_arrays(*data)
    if isinstance(data, Sequence):
        return clients_from_list(data)
    raise SettingError(f"clients: {type(data).__name__} is not known; give a list of (inputs, targets) pairs, or the "
                       "three arrays (inputs, targets, client)")


def as_rows(data: Any) -> Rows | None:
    return None if data is None else Rows(*(as_tensor(part) for part in data))
