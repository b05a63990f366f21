"""The replies of a chunk reduced to what is kept of them, and the running sums over chunks and processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedsaddle.engine.federation import Ask, Outcome, sort_fields
from fedsaddle.engine.ledger import Size, size_of
from fedsaddle.engine.ranks import Ranks
from fedsaddle.maths.trees import map_leaves

MEAN, SUM, EACH = "mean", "sum", "each"


def reduced(ask: Ask, reply: Any, mean_weight: Tensor, sum_weight: Tensor) -> Any:
    """Of a chunk's replies: weighted sums of the fields that are averaged or summed, the others as they are."""
    where = sort_fields(reply._fields, ask.collect, ask.summed)

    def weighted(leaf: Tensor, weight: Tensor) -> Tensor:
        total: Tensor = torch.tensordot(weight, leaf.to(weight.dtype), 1)
        return total

    def one(name: str) -> Any:
        value = getattr(reply, name)
        if where[name] == EACH:
            return value
        weight = mean_weight if where[name] == MEAN else sum_weight
        return map_leaves(lambda leaf: weighted(leaf, weight), value)

    return type(reply)(*(one(name) for name in reply._fields))


class Sums:
    """Running sums over the chunks of one process's share."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.totals: dict[str, Any] = {}
        self.parts: dict[str, list[Any]] = {}
        self.order: list[Tensor] = []

    def add(self, part: Tensor, kept: Any, size: Size) -> None:
        """part: positions of the clients in the ask; kept: their reduced replies; size: of one reply."""
        self.type, self.size = type(kept), size
        self.where = sort_fields(kept._fields, self.ask.collect, self.ask.summed)
        self.order.append(part)
        for name, kind in self.where.items():
            value = getattr(kept, name)
            if kind == EACH:
                self.parts.setdefault(name, []).append(value)
            else:
                self.totals[name] = map_leaves(torch.add, self.totals[name], value) if name in self.totals else value

    def outcome(self, ranks: Ranks, shares: list[Tensor]) -> Outcome:
        """Over all processes; collected fields in the order of the ask."""
        totals = dict(zip(self.totals, ranks.total(tuple(self.totals.values())), strict=True))
        counts = [share.shape[0] for share in shares]
        if self.parts:
            own = torch.argsort(torch.cat(self.order)) if counts[ranks.rank] else torch.zeros(0, dtype=torch.int64)
            back = torch.argsort(torch.cat([share.sort().values for share in shares]))

        def in_order(*leaf: Tensor) -> Tensor:
            rows = torch.cat(leaf)[own.to(leaf[0].device)]
            return ranks.gathered(rows, counts)[back.to(leaf[0].device)]

        for name, values in self.parts.items():
            totals[name] = map_leaves(in_order, *values)

        def fields(kind: str) -> Any:
            return self.type(*(totals[name] if kind == k else None for name, k in self.where.items()))

        return Outcome(fields(MEAN), fields(SUM), fields(EACH), self.size)


def reply_size(reply: Any, clients: int) -> Size:
    """The size of one of so many replies."""
    return Size(*(total // clients for total in size_of(reply)))
