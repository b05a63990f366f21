"""How the rows of a data set are dealt out to clients. `PARTITIONS`: the settings dataclass of each way, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsaddle.contracts import SettingError, setting
from fedsaddle.maths import keys, streams


@dataclass(frozen=True)
class IID:
    """Shuffled and cut into blocks whose sizes differ by at most one row."""

    def deal(self, targets: Tensor, clients: int, seed: int) -> Tensor:
        """The owner of each row."""
        _check(targets, clients)
        return _blocks(_shuffle(len(targets), seed), clients)


@dataclass(frozen=True)
class LabelSorted:
    """Sorted by label, in the given order within one, and cut into equal blocks: the setting of the cdma paper."""

    similarity: float = setting(0.0, "share of the rows dealt out at random instead", at_least=0.0, at_most=1.0)

    def deal(self, targets: Tensor, clients: int, seed: int) -> Tensor:
        """The owner of each row."""
        _check(targets, clients)
        order = torch.argsort(_labels(targets), stable=True)
        # Rows at randomly chosen places change places among themselves; the blocks stay equal and the rest sorted.
        moved = _shuffle(len(order), seed)[: round(self.similarity * len(order))]
        order[moved.sort().values] = order[moved]
        return _blocks(order, clients)


@dataclass(frozen=True)
class Dirichlet:
    """Each class is split over the clients in shares drawn from a Dirichlet distribution; nobody stays empty."""

    concentration: float = setting(0.5, "near 0: few clients hold a class; large: all hold the same share", above=0.0)

    def deal(self, targets: Tensor, clients: int, seed: int) -> Tensor:
        """The owner of each row."""
        _check(targets, clients)
        labels = _labels(targets).cpu().numpy()
        random = np.random.Generator(np.random.Philox(key=_key(seed)))
        owner = np.empty(len(labels), dtype=np.int64)
        for label in np.unique(labels):
            rows = random.permutation(np.flatnonzero(labels == label))
            shares = random.dirichlet(np.full(clients, self.concentration))
            ends = np.round(shares.cumsum() * len(rows)).astype(np.int64)
            owner[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right").clip(max=clients - 1)
        size = np.bincount(owner, minlength=clients)
        empty = list(np.flatnonzero(size == 0))
        for row in random.permutation(len(labels)):  # a row from anyone who keeps one, to whoever has none
            if not empty:
                break
            if size[owner[row]] > 1:
                size[owner[row]] -= 1
                owner[row] = empty.pop()
                size[owner[row]] = 1
        return torch.from_numpy(owner)


PARTITIONS: dict[str, type[Any]] = {"iid": IID, "label-sorted": LabelSorted, "dirichlet": Dirichlet}


def _key(seed: int) -> int:
    return keys.address(seed, keys.Purpose.PARTITION, 1)  # 0 is the split of a data set


def _shuffle(rows: int, seed: int) -> Tensor:
    return torch.argsort(streams.stream(_key(seed), rows), stable=True)


def _blocks(order: Tensor, clients: int) -> Tensor:
    """The owner of each row when the rows in this order are cut into contiguous blocks."""
    owner = torch.empty_like(order)
    owner[order] = torch.arange(len(order)) * clients // len(order)
    return owner


def _labels(targets: Tensor) -> Tensor:
    if targets.dim() != 1:
        raise SettingError(f"partition: targets of shape {tuple(targets.shape)} are no labels; give each row one "
                           "label, or use the partition iid")
    return targets


def _check(targets: Tensor, clients: int) -> None:
    if clients < 1:
        raise SettingError(f"clients: {clients} clients cannot hold any data; give at least 1")
    if clients > len(targets):
        raise SettingError(f"clients: {clients} clients but only {len(targets)} rows of training data; every client "
                           "needs a row, so ask for fewer clients")
