"""Running contestants: one process each, with a limit, watched; failures become reasons."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from contestants import CONTESTANTS, Missing, command, last_line
from presets import Cell, warmup

POLL = 0.1  # seconds
Outcome = dict[str, Any]


def attempt(name: str, cell: Cell, here: bool, limit: float) -> Outcome:
    """What a contestant printed, or {"reason": why there is nothing}."""
    work = {**cell.work, **CONTESTANTS[name].settings, "warmup": warmup(name, cell.work)}
    try:
        line, variables = command(name, here)
    except Missing as reason:
        return {"reason": str(reason)}
    except OSError as error:
        return {"reason": f"could not be installed: {last_line(str(error))}"}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen([*line, json.dumps(work)], stdout=out, stderr=err, env=variables,
                                   start_new_session=True)
        most, late = watched(process, limit, cell.memory)
        out.seek(0), err.seek(0)
        printed, complaint = out.read(), err.read()
    if late:
        return {"reason": f"took more than {limit:.0f} s"}
    answers = [text for text in printed.splitlines() if text.startswith("{")]
    if process.returncode or not answers:
        return {"reason": last_line(complaint)}
    outcome = json.loads(answers[-1])
    if cell.memory and most:
        outcome["beyond_mb"] = most - outcome["before_mb"]
    return outcome


def watched(process: subprocess.Popen[Any], limit: float, memory: bool) -> tuple[float, bool]:
    """Wait for it. The most megabytes that it and its children took together, and whether it was too late."""
    most, until = 0.0, time.monotonic() + limit
    try:
        while process.poll() is None:
            if time.monotonic() > until:
                return most, True
            if memory:
                most = max(most, together(process.pid))
                time.sleep(POLL)
            else:  # no wake-ups beside the measurement
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(until - time.monotonic())
        return most, False
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # its session: what it left running, too
        process.wait()


def together(pid: int) -> float:
    """Megabytes of a process and its descendants; pages that they share count once (PSS)."""
    total, waiting = 0.0, [pid]
    while waiting:
        folder = Path("/proc") / str(waiting.pop())
        with contextlib.suppress(OSError):
            for line in (folder / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) / 1024
            for task in (folder / "task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text().split()]
    return total
