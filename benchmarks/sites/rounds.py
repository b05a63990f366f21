"""A whole run of the same settings, as a simulation and across four sites over each engine (`engines.py rounds`)."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
from rich.console import Console
from rich.table import Table

from fedsaddle.report.folder import RunFolder
from fedsaddle.sites import programs
from fedsaddle.sites.engines import ENGINES, Options

NAMES = ("north", "east", "south", "west")
SIMULATION = "simulation"
PATIENCE = 30.0  # seconds for everything to end that is asked to
TOLD = 20  # rounds between two lines about a run
out = Console(width=None if sys.stdout.isatty() else 120, highlight=False)


class Failed(RuntimeError):
    """A benchmark cannot go on. The text says why."""


def say(text: str) -> None:
    out.print(text, style="dim", markup=False, soft_wrap=True)


def admitted(folder: Path, engine: str) -> dict[str, Options]:
    """Keys or kits for the server and the four sites, on free ports of this machine: the options of each of them."""
    if engine == "nvflare":
        from fedsaddle.sites.nvflare.provision import Project, provision  # noqa: PLC0415  # an extra

        kits = folder / "kits"
        provision(Project("bench", "localhost", programs.free_port(), programs.free_port(), NAMES, days=2), kits)
        return {name: Options(kit=kits / name) for name in ("server", *NAMES)}
    from fedsaddle.sites import keys  # noqa: PLC0415  # an extra

    place, port = folder / "keys", programs.free_port()
    keys.make_authority(place, 2)
    keys.server_certificate(place, ["127.0.0.1"], 2)
    for name in NAMES:
        keys.node_key(place, name)
    return {"server": Options(keys=place, host="127.0.0.1", port=port),
            **{name: Options(keys=place / "nodes" / name, server=f"127.0.0.1:{port}") for name in NAMES}}


class Sitting:
    """Commands of ours as processes, each with a log in the folder. All end with it, and whatever they started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Sitting:
        return self

    def start(self, name: str, *words: Any) -> None:
        """In a session of its own: Ctrl-C is for us alone, who end it."""
        quiet = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120", "PYTHONUNBUFFERED": "1"}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "fedsaddle", *map(str, words)], cwd=self.folder, env=quiet, stdout=log,
                stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)

    def ended(self, name: str) -> bool:
        """Whether it has ended by itself, as it should; Failed if otherwise."""
        code = self.running[name].poll()
        if code:
            said = (self.folder / f"{name}.log").read_text(errors="replace").strip()
            raise Failed(f"{name} ended with {code}: {said[-1000:]}")
        return code == 0

    def __exit__(self, *error: object) -> None:
        with uninterrupted():
            known: set[programs.Process] = set()
            for name, process in self.running.items():
                known |= programs.family(process.pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGTERM if name in NAMES else signal.SIGINT)
            until = time.monotonic() + PATIENCE
            for process in self.running.values():
                try:
                    process.wait(max(0.1, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            programs.end(known)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ending must not be ended."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Task(NamedTuple):
    """One engine's run of the settings; its folder has the engine's name."""

    engine: str
    rounds: int


def task_of(text: str, rounds: int) -> Task:
    name, _, own = text.partition(":")
    if name not in (SIMULATION, *ENGINES) or (own and not own.isdigit()):
        raise Failed(f"--engines {text!r}: say {SIMULATION}, {' or '.join(ENGINES)}, or one of them with :ROUNDS")
    return Task(name, int(own or rounds))


def start(sitting: Sitting, task: Task, settings: Path) -> None:
    rounds = ("--set", f"run.rounds={task.rounds}", "--out", task.engine)
    if task.engine == SIMULATION:
        sitting.start(task.engine, "run", settings, *rounds, "--set", "run.checkpoint_every=10", "--set",
                      "run.keep_checkpoints=1000")  # who does fewer rounds is compared with it before its end
        return
    own = {name: ["--engine", task.engine, *(word for option, value in one._asdict().items() if value
                                             for word in (f"--{option}", value))]
           for name, one in admitted(sitting.folder / f"{task.engine}-let-in", task.engine).items()}
    sitting.start(task.engine, "server", settings, *rounds, *own["server"])
    for number, name in enumerate(NAMES):
        sitting.start(name, "node", "--data", f"data/site-{number}.npz", "--name", name, "--state",
                      f"{task.engine}-{name}", *own[name])


def carried_out(sitting: Sitting, task: Task, settings: Path) -> float:
    """Seconds from the start of the processes to the end of the run, which is told about meanwhile."""
    began, told, folder = time.monotonic(), 0, RunFolder(sitting.folder / task.engine)
    start(sitting, task, settings)
    while not sitting.ended(task.engine):
        done = len(folder.records())
        if done >= told + TOLD:
            told = done
            say(f"{task.engine}: round {done} of {task.rounds} after {time.monotonic() - began:.0f} s")
        if any(sitting.ended(name) for name in NAMES if name in sitting.running):
            raise Failed("a node ended before the run did")
        time.sleep(0.2)
    return time.monotonic() - began


def point(folder: Path, rounds: int) -> dict[str, Any]:
    """The solution after so many rounds: at the end, or in a checkpoint."""
    if RunFolder(folder).records()[-1]["round"] == rounds:
        found = safetensors.torch.load_file(folder / "model.safetensors")
        return {"x": found["x"], "y": found["y"]}
    found = safetensors.torch.load_file(folder / "checkpoints" / f"{rounds:08}" / "state.safetensors")
    return {"x": found["server.z.x"], "y": found["server.z.y"]}


def row(folder: Path, task: Task, seconds: float) -> dict[str, Any]:
    """What the records of a run say."""
    records = RunFolder(folder / task.engine).records()
    found = {"engine": task.engine, "rounds": task.rounds, "seconds": seconds,
             "a round": statistics.fmean(one["seconds"] for one in records),
             "test auc": records[-1]["measures"]["test"]["auc"]}
    if task.engine != SIMULATION:
        asks = [ask for one in records for ask in one["asks"]]
        beyond = [ask["virtual_seconds"] - ask["work_seconds"] for ask in asks]
        found |= {"work a round": sum(ask["work_seconds"] for ask in asks) / len(records), "phases": len(asks),
                  "beyond the work": {"median": statistics.median(beyond), "mean": statistics.fmean(beyond),
                                      "worst": max(beyond)},
                  "refused": sum(len(ask["refused"]) for ask in asks),
                  "skipped rounds": sum(one["skipped"] for one in records)}
    if (folder / SIMULATION / "model.safetensors").exists():
        theirs, ours = point(folder / task.engine, task.rounds), point(folder / SIMULATION, task.rounds)
        found["difference"] = max(float((theirs[name] - ours[name]).abs().max()) for name in ours)
    return found


def measured(folder: Path, tasks: list[Task], settings: Path, to: Path | None, command: str) -> list[dict[str, Any]]:
    """A row for every engine, also written after each of them."""
    rows: list[dict[str, Any]] = []
    if not (folder / "data").exists():
        with Sitting(folder) as sitting:
            sitting.start("deal", "deal", settings, "--out", "data")
            while not sitting.ended("deal"):
                time.sleep(0.2)
    for task in tasks:
        took = folder / f"{task.engine}-seconds"
        around = circumstances(command)
        if not took.exists():
            if (folder / task.engine).exists():
                raise Failed(f"--folder: {task.engine} was begun there and not ended; take that folder away")
            with Sitting(folder) as sitting:
                took.write_text(str(carried_out(sitting, task, settings)))
        rows.append(row(folder, task, float(took.read_text())))
        write(to, {**around, "settings": settings.name, "rows": rows})
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("engine", "rounds", "seconds in all", "a round", "of it work", "a phase beyond it: median", "mean",
                  "test AUC", "differs by")
    for one in rows:
        work, beyond = one.get("work a round"), one.get("beyond the work", {})
        table.add_row(one["engine"], str(one["rounds"]), f"{one['seconds']:.0f}", f"{one['a round']:.2f}",
                      "all" if work is None else f"{work:.2f} ({work / one['a round']:.0%})",
                      *(f"{beyond[name]:.2f}" if beyond else "" for name in ("median", "mean")),
                      f"{one['test auc']:.4f}", f"{one['difference']:.1e}" if "difference" in one else "")
    out.print(table)


def circumstances(command: str) -> dict[str, Any]:
    """What a reader must know of the machine and the versions."""
    versions = {}
    for package in ("fedsaddle", "torch", "nvflare", "flwr"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {"command": command, "cores": os.cpu_count(), "load before": round(os.getloadavg()[0], 1),
            "system": platform.system(), "python": platform.python_version(), "versions": versions}


def write(path: Path | None, found: dict[str, Any]) -> None:
    """Whole or not at all."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}")
        beside.write_text(json.dumps(found, indent=1) + "\n")
        beside.replace(path)
