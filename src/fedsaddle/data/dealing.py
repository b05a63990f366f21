"""From a data set to clients: thin out the positives, deal the rows, flip labels, choose the positive classes.

All of it touches training rows only; the test rows keep their labels and their balance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsaddle.contracts import Rows, SettingError, setting
from fedsaddle.data.clients import Clients, Run, clients_from_arrays
from fedsaddle.data.dataset import DataSet
from fedsaddle.data.deck import OUT, Deck, key, shuffle
from fedsaddle.maths import streams

USUAL = 100  # clients, where a partition has no number of its own

@dataclass(frozen=True)
class Dealing:
    """How a data set becomes clients."""

    clients: int | None = setting(None, f"number of clients; none: {USUAL}, or one for each value of by-attribute",
                                  at_least=1)
    positive: int | str | tuple[int | str, ...] | None = setting(None, "the positive class by number or name, or a "
                                                                 "list of them; the rest is negative")
    keep_positives: float = setting(1.0, "share of the positives that is kept, before dealing", above=0.0, at_most=1.0)
    flip_positives: float = setting(0.0, "share of the positives that become negatives, after dealing", at_least=0.0,
                                    at_most=1.0)
    flip_labels: float = setting(0.0, "share of all rows that get another label, any alike, after dealing",
                                 at_least=0.0, at_most=1.0)
    hold_out: float = setting(0.0, "share of every client's rows that is kept out of training: run.per_client then "
                              "measures on these", at_least=0.0, at_most=0.9)
    seed: int = setting(0, "seed of the test split, of the partition and of the changes above")


class Hand(NamedTuple):
    """The training rows that somebody gets: their numbers in the data set, their owners, and their targets."""

    rows: Tensor
    owner: Tensor
    targets: Tensor  # as the problem sees them


def hand_out(data: DataSet, partition: Any, dealing: Dealing) -> Hand:
    """Deal the training rows by a partition."""
    chosen = positives(data, dealing)
    targets, seed = data.train.targets, dealing.seed
    mask = None if chosen is None else torch.isin(targets, torch.tensor(chosen))
    rows = torch.arange(len(targets))
    if dealing.keep_positives < 1:
        rows = _thinned(_wanted(mask, "keep_positives"), dealing.keep_positives, seed)
    deck = Deck(targets[rows], None if mask is None else mask[rows],
                {name: attribute.train[rows] for name, attribute in data.attributes.items()})
    natural = getattr(partition, "natural", None)
    clients = dealing.clients or (natural(deck) if natural else USUAL)
    owner = partition.deal(deck, clients, seed)
    rows, owner = rows[owner != OUT], owner[owner != OUT]
    targets = targets[rows] if dealing.positive is None or mask is None else mask[rows].long()
    if dealing.flip_positives:
        positive = _wanted(mask, "flip_positives")[rows]
        targets = torch.where(_chosen(positive, dealing.flip_positives, seed, 4), 0, targets)
    if dealing.flip_labels:
        targets = _flipped(targets, 2 if dealing.positive is not None else data.classes, dealing.flip_labels, seed)
    return Hand(rows, owner, targets)


def clients_of(data: DataSet, hand: Hand) -> Clients:
    """The clients' table."""
    everything = len(hand.rows) == len(data.train.targets)
    inputs = data.train.inputs if everything else data.train.inputs[hand.rows]
    return clients_from_arrays(inputs, hand.targets, hand.owner)


