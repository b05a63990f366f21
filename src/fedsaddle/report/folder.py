"""A run folder: settings, records, checkpoints, the model, a summary. All that resume, report and compare need.

    run.toml           every setting, defaults spelt out
    records.jsonl      one line a round
    checkpoints/       the newest few states of the run
    model.safetensors  the solution: x, y, and under the names of the problem
    summary.json       how it ended; only there once the run is complete
    final.json         the last look at the solution: clients one by one, ROC curve; images.png of a generator
    ended.json         why it ended early; gone when it goes on
    environment.json   versions, kind of machine and date, of the last start
    preparation.json   for a table of one's own: how its columns become inputs
    calibration.json   how the clients were computed: ways tried, their seconds, the choice
"""

from __future__ import annotations

import json
import math
import os
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors.torch
import tomli_w
from torch import Tensor

from fedsaddle.contracts import SettingError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


PATIENCE = 3.0  # seconds; the workers of a process that was killed end a moment after it


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @cached_property
    def _records(self) -> str:
        return str(self.path / "records.jsonl")

    @property
    def complete(self) -> bool:
        return (self.path / "summary.json").exists()

    def create(self, tables: dict[str, Any]) -> None:
        """Make the folder; one that holds a run already is never touched."""
        if (self.path / "run.toml").exists() or (self.path.exists() and any(self.path.iterdir())):
            raise SettingError(f"--out {str(self.path)!r}: is not empty; go on with `fedsaddle resume {self.path}` or "
                               "give another folder")
        self.path.mkdir(parents=True, exist_ok=True)
        replace_file(self.path / "run.toml", tomli_w.dumps(tables).encode())

    def lengthen(self, tables: dict[str, Any]) -> None:
        """More rounds for the run, also if it is complete: from its last checkpoint it goes on."""
        with self.held():  # whoever is at work there does not know of them
            (self.path / "summary.json").unlink(missing_ok=True)  # first: killed in between, it is as long as it was
            replace_file(self.path / "run.toml", tomli_w.dumps(tables).encode())

    @contextmanager
    def held(self) -> Iterator[None]:
        """For one process at a time; two would write the same rounds. It ends with the process, however that ends."""
        if fcntl is None or not self.path.exists():
            yield
            return
        folder = os.open(self.path, os.O_RDONLY)
        try:
            with suppress(OSError):  # some network disks cannot; better without than not at all
                _lock(folder, self.path)
            yield
        finally:
            os.close(folder)

    def keep(self, files: Mapping[str, str | bytes]) -> None:
        """Further files, by name: how the data were prepared."""
        for name, content in files.items():
            replace_file(self.path / name, content.encode() if isinstance(content, str) else content)

    def keep_values(self, name: str, values: Mapping[str, Any]) -> None:
        """A file NAME.json."""
        self.keep({f"{name}.json": json.dumps(plain(dict(values)), indent=1, allow_nan=False) + "\n"})

    def keep_calibration(self, report: dict[str, Any]) -> None:
        self.keep_values("calibration", report)

    def calibration(self) -> dict[str, Any]:
        """What the run has found out about its own speed; empty where it has not."""
        try:
            found = json.loads((self.path / "calibration.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def tables(self) -> dict[str, Any]:
        """The sections of run.toml."""
        return tomllib.loads((self.path / "run.toml").read_text(encoding="utf-8"))

    def end(self, how: Mapping[str, Any]) -> None:
        """Note how a run ended before its last round: `how` in a word, `round`, `why` in words."""
        self.keep_values("ended", how)

    def go_on(self) -> None:
        """The run is under way again."""
        (self.path / "ended.json").unlink(missing_ok=True)

    def append(self, record: dict[str, Any]) -> None:
        try:
            line = json.dumps(record, allow_nan=False)
        except ValueError:  # a number that is not finite
            line = json.dumps(plain(record), allow_nan=False)
        file = os.open(self._records, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)  # quicker than a file object
        try:
            left = f"{line}\n".encode()
            while left:
                left = left[os.write(file, left):]
        finally:
            os.close(file)

    def records(self) -> list[dict[str, Any]]:
        """All whole lines; a line cut off by a crash is not one."""
        path = Path(self._records)
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def forget_after(self, round: int) -> None:
        """Drop the records of rounds that a resumed run does again."""
        kept = [line for line in self.records() if line["round"] <= round]
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in kept)
        if Path(self._records).exists():
            replace_file(Path(self._records), text.encode())

    def finish(self, model: dict[str, Tensor], summary: dict[str, Any]) -> None:
        tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in model.items()}
        replace_file(self.path / "model.safetensors", safetensors.torch.save(tensors))
        self.keep_values("summary", summary)

    def summary(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((self.path / "summary.json").read_text(encoding="utf-8"))
        return result


def plain(value: Any) -> Any:
    """What JSON can hold: numbers that are not finite become null."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old or the new one, never a part."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    with unfinished.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def _lock(folder: int, path: Path) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise SettingError(f"run folder {str(path)!r}: another process is working in it; wait until it has "
                                   "ended, or stop it") from None
            time.sleep(0.05)
