"""The site's disk: states of its client under the names that the server gave them, and which asks were answered."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
from torch import Tensor

from fedsaddle.report.folder import replace_file

SESSIONS = 64  # of servers, of which the last asks are remembered


class Token(NamedTuple):
    """The name of a state: of the round and the ask that made it, and of the server process that asked. -1: none."""

    round: int = -1
    ask: int = -1
    session: int = -1


class Store:
    """Files in a folder, each written whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.file = folder / "sessions.json"
        try:
            self.sessions: dict[str, int] = json.loads(self.file.read_text())
        except (OSError, ValueError):
            self.sessions = {}

    def newer(self, session: str, number: int) -> bool:
        """Whether an ask is newer than all before of its session; it is remembered on the disk."""
        if number <= self.sessions.get(session, -1):
            return False
        self.sessions.pop(session, None)
        self.sessions[session] = number
        self.sessions = dict(list(self.sessions.items())[-SESSIONS:])
        replace_file(self.file, json.dumps(self.sessions).encode())
        return True

    def counted(self, run: str, round: int, ask: int, shared: bool) -> int:
        """Rounds of a run that were answered here, this one included, by our own count: an ask that does not come after
        the last one is a new round, too. shared: a question beside the training, which does not count."""
        path = self._path(run, Token()).parent / "rounds.json"
        try:
            last, count = json.loads(path.read_text())
        except (OSError, ValueError):
            last, count = [-2, 0], 0
        if shared:
            return int(count)
        if round > last[0] or [round, ask] <= last:
            count += 1
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(path, json.dumps([[round, ask], count]).encode())
        return int(count)

    def read(self, run: str, token: Token) -> dict[str, Tensor] | None:
        """The state, or None where there is none of this name."""
        path = self._path(run, token)
        try:
            return safetensors.torch.load(path.read_bytes())
        except (OSError, safetensors.SafetensorError):
            return None

    def write(self, run: str, token: Token, state: dict[str, Tensor]) -> None:
        path = self._path(run, token)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        rows = {name: leaf.cpu().contiguous().clone() for name, leaf in state.items()}
        replace_file(path, safetensors.torch.save(rows))

    def keep_only(self, run: str, tokens: Iterable[Token]) -> None:
        kept = {self._path(run, token).name for token in tokens}
        for path in self._path(run, Token()).parent.glob("*.safetensors"):
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def _path(self, run: str, token: Token) -> Path:
        if not re.fullmatch(r"[\w-]{1,64}", run):
            raise ValueError("a run's name has letters, digits, - and _ only")
        return self.folder / "states" / run / f"{'.'.join(str(int(part)) for part in token)}.safetensors"
