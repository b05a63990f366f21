"""Client states in simulation: rows of growing tensors, allocated when a client is first visited.

A round is a transaction: states written in it are seen by its later asks and kept when it returns. Beyond a limit the
rows live in files mapped into memory, without a name where the system allows it: they are gone with the process.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsaddle.contracts import SettingError
from fedsaddle.engine.devices import sent
from fedsaddle.maths.trees import leaves, map_leaves, named_leaves

PART = 64 << 20  # bytes moved at once between two stores
STEP = 256 << 20  # bytes that a file grows by at most


class _File:
    """The rows of one leaf in a file. The system writes them out and takes their memory back as it needs it."""

    def __init__(self, template: Tensor, folder: Path | None) -> None:
        self.shape, self.dtype, self.folder = template.shape, template.dtype, folder
        self.width = template.numel() * template.element_size()
        self.size = 0
        self.map: mmap.mmap | None = None
        self.handle = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  # open as long as the states are
        weakref.finalize(self, self.handle.close)

    def grown(self, rows: int) -> Tensor:
        """All rows, of which the first are those that were there. Nothing is copied."""
        if not rows * self.width:
            return torch.empty((rows, *self.shape), dtype=self.dtype)
        self._reserve(rows * self.width)
        self.map = mmap.mmap(self.handle.fileno(), self.size)
        return torch.frombuffer(self.map, dtype=self.dtype).reshape(rows, *self.shape)

    def rest(self) -> None:
        """Unmap pages that were touched; they stay in the file, and in the system's cache while there is room."""
        if self.map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self.map.madvise(mmap.MADV_DONTNEED)

    def _reserve(self, size: int) -> None:
        """Take the disk's room now: where there is none, writing to a mapped page would end the process."""
        try:
            _allocate(self.handle.fileno(), self.size, size)
        except OSError as error:
            raise SettingError(f"client states: {size} bytes do not fit into {self.folder or tempfile.gettempdir()} "
                               f"({error}); make room there, choose another folder, or raise the limit of states in "
                               "memory") from error
        self.size = size


def _allocate(handle: int, start: int, end: int) -> None:
    try:
        os.posix_fallocate(handle, start, end - start)
    except (AttributeError, OSError) as error:  # not every system can, nor every file system
        if getattr(error, "errno", errno.EINVAL) not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        os.ftruncate(handle, end)


