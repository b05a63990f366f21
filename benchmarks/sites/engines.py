"""The two engines across four sites on this machine, over TLS, each site with a key or certificate of its own.

    python benchmarks/sites/engines.py phases [--engine nvflare] [--phases 30] [--floats 100000] [--sleep 8]
    python benchmarks/sites/engines.py rounds [--rounds 400] [--engines simulation,nvflare,flower]

`phases`: from an ask to the first three good answers, with workers that send back what they got. The fourth site sleeps
so long over every task and is asked in every phase all the same; its answers are taken when they come. Before that: the
start, and what processes use of a core that wait for the first ask. The first phase of all is not counted.

`rounds`: the same settings (ada-mnist.toml) as a simulation, and by `fedsaddle server` and four times `fedsaddle node`
engine after engine; NAME:ROUNDS gives one of them fewer rounds (a multiple of 10). A phase's work is the longest of its
sites', as they say it in their answers (`work_seconds` of a record). With --folder the runs stay, and those that are
there already are not done again. --out is written after every engine.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rounds import NAMES, Failed, admitted, circumstances, measured, out, say, show, task_of, uninterrupted, write

from fedsaddle.sites import frames, programs
from fedsaddle.sites.engines import ENGINES
from fedsaddle.sites.wire import Parcel, Wire
from fedsaddle.sites.worker import listen

SETTINGS = Path(__file__).parent / "ada-mnist.toml"
SLOW = NAMES[3]
ENOUGH = 3  # answers
PATIENCE = 120.0  # seconds, for a start and for a phase
KEPT = 3600.0  # seconds for which an answer is wanted: the slow site has a queue
SETTLE, QUIET = 3.0, 10.0  # seconds after the start, and those in which it is looked how idle processes are
MOST = 1 << 34  # bytes of a frame
TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


# What processes take.

def beneath(folder: Path) -> set[programs.Process]:
    """Processes of ours that work in a folder, and all that they started."""
    found: set[programs.Process] = set()
    for process in programs.family(os.getpid()):
        with contextlib.suppress(OSError):
            if Path(os.readlink(f"/proc/{process.pid}/cwd")).is_relative_to(folder.resolve()):
                found |= {process} | programs.family(process.pid)
    return found


def computing(processes: Iterable[programs.Process]) -> float:
    """Seconds of a core that they have used so far."""
    total = 0
    for process in processes:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / TICKS


def idle(groups: dict[str, list[Path]]) -> dict[str, float]:
    """Cores that the processes in a folder use while nothing is asked of them, on average over a group's folders."""
    waiting = {name: [one for folder in group for one in beneath(folder)] for name, group in groups.items()}
    before, began = {name: computing(group) for name, group in waiting.items()}, time.monotonic()
    time.sleep(QUIET)
    passed = time.monotonic() - began
    return {name: (computing(group) - before[name]) / passed / len(groups[name]) for name, group in waiting.items()}


def megabytes(folders: list[Path]) -> dict[str, list[int]]:
    """Resident memory of the processes in these folders, by the program they run."""
    found: dict[str, list[int]] = {}
    for process in sorted(one for folder in folders for one in beneath(folder)):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
            module = next((word for before, word in itertools.pairwise(words) if before == "-m"), None)
            name = module.rpartition(".")[2] if module else Path(words[1] if "python" in words[0] else words[0]).name
            pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
            found.setdefault(name, []).append(pages * PAGE // 1_000_000)
    return found


# Phases.

def worker(path: Path, sleep: float) -> socket.socket:
    """A worker that sends back what it got, after a while."""
    listening = listen(path)

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):  # whoever asked may be gone
                content = frames.receive_frame(connection, MOST)
                time.sleep(sleep)
                frames.send_frame(connection, content)

    threading.Thread(target=serve, daemon=True).start()
    return listening


class Four(NamedTuple):
    """Four sites that are there."""

    wire: Wire
    nodes: dict[str, str]  # what the wire calls them
    start: float  # seconds from nothing, keys included


@contextlib.contextmanager
def four_sites(folder: Path, engine: str, sleep: float) -> Iterator[Four]:
    began, ended, last = time.monotonic(), threading.Event(), contextlib.ExitStack()
    options, watching = admitted(folder, engine), list[threading.Thread]()

    def watch(node: Any) -> None:
        while not ended.wait(0.2):
            node.watch(say, ended.is_set)

    try:
        for name in NAMES:
            home, listening = folder / name, folder / f"{name}.sock"
            home.mkdir()
            last.enter_context(worker(listening, sleep if name == SLOW else 0.0))
            node = last.enter_context(ENGINES[engine].join(home, name, options[name], listening))
            watching.append(threading.Thread(target=watch, args=(node,), daemon=True))
            watching[-1].start()
        server = last.enter_context(ENGINES[engine].serve(folder / "run", options["server"], say))
        while not set(server.owners) <= set(server.wire.nodes()):
            if time.monotonic() - began > PATIENCE:
                raise Failed(f"not all four sites were there within {PATIENCE:.0f} s")
            time.sleep(0.05)
        yield Four(server.wire, {name: node for node, name in server.owners.items()}, time.monotonic() - began)
    finally:
        with uninterrupted():
            ended.set()
            last.close()
            for thread in watching:  # one may be in the middle of a start, and waits for what it started
                while thread.is_alive():
                    programs.end(beneath(folder))
                    thread.join(0.2)
            programs.end(beneath(folder))


