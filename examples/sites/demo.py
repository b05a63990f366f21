"""Four sites on this machine, over TLS and with node keys: one is slow, one is killed, one loses its worker.

    make demo-sites [ENGINE=nvflare]     or: python examples/sites/demo.py [--engine nvflare] [--keep]

Real processes of `fedsaddle server` and `fedsaddle node`, each ended by its pid, whatever happens. Exit code 1 if the
run did not go on without the slow site, if the killed one lost its state, or if a simulation with the same replies
finds another solution. Linux only, and the engine's extra: pip install "fedsaddle[flower]", or "fedsaddle[nvflare]".
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch
from findings import (
    Record,
    Seen,
    absence,
    answers_around,
    closed_without,
    complaints,
    has_answered,
    owes,
    reasons,
    table_of,
    told,
)
from rich.console import Console
from rich.table import Table

from fedsaddle.sites import programs

SETTINGS = Path(__file__).parent / "demo.toml"
NAMES = ("north", "east", "south", "west")
UNWORKED, KILLED, SLOW = 1, 2, 3  # what befalls them
SLEEP, AWAKE = 20.0, 1.5  # seconds, of the slow one in turn
LIMIT = 600.0  # seconds, after which something has gone wrong
# NVFlare's rounds are short: with few of them all would be over too soon.
MORE_ROUNDS = {"flower": [], "nvflare": ["--set", "run.rounds=800", "--set", "run.evaluate_every=50"]}
out = Console(width=None if sys.stdout.isatty() else 110, highlight=False)


class Failed(RuntimeError):
    """The demonstration cannot go on. The text says why."""


class Stage:
    """The processes and the folder of a demonstration."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.folder, self.engine, self.began = folder, engine, time.monotonic()
        self.address = f"127.0.0.1:{programs.free_port()}"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.known: set[programs.Process] = set()  # children of children
        self.shown = 0  # rounds
        self.slow: int | None = None  # pid of the worker that sleeps in turn
        self.asleep, self.since = False, 0.0

    # Starting and ending.

    def command(self, *arguments: str) -> str:
        """A command of ours that ends by itself; what it printed."""
        done = subprocess.run([sys.executable, "-m", "fedsaddle", *arguments], cwd=self.folder, env=environment(),
                              capture_output=True, text=True, check=False, timeout=120)
        if done.returncode:
            raise Failed(f"fedsaddle {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def start(self, name: str, *arguments: str) -> None:
        """A command of ours that stays."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "fedsaddle", *arguments], cwd=self.folder, env=environment(), stdout=log,
                stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)  # Ctrl-C is for us alone: we end them

    def start_node(self, name: str) -> None:
        own = ("--engine", "nvflare", "--kit", f"kits/{name}") if self.engine == "nvflare" else \
            ("--server", self.address, "--keys", f"keys/nodes/{name}")
        self.start(name, "node", "--data", f"data/site-{NAMES.index(name)}.npz", "--name", name, "--state",
                   f"state-{name}", *own)

    def kill(self, name: str) -> int:
        """A whole node at once, as a power cut would: the command, its transport, its courier and its worker."""
        process = self.running.pop(name)
        everyone = programs.family(process.pid)
        process.kill()
        programs.end(everyone)
        process.wait()
        return 1 + len(everyone)

    def worker_of(self, name: str) -> int:
        for child in programs.family(self.running[name].pid):
            words = Path(f"/proc/{child.pid}/cmdline").read_bytes().split(b"\0")
            if b"worker" in words and b"fedsaddle" in words:
                return child.pid
        raise Failed(f"{name} has no worker; its log: {self.log(name)}")

    def end(self) -> None:
        """Everything that was started, and everything that it started."""
        if self.slow:
            signal_to(self.slow, signal.SIGCONT)
        for name, process in self.running.items():
            self.known |= programs.family(process.pid)
            signal_to(process.pid, signal.SIGINT if name == "server" else signal.SIGTERM)
        until = time.monotonic() + 15
        for process in self.running.values():
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        programs.end(self.known)
        for folder, name in ((self.folder / "run/flower/superlink", "superlink"),
                             *((self.folder / f"state-{name}/supernode", program) for name in NAMES
                               for program in ("supernode", "resident"))):
            programs.end_left_behind(folder, name)

    # Looking on.

    def say(self, text: str) -> None:
        out.print(f"[dim]{time.monotonic() - self.began:4.0f} s[/dim]  {text}")

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return " / ".join(path.read_text(errors="replace").splitlines()[-3:]) if path.exists() else "nothing"

    def records(self) -> list[Record]:
        path = self.folder / "run" / "records.jsonl"
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Look on until it is so; meanwhile rounds are told, and the slow worker sleeps in turn."""
        while not done():
            self.tell()
            if self.slow and time.monotonic() - self.since > (SLEEP if self.asleep else AWAKE):
                self.asleep, self.since = not self.asleep, time.monotonic()
                signal_to(self.slow, signal.SIGSTOP if self.asleep else signal.SIGCONT)
            if self.running["server"].poll() not in (None, 0):
                raise Failed(f"the server ended while waiting until {what}: {self.log('server')}")
            if self.running["server"].poll() == 0 and not done():
                raise Failed(f"the run ended before {what}; raise run.rounds in {SETTINGS.name}")
            if time.monotonic() - self.began > LIMIT:
                raise Failed(f"still waiting until {what} after {LIMIT:.0f} s: {self.log('server')}")
            time.sleep(0.2)
        self.tell()

    def tell(self) -> None:
        """Rounds that are new; of many short ones those that were looked at."""
        for record in self.records()[self.shown:]:
            self.shown += 1
            if self.engine == "flower" or "measures" in record:
                self.say(told(record, NAMES))


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120", "PYTHONUNBUFFERED": "1"}


def signal_to(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def standing(stage: Stage, client: int) -> tuple[int, ...]:
    """The state that the server would have a client start from: round, ask and session, of its newest checkpoint."""
    newest = max((stage.folder / "run" / "checkpoints").glob("[0-9]*/state.safetensors"))
    found = safetensors.torch.load_file(newest)
    ids = found["clients.ids"].tolist()
    return tuple(found["clients.token"][ids.index(client)].tolist()) if client in ids else (-1, -1, -1)


def control_of(stage: Stage, client: int, token: tuple[int, ...]) -> float:
    """The norm of a client's control in the file of this state at the site; 0 where there is none."""
    name = f"{'.'.join(map(str, token))}.safetensors"
    for path in (stage.folder / f"state-{NAMES[client]}" / "worker" / "states").glob(f"*/{name}"):
        state = safetensors.torch.load_file(path)
        return float(torch.cat([leaf.flatten() for field, leaf in state.items() if field.startswith("c.")]).norm())
    return 0.0


def prepared(stage: Stage) -> None:
    port = stage.address.split(":")[1]
    if stage.engine == "nvflare":
        stage.say("[bold]fedsaddle provision[/bold]: a start-up kit for the server, for its admin and for every site")
        (stage.folder / "project.toml").write_text(
            f'name = "demo"\nserver = "localhost"\nport = {port}\nadmin_port = {programs.free_port()}\n'
            f"sites = {json.dumps(NAMES)}\n")
        stage.command("provision", "project.toml", "--out", "kits")
        own = ["--engine", "nvflare", "--kit", "kits/server"]
    else:
        stage.say("[bold]fedsaddle keys[/bold]: an authority, a certificate for the server, a key for every node")
        stage.command("keys", "keys", "--server", "127.0.0.1", *(word for name in NAMES for word in ("--node", name)))
        own = ["--keys", "keys", "--host", "127.0.0.1", "--port", port]
    stage.say("[bold]fedsaddle deal[/bold]: the rows of four sites, a file for each")
    stage.command("deal", str(SETTINGS), "--out", "data")
    stage.say(f"[bold]fedsaddle server[/bold] at {stage.address}, and four times [bold]fedsaddle node[/bold]")
    stage.start("server", "server", str(SETTINGS), *MORE_ROUNDS[stage.engine], "--out", "run", *own)
    stage.until(lambda: "listening at" in stage.log("server"), "the server listens")
    for name in NAMES:
        stage.start_node(name)


def played(stage: Stage) -> Seen:
    """The run, and what happens to its sites meanwhile."""
    stage.until(lambda: bool(stage.records()), "the first round is done")
    stage.slow = stage.worker_of(NAMES[SLOW])
    stage.say(f"[yellow]{NAMES[SLOW]} becomes slow[/yellow]: its worker is stopped for {SLEEP:.0f} s at a time")
    stage.until(lambda: len(stage.records()) > 1 and has_answered(stage.records(), UNWORKED),
                f"the second round is done, and {NAMES[UNWORKED]} was among the first to answer")
    signal_to(stage.worker_of(NAMES[UNWORKED]), signal.SIGKILL)
    unworked = len(stage.records())
    stage.say(f"[red]kill -9[/red] of the worker of {NAMES[UNWORKED]} alone; its node starts it again")
    stage.until(lambda: absence(stage.records(), UNWORKED, unworked) is not None
                and has_answered(stage.records(), KILLED) and stage.asleep and owes(stage.records(), SLOW),
                f"{NAMES[UNWORKED]} has answered again, and {NAMES[SLOW]} owes an answer")
    count, after = stage.kill(NAMES[KILLED]), len(stage.records())
    token = standing(stage, KILLED)
    control = control_of(stage, KILLED, token)
    stage.say(f"[red]kill -9[/red] of all {count} processes of {NAMES[KILLED]}; on its disk: its state of round "
              f"{token[0] + 1}, a control of norm {control:.3f}")
    stage.until(lambda: len(stage.records()) > after, f"{NAMES[KILLED]} has missed a round")
    stage.start_node(NAMES[KILLED])
    stage.say(f"[green]{NAMES[KILLED]} is started again[/green], with the same command")
    stage.until(lambda: absence(stage.records(), KILLED, after) is not None, f"{NAMES[KILLED]} has answered again")
    stage.say(f"[green]{NAMES[KILLED]} answers again[/green]")
    stage.until(lambda: (stage.folder / "run" / "summary.json").exists()
                and stage.running["server"].poll() is not None, "the run is complete")
    return Seen(SLOW, SLEEP, KILLED, after, control, token, standing(stage, KILLED), UNWORKED, unworked)


def shown(stage: Stage, seen: Seen) -> None:
    """The tables."""
    records, part = stage.records(), {SLOW: "slow", KILLED: "killed", UNWORKED: "worker killed"}
    nodes = Table("node", "rows", "asked", "answered", "late", "gone on without", "refused", "what befell it",
                  title="The nodes", title_justify="left")
    rows = [member["rows"] for member in json.loads((stage.folder / "run" / "nodes.json").read_text())]
    for client, line in enumerate(table_of(records, NAMES)):
        nodes.add_row(line.name, *map(str, (rows[client], line.asked, line.answered, line.late, line.passed_over,
                                            line.refused)),
                      part.get(client, "nothing"))
    out.print("", nodes, sep="\n")
    out.print("", f"Asks that went on without {NAMES[SLOW]}, which slept {SLEEP:.0f} s at a time", sep="\n")
    asks = Table("round", "answered", "seconds")
    for ask in closed_without(records, SLOW, NAMES[SLOW]):
        asks.add_row(str(ask.round), f"{ask.answered} of {ask.asked}", f"{ask.seconds:.1f}")
    out.print(asks)
    dead, unworked = (answers_around(records, *pair) for pair in ((KILLED, seen.killed_after),
                                                                  (UNWORKED, seen.unworked_after)))
    out.print("", f"[bold]{NAMES[KILLED]}[/bold], killed after round {seen.killed_after}: {dead}. It went on from its "
              f"control of round {seen.start[0] + 1} (norm {seen.control:.3f}; a first one is 0); at the end stands "
              f"that of round {seen.end[0] + 1} (norm {control_of(stage, KILLED, seen.end):.3f}).", sep="\n")
    out.print(f"[bold]{NAMES[UNWORKED]}[/bold], whose worker was killed after round {seen.unworked_after}: {unworked}. "
              f"It said: {stage.log(NAMES[UNWORKED])}")
    for number, reason in reasons(records, NAMES[UNWORKED]):
        out.print(f"round {number}: {reason}")


def demonstration(folder: Path, engine: str) -> list[str]:
    """What was not as it should be."""
    stage = Stage(folder, engine)
    try:
        prepared(stage)
        seen = played(stage)
        stage.say("the run is complete; the nodes are ended")
    except Failed as failure:
        return [str(failure)]
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # ending must not be interrupted
        stage.end()
    shown(stage, seen)
    out.print("\n[bold]fedsaddle replay[/bold]: the same run as a simulation in which the same sites answer")
    try:
        replay = stage.command("replay", "run")
    except Failed as failure:
        replay = str(failure)
    out.print(replay, markup=False)
    stage.say("done")
    return complaints(stage.records(), NAMES, seen, replay)


def interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupted)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=MORE_ROUNDS, default="flower")
    parser.add_argument("--keep", action="store_true", help="leave the folder")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fedsaddle-demo-"))
    wrong, keep = ["it was interrupted"], given.keep
    try:
        wrong = demonstration(folder, given.engine)
        keep = keep or bool(wrong)
    except KeyboardInterrupt:
        pass
    finally:
        if keep:
            out.print(f"everything is in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    for complaint in wrong:
        out.print(f"[red]not as it should be:[/red] {complaint}", soft_wrap=True)
    if not wrong:
        out.print("[green]As it should be:[/green] the slow site was not waited for, the killed one came back with its "
                  "state,\nand the simulation with the same replies finds the same solution.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
