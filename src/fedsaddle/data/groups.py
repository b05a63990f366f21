"""Partitions by what rows have in common: the value of an attribute, or a group of classes (papers: codasca)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from fedsaddle.contracts import SettingError, setting
from fedsaddle.data.deck import OUT, Deck, check, labels, rank_within, shuffle


@dataclass(frozen=True)
class ByAttribute:
    """Every client holds rows of one value of an attribute.

    data.clients left out: one client for each value. As many times the values: so many clients share the rows of each.
    Fewer than the values: those with the most rows, and the rest is left out.
    """

    attribute: str = setting("", "which attribute, such as gender, race, role or state; empty: the only one there is")

    def natural(self, deck: Deck) -> int:
        """The number of clients where none is set."""
        return len(self._values(deck).unique())

    def deal(self, deck: Deck, clients: int, seed: int) -> Tensor:
        check(deck, clients)
        value = self._values(deck)
        present, size = torch.unique(value, return_counts=True)
        each = max(1, clients // len(present))
        if clients > len(present) and clients % len(present):
            raise SettingError(f"data.clients = {clients}: is no multiple of the {len(present)} values of "
                               f"{self._name(deck)!r}; set it to one, or to at most {len(present)}")
        kept = torch.argsort(size, descending=True, stable=True)[: clients // each].sort().values
        if int(size[kept].min()) < each:
            raise SettingError(f"data.clients = {clients}: {each} clients would share the {int(size[kept].min())} rows "
                               f"of one value of {self._name(deck)!r}; ask for fewer clients")
        order = shuffle(len(value), seed)
        kind = torch.searchsorted(present, value[order])
        number = torch.full_like(present, OUT)  # of every value among those kept
        number[kept] = torch.arange(len(kept), dtype=number.dtype)
        part = rank_within(kind) * each // size[kind]
        owner = torch.empty_like(value)
        owner[order] = torch.where(number[kind] == OUT, OUT, number[kind] * each + part).to(value.dtype)
        return owner

    def _name(self, deck: Deck) -> str:
        known = sorted(deck.attributes)
        if not self.attribute and len(known) == 1:
            return known[0]
        if self.attribute not in deck.attributes:
            raise SettingError(f"data.partition.attribute = {self.attribute!r}: the data set has "
                               + (f"the attributes {', '.join(known)}; choose one" if known else
                                  "no attributes; choose another partition, such as label-sorted"))
        return self.attribute

    def _values(self, deck: Deck) -> Tensor:
        return deck.attributes[self._name(deck)]


@dataclass(frozen=True)
class ClassGroups:
    """Disjoint groups of classes: the IH construction of the codasca paper.

    The classes of data.positive and the others are each shuffled and cut into as many groups as there are clients;
    with fewer classes than clients, neighbours share the rows of a class. Then positives are removed at random.
    """

    imratio: float = setting(0.1, "share of positives left at every client; a client that has fewer keeps all, and 1 "
                             "removes none", above=0.0, at_most=1.0)

    def deal(self, deck: Deck, clients: int, seed: int) -> Tensor:
        check(deck, clients)
        if deck.positive is None or bool(deck.positive.all()) or not bool(deck.positive.any()):
            raise SettingError("data.partition = 'class-groups': needs positive and negative classes; set "
                               "data.positive to the positive ones, such as [0, 1, 2, 3, 4]")
        owner = torch.full_like(labels(deck), OUT)
        for half, mine in enumerate((deck.positive, ~deck.positive)):
            kinds = deck.targets[mine].unique()
            kinds = kinds[shuffle(len(kinds), seed, 7 + half)]
            for client, sharing, chosen in _shares(kinds, clients):
                rows = torch.isin(deck.targets, chosen).nonzero().flatten()
                # cut into parts from len(rows) * part // sharing on
                owner[rows] = client + ((torch.arange(len(rows)) + 1) * sharing - 1) // max(1, len(rows))
        if self.imratio < 1:
            owner[_surplus(owner, deck.positive, self.imratio, clients, seed)] = OUT
        size = torch.bincount(owner[owner != OUT], minlength=clients)
        if not bool(size.all()):
            raise SettingError(f"data.clients = {clients}: client {int(size.argmin())} is left without rows; ask for "
                               "fewer clients, or raise data.partition.imratio")
        return owner


def _shares(kinds: Tensor, clients: int) -> list[tuple[int, int, Tensor]]:
    """(client, sharing, classes): so many clients from this one on share the rows of these classes equally."""
    classes = len(kinds)
    if clients <= classes:
        group = torch.arange(classes) * clients // classes
        return [(client, 1, kinds[group == client]) for client in range(clients)]
    firsts = [-(-kind * clients // classes) for kind in range(classes + 1)]
    return [(first, end - first, kinds[kind : kind + 1]) for kind, (first, end) in enumerate(pairwise(firsts))]


def _surplus(owner: Tensor, positive: Tensor, imratio: float, clients: int, seed: int) -> Tensor:
    """The positives to remove, at random, so that no client has a larger share of them."""
    order = shuffle(len(owner), seed, 2)
    order = order[positive[order] & (owner[order] != OUT)]
    negatives = torch.bincount(owner[~positive & (owner != OUT)], minlength=clients)
    kept = torch.round(imratio / (1 - imratio) * negatives.double()).long()
    return order[rank_within(owner[order]) >= kept[owner[order]]]
