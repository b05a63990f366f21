"""Keyed random numbers for whole cohorts at once, on any device: what `keys` defines, in tensors.

torch has no unsigned 64-bit arithmetic; int64 multiplication wraps, and a logical shift is an
arithmetic one with the sign bits masked away.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedsaddle.maths import keys as plain


def signed(value: int) -> int:
    """A 64-bit pattern as the Python int that fits an int64 tensor."""
    value &= plain.MASK
    return value - (1 << 64) if value >> 63 else value


def shift(value: Tensor, places: int) -> Tensor:
    return (value >> places) & ((1 << (64 - places)) - 1)


def mix(value: Tensor) -> Tensor:
    value = (value ^ shift(value, 30)) * signed(plain.MIX1)
    value = (value ^ shift(value, 27)) * signed(plain.MIX2)
    return value ^ shift(value, 31)


def fold(key: int, values: Tensor) -> Tensor:
    """The keys of sub-addresses, one per value: clients of a cohort under one address."""
    return mix(mix(values * signed(plain.GAMMA) + signed(plain.SALT)) ^ signed(key))


def bits(keys: Tensor, counters: Tensor) -> Tensor:
    """64 random bits for every pair of key and counter; the two broadcast."""
    return mix(keys + (counters + 1) * signed(plain.GAMMA))


def uniform(keys: Tensor, counters: Tensor) -> Tensor:
    """Float64 on [0, 1), equal on every device: 53 bits and one exact multiplication."""
    return shift(bits(keys, counters), 11).to(torch.float64) * 2.0**-53


def stream(key: int, count: int, first: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """`count` uniform numbers of one stream."""
    return uniform(torch.tensor(signed(key), device=device), torch.arange(first, first + count, device=device))


def slots(keys: Tensor, rows: Tensor, count: int) -> Tensor:
    """[clients, count] row numbers, each client's as `keys.slots` defines them. A client without rows gets 0."""
    result = torch.zeros(len(keys), count, dtype=torch.int64, device=keys.device)
    sparse = rows > plain.SPARSE * count
    for chosen, draw in ((sparse, _distinct), (~sparse & (rows > 0), _shuffled)):
        where = chosen.nonzero().squeeze(1)
        if len(where) and count:
            result[where] = draw(keys[where], rows[where], count)
    return result


def _shuffled(keys: Tensor, rows: Tensor, count: int) -> Tensor:
    epochs = -(-count // rows)
    width = int((epochs * rows).max())
    ticket = torch.arange(width, device=keys.device)
    rows = rows[:, None]
    order = (ticket // rows << 40) | shift(bits(keys[:, None], ticket), 24)
    order = torch.where(ticket < epochs[:, None] * rows, order, torch.iinfo(torch.int64).max)
    return torch.sort(order, dim=1, stable=True).indices[:, :count] % rows


def _distinct(keys: Tensor, rows: Tensor, count: int) -> Tensor:
    width = count + count // 4 + 16
    while True:  # the candidates are in the order of their counters, so the width never changes the result
        counters = torch.arange(width, device=keys.device)
        candidates = (uniform(keys[:, None], counters) * rows[:, None]).to(torch.int64)
        ordered = torch.sort(candidates, dim=1, stable=True)
        repeated = torch.zeros_like(candidates, dtype=torch.bool)
        repeated[:, 1:] = ordered.values[:, 1:] == ordered.values[:, :-1]
        new = torch.ones_like(repeated).scatter_(1, ordered.indices, ~repeated)
        if int(new.sum(1).min()) >= count:
            return candidates.gather(1, torch.sort(new, dim=1, descending=True, stable=True).indices[:, :count])
        width *= 2


def draw_distinct(key: int, population: int, count: int) -> Tensor:
    """`count` distinct numbers out of 0..population-1, in the order drawn; cost O(count) where count is small."""
    if count > population:
        raise ValueError(f"cannot draw {count} distinct numbers out of {population}")
    one = torch.tensor([signed(key)])
    if population > plain.SPARSE * count:
        return _distinct(one, torch.tensor([population]), count)[0]
    return torch.argsort(stream(key, population), stable=True)[:count]


def draw_weighted(key: int, weights: Tensor, count: int, replace: bool) -> Tensor:
    """`count` positions drawn by weight. Without replacement: one after the other among those left."""
    weights = weights.to("cpu", torch.float64)
    if replace:
        cumulative = weights.cumsum(0)
        position = torch.searchsorted(cumulative, stream(key, count) * cumulative[-1], right=True)
        return position.clamp(max=len(weights) - 1)
    if int((weights > 0).sum()) < count:
        raise ValueError(f"cannot draw {count} distinct clients: only {int((weights > 0).sum())} have positive weight")
    return torch.argsort(_ranks(key, weights), descending=True, stable=True)[:count]


def inclusion(key: int, weights: Tensor, count: int) -> Tensor:
    """For each position that `draw_weighted` without replacement draws: how likely that was, the others' ranks given.

    Its inverse is an unbiased weight for what was drawn (rank conditioning, Cohen and Kaplan); all drawn: 1.
    """
    if count >= int((weights > 0).sum()):
        return torch.ones_like(weights)
    first_left_out = torch.sort(_ranks(key, weights), descending=True).values[count]
    return -torch.expm1(weights * first_left_out)  # P(log(u) / w > rank of the first left out)


def _ranks(key: int, weights: Tensor) -> Tensor:
    """Efraimidis and Spirakis: the largest log(u) / w are a sequential draw without replacement."""
    rank = stream(key, len(weights)).clamp(min=2.0**-60).log() / weights
    return torch.where(weights > 0, rank, -torch.inf)
