"""What a partition sees of the training rows, and the parts that partitions are made of."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from fedsaddle.contracts import SettingError
from fedsaddle.maths import keys, streams

OUT = -1  # the owner of a row that nobody gets


class Deck(NamedTuple):
    """The training rows, as far as dealing is concerned."""

    targets: Tensor
    positive: Tensor | None = None  # whether each row is a positive, where the task has positives
    attributes: Mapping[str, Tensor] = MappingProxyType({})


def key(seed: int, number: int = 1) -> int:
    """Of a draw while dealing. 0: the split of a data set, 1, 2, 7, 8: partitions, 3 to 6: changes of the rows,
    9: those held out."""
    return keys.address(seed, keys.Purpose.PARTITION, number)


def shuffle(rows: int, seed: int, number: int = 1) -> Tensor:
    return torch.argsort(streams.stream(key(seed, number), rows), stable=True)


def blocks(order: Tensor, clients: int) -> Tensor:
    """The owner of each row when the rows in this order are cut into contiguous blocks."""
    owner = torch.empty_like(order)
    owner[order] = torch.arange(len(order)) * clients // max(len(order), 1)
    return owner


def rank_within(group: Tensor) -> Tensor:
    """How many earlier rows are of the same group, for every row. Groups are whole numbers."""
    order = torch.argsort(group, stable=True)
    ordered = group[order]
    place = torch.arange(len(group))
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    rank = torch.empty_like(place)
    rank[order] = place - torch.where(first, place, 0).cummax(0).values
    return rank


def labels(deck: Deck) -> Tensor:
    if deck.targets.dim() != 1:
        raise SettingError(f"partition: targets of shape {tuple(deck.targets.shape)} are no labels; give each row one "
                           "label, or use the partition iid or by-attribute")
    return deck.targets


def check(deck: Deck, clients: int) -> None:
    if clients < 1:
        raise SettingError(f"clients: {clients} clients cannot hold any data; give at least 1")
    if clients > len(deck.targets):
        raise SettingError(f"clients: {clients} clients but only {len(deck.targets)} rows of training data; every "
                           "client needs a row, so ask for fewer clients")