def asked(four: Four, number: int, floats: int) -> tuple[float, int]:
    """One phase: seconds until enough have answered, and how many answers to earlier ones came meanwhile."""
    content, late, good = os.urandom(4 * floats), 0, 0
    tickets = {name: f"{number}-{name}" for name in NAMES}
    began = time.monotonic()
    four.wire.send([Parcel(four.nodes[name], ticket, content, KEPT) for name, ticket in tickets.items()])
    while good < ENOUGH:
        if time.monotonic() - began > PATIENCE:
            raise Failed(f"phase {number}: {good} answers within {PATIENCE:.0f} s")
        for delivery in four.wire.receive(1.0):
            if delivery.ticket not in tickets.values():
                late += 1
            elif delivery.content == content:
                good += 1
            else:
                raise Failed(f"phase {number}: {delivery.error or 'another content came back'}")
    return time.monotonic() - began, late


def phases(folder: Path, engine: str, count: int, floats: int, sleep: float) -> dict[str, Any]:
    groups = {"server": [folder / "run"], "site": [folder / name for name in NAMES]}
    with four_sites(folder, engine, sleep) as four:
        say(f"all four are there after {four.start:.1f} s; now {QUIET:.0f} s of idleness")
        time.sleep(SETTLE)
        cores, each = idle(groups), list[float]()
        first, late = asked(four, 0, floats)
        for number in range(1, count + 1):
            seconds, came = asked(four, number, floats)
            each.append(seconds)
            late += came
            say(f"phase {number} of {count}: {seconds:.2f} s")
        memory = {name: megabytes(group) for name, group in groups.items()}
    return {
        "engine": engine, "sites": len(NAMES), "bytes": 4 * floats, "phases": count, "sleep": sleep, "enough": ENOUGH,
        "start": four.start, "first": first, "median": statistics.median(each), "mean": statistics.fmean(each),
        "90 %": sorted(each)[-(-9 * count // 10) - 1], "worst": max(each), "late answers meanwhile": late,
        "idle cores": cores, "megabytes": memory, "each": [round(one, 4) for one in each],
    }


def show_phases(found: dict[str, Any]) -> None:
    out.print(f"{found['engine']}: {found['phases']} phases, {found['bytes']:,} bytes to each of four sites and back, "
              f"of which one sleeps {found['sleep']:g} s per task; seconds from the ask to {ENOUGH} good answers:")
    out.print(", ".join(f"{name} {found[name]:.3f}" for name in ("median", "mean", "90 %", "worst", "first")))
    out.print(f"from nothing until all are there: {found['start']:.1f} s; answers of the slow one that came meanwhile: "
              f"{found['late answers meanwhile']}")
    for name, memory in found["megabytes"].items():
        held = ", ".join(f"{program} {least} MB" if least == most else f"{program} {least} to {most} MB"
                         for program, each in memory.items() for least, most in [(min(each), max(each))])
        out.print(f"{name}: {held}; idle: {found['idle cores'][name]:.2f} of a core")


# The command line.

def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("phases", help="how long an ask takes where the work is nothing")
    one.add_argument("--engine", choices=ENGINES, default="nvflare")
    one.add_argument("--phases", type=int, default=30)
    one.add_argument("--floats", type=int, default=100_000)
    one.add_argument("--sleep", type=float, default=8.0, help="seconds, of the fourth site over every task")
    two = commands.add_parser("rounds", help="a whole run: simulation and engines side by side")
    two.add_argument("--rounds", type=int, default=400)
    two.add_argument("--engines", default="simulation,nvflare,flower")
    two.add_argument("--settings", type=Path, default=SETTINGS)
    two.add_argument("--folder", type=Path, help="where the runs stay; a temporary one if not given")
    for command in (one, two):
        command.add_argument("--out", type=Path, help="JSON file for the numbers")
    return parser


def interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupted)
    given, command = options().parse_args(), " ".join(["python benchmarks/sites/engines.py", *sys.argv[1:]])
    try:
        with tempfile.TemporaryDirectory(prefix="fs", ignore_cleanup_errors=True) as temporary:
            if given.command == "phases":
                around = circumstances(command)
                found = phases(Path(temporary), given.engine, given.phases, given.floats, given.sleep)
                write(given.out, {**around, **found})
                show_phases(found)
            else:
                folder = (given.folder or Path(temporary)).resolve()
                folder.mkdir(parents=True, exist_ok=True)
                tasks = [task_of(one, given.rounds) for one in given.engines.split(",")]
                show(measured(folder, tasks, given.settings.resolve(), given.out, command))
    except Failed as failure:
        out.print(str(failure), style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        out.print("stopped; everything that was started is ended", style="red")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
