"""Checkpoints: the whole state of a run in a folder of its own, written atomically, the newest few kept.

`state.safetensors` holds the tensors of the server and of the visited clients, `state.json` the numbers
and the checksums of both. A folder whose checksums do not match is passed over, aloud.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
from torch import Tensor

from fedsaddle.engine.ledger import Traffic
from fedsaddle.engine.training import Progress
from fedsaddle.maths.trees import fill, named_leaves

TENSORS, NUMBERS = "state.safetensors", "state.json"


class Saved(NamedTuple):
    """A checkpoint as read, before the server's state has its form again."""

    round: int
    traffic: Traffic
    server: dict[str, Any]  # leaf by leaf
    clients: dict[str, Tensor]  # an engine's dump
    constants: dict[str, float]  # of the problem

    def progress(self, server: Any) -> Progress:
        """Where the run stood. `server`: any state of the algorithm, for its form and its device."""

        def placed(name: str, leaf: Any) -> Any:
            return self.server[name].to(leaf.device) if isinstance(leaf, Tensor) else self.server[name]

        leaves = {name: placed(name, leaf) for name, leaf in named_leaves(server)}
        return Progress(fill(server, leaves), self.round, self.traffic)


def save(folder: Path, progress: Progress, clients: dict[str, Tensor], constants: dict[str, float], keep: int) -> Path:
    """Write a checkpoint and drop all but the newest `keep`."""
    leaves = dict(named_leaves(progress.server))
    tensors = {f"server.{name}": leaf.detach().cpu().clone() for name, leaf in leaves.items()
               if isinstance(leaf, Tensor)}  # two of them may be one, which the format does not know
    tensors |= {f"clients.{name}": leaf.cpu() for name, leaf in clients.items()}  # may be larger than the memory
    final = folder / f"{progress.round:08d}"
    unfinished = folder / f".{final.name}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    safetensors.torch.save_file(tensors, unfinished / TENSORS)
    numbers = {
        "format": 1, "round": progress.round, "traffic": progress.traffic._asdict(),
        "server": {name: leaf for name, leaf in leaves.items() if not isinstance(leaf, Tensor)},
        "constants": constants, "sha256": _digest(unfinished / TENSORS, sync=True),
    }
    _write(unfinished / NUMBERS, json.dumps({**numbers, "checksum": _checksum(numbers)}, indent=1).encode())
    shutil.rmtree(final, ignore_errors=True)
    unfinished.rename(final)
    _sync_folder(folder)
    for old in _newest_first(folder)[keep:]:
        shutil.rmtree(old)
    return final


def load(folder: Path) -> tuple[Saved | None, list[str]]:
    """The newest valid checkpoint, and in words what was wrong with newer ones."""
    complaints: list[str] = []
    for path in _newest_first(folder):
        try:
            return _read(path), complaints
        except Exception as error:  # whatever is wrong with a damaged file, an older one may be whole
            complaints.append(f"checkpoint {path.name} is damaged ({type(error).__name__}: {error}); "
                              "going on from an older one")
    return None, complaints


def _read(path: Path) -> Saved:
    numbers = json.loads((path / NUMBERS).read_bytes())
    checksum = numbers.pop("checksum")
    if checksum != _checksum(numbers):
        raise ValueError(f"{NUMBERS} does not match its checksum")
    if _digest(path / TENSORS) != numbers["sha256"]:
        raise ValueError(f"{TENSORS} does not match its checksum")
    tensors = safetensors.torch.load_file(path / TENSORS)  # mapped: read where it is looked at
    parts: dict[str, dict[str, Any]] = {"server": dict(numbers["server"]), "clients": {}}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = tensor
    return Saved(numbers["round"], Traffic(**numbers["traffic"]), parts["server"], parts["clients"],
                 numbers["constants"])


def _newest_first(folder: Path) -> list[Path]:
    return sorted((p for p in folder.glob("*") if p.is_dir() and p.name.isdigit()), reverse=True)


def _checksum(numbers: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()


def _digest(path: Path, sync: bool = False) -> str:
    """The checksum of a file, read piece by piece. sync: once it is on the disk."""
    with path.open("rb") as file:
        if sync:
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
