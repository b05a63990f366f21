"""Pools of scores: what pairwise methods pass from the clients of one epoch to those of the next (cyclic-auc).

Where the paper is silent: a client without positives (or negatives) sends NaN, which the server drops; a score counts
as much as its client's reply does in the mean; a pool too short is shuffled again; one without new scores stays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsaddle.contracts import Batch, Cohort, Data, Federation, Point, Scores
from fedsaddle.maths import streams


class Pools(NamedTuple):
    positives: Scores  # H_1
    negatives: Scores  # H_2

    @property
    def full(self) -> bool:
        return all(len(pool.weight) for pool in self)


def empty(z: Point) -> Pools:
    none = Scores(z.x.new_zeros(0), z.x.new_zeros(0))
    return Pools(none, none)


def renewed(old: Pools, new: Pools) -> Pools:
    """The new scores, weighing 1 on average; the old ones of a class that got none."""
    return Pools(*(Scores(n.value, n.weight / n.weight.mean()) if len(n.weight) else o
                   for o, n in zip(old, new, strict=True)))


def added(pools: Pools, replies: Any, asked: Cohort, answered: Tensor) -> Pools:
    """The pools with the scores of one round's replies: `positives` and `negatives`, [clients, steps, rows, ...]."""
    weight = asked.weight[torch.isin(asked.ids, answered)]
    share = weight / weight.sum()

    def one(pool: Scores, scores: Tensor) -> Scores:
        rows = scores.flatten(0, 2)
        weight = share.to(rows.device, rows.dtype).repeat_interleave(len(rows) // len(share))
        there = ~rows.reshape(len(rows), -1).isnan().any(1) & (weight > 0)
        new = Scores(rows[there], weight[there])
        return Scores(*map(torch.cat, zip(pool, new, strict=True))) if len(pool.weight) else new

    return Pools(one(pools.positives, replies.positives), one(pools.negatives, replies.negatives))


def drawn(pool: Scores, asked: Cohort, federation: Federation, steps: int) -> Scores:
    """R of every client, [clients, steps, rows, ...]: its own shuffle of the pool, without replacement."""
    key = streams.fold(federation.randint(0, 2**53), asked.ids.to(pool.weight.device))
    rows = streams.slots(key, torch.full_like(key, len(pool.weight)), steps * federation.batch_size)
    rows = rows.reshape(len(key), steps, federation.batch_size)
    return Scores(pool.value[rows], pool.weight[rows])


def known(scores: list[tuple[Tensor, Tensor]], data: Data) -> tuple[Tensor, Tensor]:
    """The scores of all steps, NaN where the client has no such row: a reply's shape never depends on the data."""

    def one(score: Tensor, batch: Batch) -> Tensor:
        real = batch.weight.reshape(-1, *[1] * (score.dim() - 1)) > 0
        return torch.where(real, score, torch.nan)

    steps = list(zip(scores, data.minibatches, strict=True))
    first, second = (torch.stack([one(h[side], pair[side]) for h, pair in steps]) for side in (0, 1))
    return first, second
