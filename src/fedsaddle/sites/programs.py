"""A program that runs beside us: started in its own session with a log file, and ended with everything it started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from fedsaddle.sites.wire import TransportFailed

QUIET = MappingProxyType({"NO_COLOR": "1", "PYTHONUNBUFFERED": "1"})
LOOK = 0.1
FREED = 5.0  # seconds in which a port is given up by whoever was ended


class Process(NamedTuple):
    """A process of this machine: the start time tells it from a later one with the same number."""

    pid: int
    start: int


def environment(more: Mapping[str, str] = QUIET) -> dict[str, str]:
    """Ours and more; programs are looked for beside this Python first, and this machine is reached without a proxy."""
    programs = str(Path(sys.executable).parent)
    direct = ",".join(filter(None, [os.environ.get("NO_PROXY", os.environ.get("no_proxy")), "127.0.0.1,localhost,::1"]))
    return os.environ | QUIET | dict(more) | {"NO_PROXY": direct, "no_proxy": direct,
                                              "PATH": os.pathsep.join([programs, os.environ.get("PATH", "")])}


def free_port(host: str = "127.0.0.1", port: int = 0) -> int:
    """The port, if it can be listened at; OSError if not. 0 finds one."""
    with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        return int(probe.getsockname()[1])


def freed_port(host: str, port: int) -> int:
    """The port, once nobody listens there: one that was ended a moment ago may still hold it."""
    until = time.monotonic() + FREED
    while True:
        try:
            return free_port(host, port)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(LOOK)


class Program:
    """One program of a transport. A second one in the same folder ends the first, should it still run: it was left
    behind by a coordinator that was killed."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, more: Mapping[str, str] = QUIET) -> None:
        """more: of its environment."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.name, self.folder, self.log = name, folder, folder / f"{name}.log"
        self._mark = folder / f"{name}.json"
        program = Path(sys.executable).parent / command[0]
        if not program.exists():
            raise TransportFailed(f"{name}: there is no {program.name} beside this Python; install the engine's extra")
        end_left_behind(folder, name)
        self._before = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                [str(program), *command[1:]], stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, cwd=folder, env=environment(more), start_new_session=True)
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

    @property
    def code(self) -> int | None:
        """With which it ended; None while it runs."""
        return self._popen.poll()

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
        self._remember()  # what it started in its last moment is still in its session
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


def _process(pid: int) -> Process | None:
    fields = _fields(pid)
    return None if fields is None or fields[0] == "Z" else Process(pid, int(fields[19]))


def _fields(pid: int) -> list[str] | None:
    """State, parent, group, session, ... of a process; the name before them may hold blanks and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
