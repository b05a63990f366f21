"""Client states in simulation: rows of growing tensors, allocated when a client is first visited.

A round is a transaction: states written in it are seen by its later asks and kept when it returns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedsaddle.maths.trees import leaves, map_leaves, named_leaves


class _Slots:
    """A row for every client ever written, found through a map from client to row."""

    def __init__(self, template: Any, clients: int, device: torch.device) -> None:
        self.template = template
        self.row_of = torch.full((clients,), -1, dtype=torch.int32, device=device)
        self.ids = torch.zeros(0, dtype=torch.int64, device=device)  # the client of every row
        self.store = map_leaves(lambda leaf: leaf.new_empty((0, *leaf.shape)), template)

    @property
    def used(self) -> int:
        return len(self.ids)

    def write(self, ids: Tensor, states: Any) -> None:
        fresh = ids[self.row_of[ids] < 0]
        if len(fresh):
            first, needed = self.used, self.used + len(fresh)
            self.row_of[fresh] = torch.arange(first, needed, dtype=torch.int32, device=ids.device)
            self.ids = torch.cat([self.ids, fresh])
            if needed > len(leaves(self.store)[0]):
                self.store = map_leaves(lambda leaf: _grown(leaf, needed), self.store)
        rows = self.row_of[ids].long()
        for store, value in zip(leaves(self.store), leaves(states), strict=True):
            store[rows] = value

    def read(self, ids: Tensor, otherwise: Any) -> Any:
        """The states of these clients; `otherwise` for those without a row."""
        if not self.used:
            return otherwise
        row = self.row_of[ids].long()
        known = row >= 0
        row = row.clamp(min=0)

        def pick(store: Tensor, default: Tensor) -> Tensor:
            return torch.where(known.reshape(-1, *[1] * (store.dim() - 1)), store[row], default)

        return map_leaves(pick, self.store, otherwise)

    def clear(self) -> None:
        self.row_of[self.ids] = -1
        self.ids = self.ids[:0]


def _grown(store: Tensor, needed: int) -> Tensor:
    """At least twice as many rows, so that growing costs little per client."""
    larger = store.new_zeros((max(needed, 2 * len(store)), *store.shape[1:]))
    larger[: len(store)] = store
    return larger


class ClientStates:
    """The states of all clients under a transaction."""

    def __init__(self, first: Any, clients: int, device: torch.device) -> None:
        self.first = first  # the state of a client never visited
        self._kept = _Slots(first, clients, device)
        self._pending = _Slots(first, clients, device)

    @property
    def stateless(self) -> bool:
        return not leaves(self.first)

    def read(self, ids: Tensor) -> Any:
        """One row per client, on a leading axis."""
        fresh = map_leaves(lambda leaf: leaf.expand(len(ids), *leaf.shape), self.first)
        if self.stateless:
            return fresh
        return self._pending.read(ids, self._kept.read(ids, fresh))

    def write(self, ids: Tensor, states: Any) -> None:
        if not self.stateless:
            self._pending.write(ids, states)

    def commit(self) -> None:
        if self._pending.used:
            self._kept.write(self._pending.ids, map_leaves(lambda s: s[: self._pending.used], self._pending.store))
            self._pending.clear()

    def rollback(self) -> None:
        self._pending.clear()

    def dump(self) -> dict[str, Tensor]:
        """The kept states as named tensors, for a checkpoint."""
        if not self._kept.used:
            return {}
        used = self._kept.used
        return {"ids": self._kept.ids.clone(), **{n: leaf[:used].clone() for n, leaf in named_leaves(self._kept.store)}}

    def load(self, tensors: dict[str, Tensor]) -> None:
        if tensors:
            device = self._kept.ids.device
            values = [tensors[name].to(device) for name, _ in named_leaves(self._kept.store)]
            names = iter(values)
            self._kept.write(tensors["ids"].to(device), map_leaves(lambda _: next(names), self.first))