class _Slots:
    """A row for every client ever written, found through a map from client to row."""

    def __init__(self, template: Any, clients: int, device: torch.device, limit: int | None,
                 folder: Path | None) -> None:
        self.template, self.device, self.limit, self.folder = template, device, limit, folder
        self.width = sum(leaf.numel() * leaf.element_size() for leaf in leaves(template))
        self.clients = clients
        self.row_of = torch.full((clients,), -1, dtype=torch.int32)  # on the host, as the questions are
        self._ids = torch.zeros(0, dtype=torch.int64)  # the client of every row, and room for more
        self.used = self.rows = 0
        self.store = map_leaves(lambda leaf: leaf.new_empty((0, *leaf.shape)), template)
        self.files: Any = None  # of every leaf, once the rows have left the memory

    @property
    def ids(self) -> Tensor:
        return self._ids[: self.used]

    @property
    def values(self) -> list[Tensor]:
        """Of every leaf the rows in use, in the order of `ids`; not copied."""
        return [leaf[: self.used] for leaf in leaves(self.store)]

    @property
    def place(self) -> torch.device:
        return self.device if self.files is None else torch.device("cpu")

    def write(self, ids: Tensor, values: list[Tensor]) -> None:
        row = self.row_of[ids]
        fresh = ids[row < 0]
        if len(fresh):
            self._enter(fresh)
            row = self.row_of[ids]
        row = sent(row.long(), self.place)
        for store, value in zip(leaves(self.store), values, strict=True):
            store[row] = value.to(self.place)

    def take(self, ids: Tensor, values: list[Tensor]) -> None:
        """Write any number of rows, wherever they are, with little memory in between."""
        rows = max(1, PART // max(1, self.width))
        for first in range(0, len(ids), rows):
            part = slice(first, first + rows)
            self.write(ids[part], [value[part] for value in values])

    def read(self, ids: Tensor, otherwise: Any) -> Any:
        """The states of these clients; `otherwise` for those without a row."""
        if not self.used:
            return otherwise
        row = self.row_of[ids].long()
        known, row = row >= 0, sent(row.clamp(min=0), self.place)
        if bool(known.all()):
            return map_leaves(lambda store: store[row].to(self.device), self.store)
        there = sent(known, self.device)

        def pick(store: Tensor, default: Tensor) -> Tensor:
            return torch.where(there.reshape(-1, *[1] * (store.dim() - 1)), store[row].to(self.device), default)

        return map_leaves(pick, self.store, otherwise)

    def without(self, dropped: Tensor) -> _Slots:
        """A store of its own with all rows but these."""
        kept = _Slots(self.template, self.clients, self.device, self.limit, self.folder)
        for first in range(0, self.used, rows := max(1, PART // max(1, self.width))):
            part = slice(first, min(first + rows, self.used))
            stay = (~dropped[part]).nonzero().squeeze(1)
            kept.write(self.ids[part][stay], [value[part][sent(stay, self.place)] for value in self.values])
        return kept

    def clear(self) -> None:
        if self.used:
            self.row_of[self.ids] = -1
            self.used = 0

    def rest(self) -> None:
        for file in leaves(self.files):
            file.rest()

    def _enter(self, fresh: Tensor) -> None:
        """Give these clients rows."""
        first, self.used = self.used, self.used + len(fresh)
        if self.used > len(self._ids):
            self._ids = _larger(self._ids, max(self.used, 2 * len(self._ids)))
        self._ids[first : self.used] = fresh
        self.row_of[fresh] = torch.arange(first, self.used, dtype=torch.int32)
        if self.used > self.rows:
            self._grow(self.used)

    def _grow(self, needed: int) -> None:
        """Twice as many rows, so that growing costs little per client; in a file a step more, which costs nothing."""
        most = None if self.limit is None else self.limit // max(1, self.width)
        if self.files is None and (most is None or needed <= most):
            self.rows = max(needed, 2 * self.rows) if most is None else max(needed, min(2 * self.rows, most))
            self.store = map_leaves(lambda leaf: _larger(leaf, self.rows), self.store)
            return
        self.rows = max(needed, min(2 * self.rows, self.rows + STEP // max(1, self.width)))
        before = None if self.files else self.store
        self.files = self.files or map_leaves(lambda leaf: _File(leaf, self.folder), self.template)
        self.store = map_leaves(lambda file: file.grown(self.rows), self.files)
        if before is not None:
            map_leaves(lambda new, old: new[: len(old)].copy_(old), self.store, before)


def _larger(values: Tensor, rows: int) -> Tensor:
    larger = values.new_empty((rows, *values.shape[1:]))
    larger[: len(values)] = values
    return larger


class ClientStates:
    """The states of all clients under a transaction.

    limit: bytes of states held on the device, half of them for those kept and half for those of the round; what is
    more lives in files in `folder`, or where temporary files go. None: everything is held on the device.
    """

    def __init__(self, first: Any, clients: int, device: torch.device, limit: int | None = None,
                 folder: Path | None = None) -> None:
        self.first = first  # the state of a client never visited
        half = None if limit is None else limit // 2
        mapped = 0 if self.stateless else clients
        self._kept, self._pending = (_Slots(first, mapped, device, half, folder) for _ in range(2))

    @property
    def stateless(self) -> bool:
        return not leaves(self.first)

    @property
    def held(self) -> int:
        """Bytes of states on the device."""
        return sum(slots.rows * slots.width for slots in (self._kept, self._pending) if slots.files is None)

    @property
    def on_disk(self) -> int:
        """Bytes of states in files."""
        return sum(file.size for slots in (self._kept, self._pending) for file in leaves(slots.files))

    def settle_in(self, folder: Path) -> None:
        """Where files are made from now on."""
        self._kept.folder = self._pending.folder = folder

    def read(self, ids: Tensor) -> Any:
        """One row per client, on a leading axis. Numbers of clients are on the host, states on the device."""
        fresh = map_leaves(lambda leaf: leaf.expand(len(ids), *leaf.shape), self.first)
        if self.stateless:
            return fresh
        return self._pending.read(ids, self._kept.read(ids, fresh))

    def write(self, ids: Tensor, states: Any) -> None:
        if not self.stateless:
            self._pending.write(ids, leaves(states))

    @property
    def visited(self) -> int:
        """Clients with a state of their own."""
        return self._kept.used

    def keep_only(self, mine: Callable[[Tensor], Tensor]) -> None:
        """Drop the states of other clients: of those numbers for which `mine` is false."""
        self._pending = self._pending.without(torch.ones(self._pending.used, dtype=torch.bool))  # files are not shared
        if self._kept.used:
            self._kept = self._kept.without(~mine(self._kept.ids))

    def commit(self) -> None:
        if self._pending.used:
            self._kept.take(self._pending.ids, self._pending.values)
            self._pending.clear()
            for slots in (self._kept, self._pending):
                slots.rest()

    def rollback(self) -> None:
        self._pending.clear()

    def dump(self) -> dict[str, Tensor]:
        """The kept states as named tensors, for a checkpoint.

        States on the device are copied, those in files are not: they are too many. Write them before the next commit.
        """
        if not self._kept.used:
            return {}
        names = [name for name, _ in named_leaves(self.first)]
        values = [leaf.clone() if self._kept.files is None else leaf for leaf in self._kept.values]
        return {"ids": self._kept.ids.clone(), **dict(zip(names, values, strict=True))}

    def nothing(self) -> dict[str, Tensor]:
        """A dump of no clients."""
        rows = {name: leaf.new_zeros((0, *leaf.shape)) for name, leaf in named_leaves(self.first)}
        return {"ids": torch.zeros(0, dtype=torch.int64), **rows}

    def load(self, tensors: dict[str, Tensor]) -> None:
        if tensors:
            self._kept.take(tensors["ids"], [tensors[name] for name, _ in named_leaves(self.first)])
            self._kept.rest()