def held_out(clients: Clients, share: float, seed: int) -> tuple[Clients, Clients]:
    """Every client's rows in two: those that stay, and this share of them, rounded, drawn by the seed. Both have at
    least one row of each."""
    size = clients.run.size
    if not torch.equal(clients.run.start, size.cumsum(0) - size) or int(size.sum()) != len(clients.targets):
        raise SettingError(f"data.hold_out = {share}: the clients of this data set share rows; leave it out")
    if int(size.min()) < 2:
        raise SettingError(f"data.hold_out = {share}: client {int(size.argmin())} has one row only, which cannot be "
                           "both kept and held out; leave it out, or take fewer clients")
    count = (share * size.double()).round().long().clamp(min=1).minimum(size - 1)
    owner = torch.arange(len(size)).repeat_interleave(size)
    order = torch.argsort(owner + streams.stream(key(seed, 9), len(owner)).double(), stable=True)
    held = torch.zeros(len(owner), dtype=torch.bool)
    held[order] = torch.arange(len(owner)) - clients.run.start[owner] < count[owner]
    stay, away = (Clients(clients.inputs[rows], clients.targets[rows], Run(counts.cumsum(0) - counts, counts))
                  for rows, counts in ((~held, size - count), (held, count)))
    return stay, away


def rows_for_test(data: DataSet, dealing: Dealing) -> Rows:
    """The test rows with the targets that the problem sees."""
    if dealing.positive is None:
        return data.test
    return data.test._replace(targets=torch.isin(data.test.targets, torch.tensor(positives(data, dealing))).long())


def positives(data: DataSet, dealing: Dealing) -> tuple[int, ...] | None:
    """The numbers of the positive classes: those set, or class 1 of two; None where there are no positives."""
    wanted = dealing.positive
    if wanted is None:
        return (1,) if data.classes == 2 and data.train.targets.dim() == 1 else None
    numbers = tuple(_number(data, each) for each in (wanted if isinstance(wanted, tuple) else (wanted,)))
    if data.train.targets.dim() != 1:
        raise SettingError(f"data.positive = {wanted!r}: the rows of this data set have no single label; leave it out")
    if not numbers or len(set(numbers)) == data.classes:
        raise SettingError(f"data.positive = {wanted!r}: leaves one side empty; name some of the {data.classes} "
                           "classes, not all of them")
    for part, rows in (("training", data.train), ("test", data.test)):
        if not bool(torch.isin(rows.targets, torch.tensor(numbers)).any()):
            known = ", ".join(str(t) for t in rows.targets.unique().tolist())
            raise SettingError(f"data.positive = {wanted!r}: no {part} row has this label; choose one of {known}")
    return numbers


def _number(data: DataSet, label: int | str) -> int:
    names = [name.lower() for name in data.names]
    if isinstance(label, str) and label.lower() in names:
        return names.index(label.lower())
    if isinstance(label, int) and not isinstance(label, bool) and 0 <= label < data.classes:
        return label
    known = f", or of {', '.join(data.names)}" if data.names else ""
    raise SettingError(f"data.positive = {label!r}: is no class; choose one of 0 to {data.classes - 1}{known}")


def _wanted(mask: Tensor | None, name: str) -> Tensor:
    if mask is None:
        raise SettingError(f"data.{name}: there are no positives; set data.positive to the positive class")
    return mask


def _thinned(positive: Tensor, share: float, seed: int) -> Tensor:
    """The rows that stay when this share of the positives is kept."""
    kept = _chosen(positive, share, seed, 3)
    if not bool(kept.any()):
        raise SettingError(f"data.keep_positives = {share}: leaves none of the {int(positive.sum())} positives; raise "
                           "it")
    return (~positive | kept).nonzero().flatten()


def _chosen(among: Tensor, share: float, seed: int, number: int) -> Tensor:
    """A mask of this share of the rows of a mask, rounded, drawn by the seed."""
    order = shuffle(len(among), seed, number)
    order = order[among[order]]
    mask = torch.zeros_like(among)
    mask[order[: round(share * len(order))]] = True
    return mask


def _flipped(targets: Tensor, classes: int, share: float, seed: int) -> Tensor:
    if targets.dim() != 1:
        raise SettingError("data.flip_labels: the rows of this data set have no single label; leave it out")
    chosen = _chosen(torch.ones(len(targets), dtype=torch.bool), share, seed, 5)
    by = 1 + (streams.stream(key(seed, 6), len(targets)) * (classes - 1)).long()  # never 0: always another class
    return torch.where(chosen, (targets + by) % classes, targets)
