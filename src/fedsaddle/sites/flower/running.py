"""Flower's programs: the settings they all have, and what their logs mean."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fedsaddle.sites.programs import Program
from fedsaddle.sites.wire import TransportFailed

OFF = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # its 1 s would be waited for in every phase
}
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


def settings(home: Path) -> dict[str, str]:
    """Of the environment. Flower looks for everything but its programs in FLWR_HOME."""
    return OFF | {"FLWR_HOME": str(home)}


def start(name: str, command: Sequence[str], folder: Path) -> Program:
    """One of Flower's, with a home of its own."""
    try:
        return Program(name, command, folder, settings(folder / "home"))
    except TransportFailed:
        raise FlowerFailed(f"{name}: {MISSING}") from None


def failure(one: Program, what: str) -> FlowerFailed:
    end = "" if one.code is None else f" (exit code {one.code})"
    return FlowerFailed(f"{one.name}: {what}{end}: {last_words(one.said())}", one.code, one.log)


def last_words(log: str) -> str:
    """The reason that a log gives, in our words where we know it, else its last line that says something."""
    for sign, meaning in REASONS.items():
        if sign in log:
            return meaning
    lines = [PAINT.sub("", line) for line in log.splitlines()]
    return next((line.strip(FRAME) for line in reversed(lines) if line.strip(FRAME) and not DULL.match(line)),
                "it said nothing")[:300]
