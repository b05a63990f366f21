"""How the rows of a data set are dealt out to clients. `PARTITIONS`: the settings dataclass of each way, by name.

`deal(deck, clients, seed)` gives the owner of every training row, 0 .. clients - 1, or OUT for a row that nobody gets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsaddle.contracts import setting
from fedsaddle.data.deck import Deck, blocks, check, key, labels, rank_within, shuffle
from fedsaddle.data.groups import ByAttribute, ClassGroups

Whole = NDArray[np.int64]


@dataclass(frozen=True)
class IID:
    """Shuffled and cut into blocks whose sizes differ by at most one row."""

    def deal(self, deck: Deck, clients: int, seed: int) -> Tensor:
        check(deck, clients)
        return blocks(shuffle(len(deck.targets), seed), clients)


@dataclass(frozen=True)
class LabelSorted:
    """Sorted by label, in the given order within one, and cut into equal blocks: the setting of the cdma paper."""

    similarity: float = setting(0.0, "share of the rows dealt out at random instead", at_least=0.0, at_most=1.0)

    def deal(self, deck: Deck, clients: int, seed: int) -> Tensor:
        check(deck, clients)
        order = torch.argsort(labels(deck), stable=True)
        # Rows at randomly chosen places change places among themselves; the blocks stay equal and the rest sorted.
        moved = shuffle(len(order), seed)[: round(self.similarity * len(order))]
        order[moved.sort().values] = order[moved]
        return blocks(order, clients)


@dataclass(frozen=True)
class Dirichlet:
    """Skewed by draws from a Dirichlet distribution; nobody stays empty.

    Natural sizes: each class is split over the clients in drawn shares. Equal sizes: each client draws its own mix of
    the classes and is filled up to its size; a class that has run out is left out of the later clients' mixes, which
    makes it one client after the other: a minute for a million.
    """

    concentration: float = setting(0.5, "near 0: few clients hold a class; large: all hold the same share", above=0.0)
    sizes: str = setting("natural", "clients' sizes: as they come, or equal", choices=("natural", "equal"))

    def deal(self, deck: Deck, clients: int, seed: int) -> Tensor:
        check(deck, clients)
        kind = labels(deck).cpu().numpy()
        random = np.random.Generator(np.random.Philox(key=key(seed)))
        made = _equal if self.sizes == "equal" else _natural
        return torch.from_numpy(made(kind, clients, self.concentration, random))


PARTITIONS: dict[str, type[Any]] = {
    "iid": IID, "label-sorted": LabelSorted, "dirichlet": Dirichlet, "by-attribute": ByAttribute,
    "class-groups": ClassGroups,
}


def _natural(kind: Whole, clients: int, concentration: float, random: np.random.Generator) -> Whole:
    owner = np.empty(len(kind), dtype=np.int64)
    for label in np.unique(kind):
        rows = random.permutation(np.flatnonzero(kind == label))
        shares = random.dirichlet(np.full(clients, concentration))
        ends = np.round(shares.cumsum() * len(rows)).astype(np.int64)
        owner[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right").clip(max=clients - 1)
    size = np.bincount(owner, minlength=clients)
    empty = np.flatnonzero(size == 0)
    order = random.permutation(len(kind))  # a row from anyone who keeps one, to whoever has none
    giver = owner[order]
    spare = order[rank_within(torch.from_numpy(giver)).numpy() < size[giver] - 1]
    owner[spare[: len(empty)]] = empty[::-1]
    return owner


def _equal(kind: Whole, clients: int, concentration: float, random: np.random.Generator) -> Whole:
    owner = np.empty(len(kind), dtype=np.int64)
    rows = [random.permutation(np.flatnonzero(kind == label)) for label in np.unique(kind)]
    left = np.array([len(each) for each in rows])
    share = concentration * len(left) * left / left.sum()  # the mean mix is that of the data
    for client in random.permutation(clients):
        mix = random.dirichlet(share)
        missing = (client + 1) * len(kind) // clients - client * len(kind) // clients
        while missing:
            chance = np.where(left > 0, mix, 0.0)
            chance = chance if chance.sum() > 0 else left.astype(np.float64)
            take = np.minimum(random.multinomial(missing, chance / chance.sum()), left)
            for label in np.flatnonzero(take):
                owner[rows[label][left[label] - take[label] : left[label]]] = client
            left = left - take
            missing -= int(take.sum())
    return owner
