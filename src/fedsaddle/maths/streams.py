"""Keyed random numbers for whole cohorts at once, on any device: what `keys` defines, in tensors.

torch has no unsigned 64-bit arithmetic; int64 multiplication wraps, and a logical shift is an
arithmetic one with the sign bits masked away.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedsaddle.maths import keys as plain

SHORT = 64  # draws for which plain numbers are quicker than tensors


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


def fold(key: int | Tensor, values: Tensor) -> Tensor:
    """The keys of sub-addresses, one per value: clients of a cohort under one address. A tensor holds a signed key."""
    return mix(mix(values * signed(plain.GAMMA) + signed(plain.SALT)) ^ (signed(key) if isinstance(key, int) else key))


def bits(keys: Tensor, counters: Tensor) -> Tensor:
    """64 random bits for every pair of key and counter; the two broadcast."""
    return mix(keys + (counters + 1) * signed(plain.GAMMA))


def uniform(keys: Tensor, counters: Tensor) -> Tensor:
    """Float64 on [0, 1), equal on every device: 53 bits and one exact multiplication."""
    return shift(bits(keys, counters), 11).to(torch.float64) * 2.0**-53


def stream(key: int, count: int, first: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """`count` uniform numbers of one stream."""
    return uniform(torch.tensor(signed(key), device=device), torch.arange(first, first + count, device=device))


class Reach(NamedTuple):
    """How far draws look, settled on the host for all clients, so that no shape depends on what a device holds."""

    distinct: int  # candidates of clients with many rows; 0: there are no such clients
    shuffled: int  # tickets of the others; 0: there are none


def reach(rows: Tensor, count: int) -> Reach:
    """Far enough for every client with so many rows.

    Twice the draws and 32 more: that fewer than `count` of them are distinct, out of more than SPARSE times as many
    rows, has a chance below 1e-30.
    """
    few = rows[rows <= plain.SPARSE * count].clamp(min=1)
    width = int((-(-count // few) * few).max()) if len(few) else 0
    return Reach(2 * count + 32 if len(few) < len(rows) else 0, width)


def slots(keys: Tensor, rows: Tensor, count: int, far: Reach | None = None) -> Tensor:
    """[clients, count] row numbers, each client's as `keys.slots` defines them. A client without rows gets 0.

    far: settled reach, with which nothing is read back from the device; the numbers are the same.
    """
    sparse = rows > plain.SPARSE * count
    if far is not None:
        found = _shuffled(keys, rows.clamp(min=1), count, far.shuffled) if far.shuffled else None
        if far.distinct:
            distinct = _settled(keys, rows, count, far.distinct)
            found = distinct if found is None else torch.where(sparse[:, None], distinct, found)
        return torch.where(rows[:, None] > 0, found, 0)  # type: ignore[arg-type]
    if bool((~sparse).all()) and bool((rows > 0).all()) and count:
        return _shuffled(keys, rows, count)
    result = torch.zeros(len(keys), count, dtype=torch.int64, device=keys.device)
    for chosen, draw in ((sparse, _distinct), (~sparse & (rows > 0), _shuffled)):
        where = chosen.nonzero().squeeze(1)
        if len(where) and count:
            result[where] = draw(keys[where], rows[where], count)
    return result


def _shuffled(keys: Tensor, rows: Tensor, count: int, width: int = 0) -> Tensor:
    epochs = -(-count // rows)
    ticket = torch.arange(width or int((epochs * rows).max()), device=keys.device)
    rows = rows[:, None]
    order = (ticket // rows << 40) | shift(bits(keys[:, None], ticket), 24)
    order = torch.where(ticket < epochs[:, None] * rows, order, torch.iinfo(torch.int64).max)
    return torch.sort(order, dim=1, stable=True).indices[:, :count] % rows


def _distinct(keys: Tensor, rows: Tensor, count: int) -> Tensor:
    width = count + count // 4 + 16
    while True:  # the candidates are in the order of their counters, so the width never changes the result
        candidates, new = _candidates(keys, rows, width)
        if int(new.sum(1).min()) >= count:
            return _first(candidates, new, count)
        width *= 2


def _settled(keys: Tensor, rows: Tensor, count: int, width: int) -> Tensor:
    return _first(*_candidates(keys, rows, width), count)


def _candidates(keys: Tensor, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Row numbers with repetitions, and which of them come for the first time."""
    counters = torch.arange(width, device=keys.device)
    candidates = (uniform(keys[:, None], counters) * rows[:, None]).to(torch.int64)
    ordered = torch.sort(candidates, dim=1, stable=True)
    repeated = torch.zeros_like(candidates, dtype=torch.bool)
    repeated[:, 1:] = ordered.values[:, 1:] == ordered.values[:, :-1]
    return candidates, torch.ones_like(repeated).scatter_(1, ordered.indices, ~repeated)


def _first(candidates: Tensor, new: Tensor, count: int) -> Tensor:
    return candidates.gather(1, torch.sort(new, dim=1, descending=True, stable=True).indices[:, :count])


def draw_distinct(key: int, population: int, count: int) -> Tensor:
    """`count` distinct numbers out of 0..population-1, in the order drawn; cost O(count) where count is small."""
    if count > population:
        raise ValueError(f"cannot draw {count} distinct numbers out of {population}")
    if population > plain.SPARSE * count:
        if count <= SHORT:
            return torch.tensor(plain.slots(key, population, count), dtype=torch.int64)
        return _distinct(torch.tensor([signed(key)]), torch.tensor([population]), count)[0]
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
    return _largest(_ranks(key, weights), count)


def inclusion(key: int, weights: Tensor, count: int) -> Tensor:
    """For each position that `draw_weighted` without replacement draws: how likely that was, the others' ranks given.

    Its inverse is an unbiased weight for what was drawn (rank conditioning, Cohen and Kaplan); all drawn: 1.
    """
    if count >= int((weights > 0).sum()):
        return torch.ones_like(weights)
    first_left_out = torch.topk(_ranks(key, weights), count + 1).values[-1]
    return -torch.expm1(weights * first_left_out)  # P(log(u) / w > rank of the first left out)


def _ranks(key: int, weights: Tensor) -> Tensor:
    """Efraimidis and Spirakis: the largest log(u) / w are a sequential draw without replacement."""
    rank = stream(key, len(weights)).clamp(min=2.0**-60).log() / weights
    return torch.where(weights > 0, rank, -torch.inf)


def _largest(values: Tensor, count: int) -> Tensor:
    """Positions of the `count` largest, descending, the first of equals first: few are sorted instead of all."""
    if not count:
        return torch.zeros(0, dtype=torch.int64)
    among = (values >= torch.topk(values, count).values[-1]).nonzero().flatten()
    return among[torch.argsort(values[among], descending=True, stable=True)[:count]]
