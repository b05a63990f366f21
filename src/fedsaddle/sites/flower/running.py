"""A program that runs beside us: started in its own session with a log file, and ended with everything it started."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedsaddle.sites.wire import TransportFailed

OFF = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # its 1 s would be waited for in every phase
    "NO_COLOR": "1",
    "PYTHONUNBUFFERED": "1",
}
LOOK = 0.1
MARK = "/fedsaddle-gate"  # answered by the gate itself: the SuperLink's owner looks whether it is there
PAINT, FRAME = re.compile(r"\x1b\[[0-9;]*m"), " \t│╭╮╰╯─"
DULL = re.compile(r"Traceback|  |During handling|The above exception|For more|INFO|\S+ INFO|WARNING|ERROR\s*:")
MISSING = "Flower is not installed; install fedsaddle[flower]"
REFUSED = "[code: 2004]"
REFUSED_BY_GATE = "refused:"  # begins a line in the SuperLink's log
REASONS = {  # what Flower's logs say, and what it means
    REFUSED: "the SuperLink refuses the key: it is not registered there (a server that has just started needs some "
             "seconds for that), or another node with the same key is online",
    "[code: 2001]": "the SuperLink wants a key, and none was given",
    "certificate has expired": "the SuperLink's certificate has expired",
    "certificate is not yet valid": "the SuperLink's certificate is not valid yet, or this machine's clock is wrong",
    "WRONG_VERSION_NUMBER": "what answers there speaks no TLS",
    "mismatch, certificate": "the SuperLink's certificate is for another host name",
    "certificate verify failed": "the SuperLink's certificate is not from the authority whose certificate was given",
    "Invalid SuperNode authentication": "the SuperLink refuses the signature: this machine's clock may be wrong",
    "No module named 'flwr'": MISSING,
    "address already in use": "the port is taken",
    "Connection attempt failed": "nobody answers there, or one side speaks TLS and the other does not",
}


class FlowerFailed(TransportFailed):
    """A program of Flower ended or did not start. The text says which and its last word; `log` is its whole log."""

    def __init__(self, text: str, code: int | None = None, log: Path | None = None) -> None:
        super().__init__(text)
        self.code, self.log = code, log


class Process(NamedTuple):
    """A process of this machine: the start time tells it from a later one with the same number."""

    pid: int
    start: int


def environment(home: Path) -> dict[str, str]:
    """Flower looks for its own programs on the PATH, and for everything else in FLWR_HOME."""
    programs = str(Path(sys.executable).parent)
    direct = ",".join(filter(None, [os.environ.get("NO_PROXY", os.environ.get("no_proxy")), "127.0.0.1,localhost,::1"]))
    return os.environ | OFF | {"FLWR_HOME": str(home), "NO_PROXY": direct, "no_proxy": direct,
                               "PATH": os.pathsep.join([programs, os.environ.get("PATH", "")])}


def free_port(host: str = "127.0.0.1", port: int = 0) -> int:
    """The port, if it can be listened at; OSError if not. 0 finds one."""
    with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        return int(probe.getsockname()[1])


class Program:
    """One program of Flower. A second one in the same folder ends the first, should it still run: it was left behind
    by a coordinator that was killed."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.name, self.folder, self.log = name, folder, folder / f"{name}.log"
        self._mark = folder / f"{name}.json"
        program = Path(sys.executable).parent / command[0]
        if not program.exists():
            raise FlowerFailed(f"{name}: {MISSING}")
        end_left_behind(folder, name)
        self._before = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                [str(program), *command[1:]], stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, cwd=folder, env=environment(folder / "home"), start_new_session=True)
        self.pid = self._popen.pid
        self._family: set[Process] = set()
        self._mark.write_text(json.dumps(_process(self.pid)))

    def alive(self) -> bool:
        return self._popen.poll() is None

    def said(self) -> str:
        """Its log since this start."""
        with self.log.open("rb") as log:
            log.seek(self._before)
            return log.read().decode(errors="replace")

    def failure(self, what: str) -> FlowerFailed:
        code = self._popen.poll()
        end = "" if code is None else f" (exit code {code})"
        return FlowerFailed(f"{self.name}: {what}{end}: {last_words(self.said())}", code, self.log)

    def stop(self, seconds: float = 10.0) -> None:
        """Asks it to end, then ends it, then ends whatever it started and left behind."""
        self._remember()
        if self.alive():
            self._popen.terminate()
            until = time.monotonic() + seconds
            while self.alive() and time.monotonic() < until:
                self._remember()
                time.sleep(LOOK)
        self.kill()

    def kill(self) -> None:
        self._remember()
        if self.alive():
            self._popen.kill()
        self._popen.wait()
        end(self._family)
        self._mark.unlink(missing_ok=True)

    def _remember(self) -> None:
        self._family |= family(self.pid) | {child for known in self._family for child in family(known.pid)
                                            if _process(known.pid) == known}


def end_left_behind(folder: Path, name: str) -> None:
    """Ends a program of this name that was started in the folder and still runs."""
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
        earlier = Process(*json.loads((folder / f"{name}.json").read_text()))
        if _process(earlier.pid) == earlier:
            end({earlier} | family(earlier.pid))


def end(processes: set[Process]) -> None:
    """Kills them and waits until they are gone."""
    left = {process for process in processes if _process(process.pid) == process}
    for process in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    until = time.monotonic() + 5.0
    while any(_process(process.pid) == process for process in left) and time.monotonic() < until:
        time.sleep(LOOK / 4)


def family(pid: int) -> set[Process]:
    """The children of a process, their children, and so on, and everything in its session."""
    parents: dict[int, list[int]] = {}
    session = set()
    for entry in os.listdir("/proc"):
        fields = _fields(int(entry)) if entry.isdigit() else None
        if fields is not None:
            parents.setdefault(int(fields[1]), []).append(int(entry))
            if int(fields[3]) == pid:
                session.add(int(entry))
    found: set[int] = set()
    ahead = [pid, *session]
    while ahead:
        for child in parents.get(ahead.pop(), []):
            if child not in found:
                found.add(child)
                ahead.append(child)
    return {process for one in (found | session) - {pid} if (process := _process(one)) is not None}


def last_words(log: str) -> str:
    """The reason that a log gives, in our words where we know it, else its last line that says something."""
    for sign, meaning in REASONS.items():
        if sign in log:
            return meaning
    lines = [PAINT.sub("", line) for line in log.splitlines()]
    return next((line.strip(FRAME) for line in reversed(lines) if line.strip(FRAME) and not DULL.match(line)),
                "it said nothing")[:300]


def _process(pid: int) -> Process | None:
    fields = _fields(pid)
    return None if fields is None or fields[0] == "Z" else Process(pid, int(fields[19]))


def _fields(pid: int) -> list[str] | None:
    """State, parent, group, session, ... of a process; the name before them may hold blanks and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
