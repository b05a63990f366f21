"""Who can be asked in a round, and who of them is drawn.

A draw costs what the cohort does, whatever the population; where it must look at every client, its docstring says so.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedsaddle.contracts import Cohort, NobodyAnswered, SettingError, setting
from fedsaddle.maths import keys, streams
from fedsaddle.maths.keys import Purpose


class Population(NamedTuple):
    """All clients, as the server knows them."""

    clients: int
    sizes: Tensor  # rows per client
    weights: Tensor  # the objective's weights w_i, which sum to one


class Selection(Protocol):
    """Frozen settings. `weights` is None where every client of the pool is equally likely."""

    @property
    def cycle(self) -> int: ...
    @property
    def replace(self) -> bool: ...
    def pool(self, round: int, population: Population) -> range | Tensor: ...
    def weights(self, population: Population) -> Tensor | None: ...


@dataclass(frozen=True)
class Uniform:
    """Every client can be asked, each equally likely, without replacement."""

    cycle = 1
    replace = False

    def pool(self, round: int, population: Population) -> range | Tensor:
        return range(population.clients)

    def weights(self, population: Population) -> Tensor | None:
        return None


@dataclass(frozen=True)
class Weighted:
    """Every client can be asked, drawn by its size or by given weights.

    Without replacement a draw costs O(clients): it is by ranks, which every client has.
    """

    by: tuple[float, ...] = setting((), "one weight per client; empty: the number of its rows")
    replace: bool = setting(False, "draw with replacement: a client drawn twice runs once and counts twice")
    cycle = 1

    def pool(self, round: int, population: Population) -> range | Tensor:
        return range(population.clients)

    def weights(self, population: Population) -> Tensor | None:
        if not self.by:
            return _plain(population.sizes)
        if len(self.by) != population.clients or not self._given[0]:
            raise SettingError(f"participation.select.by: {len(self.by)} weights for {population.clients} clients; "
                               "give one weight per client, none negative, not all zero")
        return self._given[1]

    @cached_property
    def _given(self) -> tuple[bool, Tensor]:
        """Whether they are weights, and as a tensor, made once."""
        weights = torch.tensor(self.by, dtype=torch.float64)
        return bool((weights >= 0).all() & (weights.sum() > 0)), weights


@dataclass(frozen=True)
class Cyclic:
    """Groups of clients take turns in a fixed order; only the active group can be asked (papers: cyclic-auc)."""

    groups: int = setting(5, "number of groups; client i belongs to group i * groups // clients", at_least=1)
    of: tuple[int, ...] = setting((), "the group of each client, from 0 on, where they are not those blocks")
    replace = False

    @property
    def cycle(self) -> int:
        return self.groups

    def pool(self, round: int, population: Population) -> range | Tensor:
        if self.groups > population.clients:
            raise SettingError(f"participation.select.groups = {self.groups} for {population.clients} clients; "
                               "every group needs a client")
        active = round % self.groups
        if self.of:
            return self._members(population.clients)[active]
        first, end = (-(-g * population.clients // self.groups) for g in (active, active + 1))
        return range(first, end)

    def weights(self, population: Population) -> Tensor | None:
        return None

    def _members(self, clients: int) -> list[Tensor]:
        """The clients of every group, ascending."""
        if len(self.of) != clients or set(self.of) != set(range(self.groups)):
            raise SettingError(f"participation.select.of: {len(self.of)} groups {sorted(set(self.of))[:9]} for "
                               f"{clients} clients; give each client a group from 0 to {self.groups - 1}, none empty")
        group = torch.tensor(self.of)
        return [(group == one).nonzero().flatten() for one in range(self.groups)]


@dataclass(frozen=True)
class Trace:
    """Clients can be asked when a file says so: a CSV with the columns client, from, until (from <= time < until).

    Who is there is looked up once a round, in O(intervals of the file).
    """

    file: str = setting("", "path of the CSV file")
    tick: float = setting(1.0, "time that a round takes, in the file's unit; 1: the file counts rounds", above=0)
    period: float = setting(0.0, "the trace repeats after this time; 0: it does not repeat", at_least=0)
    cycle = 1
    replace = False

    def pool(self, round: int, population: Population) -> range | Tensor:
        trace = read_trace(self.file)
        if trace.largest >= population.clients:
            raise SettingError(f"participation.select.file = {self.file!r}: names client {trace.largest}, but "
                               f"there are {population.clients} clients, numbered from 0")
        time = round * self.tick
        return trace.at(time % self.period if self.period else time)

    def weights(self, population: Population) -> Tensor | None:
        return None


class Intervals:
    """When which client can be asked."""

    def __init__(self, client: Tensor, start: Tensor, end: Tensor) -> None:
        order = torch.argsort(client, stable=True)
        self.client, self.start, self.end = client[order], start[order], end[order]
        self.largest = int(self.client[-1])
        self._last: tuple[float, Tensor] | None = None  # the cohorts of a round share one answer

    def at(self, time: float) -> Tensor:
        """The clients, ascending."""
        if self._last is None or self._last[0] != time:
            self._last = time, self.client[(self.start <= time) & (time < self.end)].unique_consecutive()
        return self._last[1]


def read_trace(file: str) -> Intervals:
    """The intervals of an availability trace."""
    try:
        return _intervals(file, Path(file).stat().st_mtime_ns)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"participation.select.file = {file!r}: cannot be read ({error}); give the path of a CSV "
                           "file with the columns client, from, until") from error


@lru_cache(maxsize=8)
def _intervals(file: str, changed: int) -> Intervals:
    """Read once; again when the file was changed."""
    where = f"participation.select.file = {file!r}"
    with Path(file).open(newline="", encoding="utf-8-sig") as stream:  # spreadsheets put a mark before the first name
        rows = list(csv.DictReader(stream))
    if not rows:
        raise SettingError(f"{where}: holds no interval; give rows with the columns client, from, until")
    table: list[tuple[int, float, float]] = []
    for number, row in enumerate(rows, start=2):
        try:
            table.append((int(row["client"]), float(row["from"]), float(row["until"])))
        except (KeyError, TypeError, ValueError) as error:
            raise SettingError(f"{where}: line {number} is {row}; it needs a whole number in column client and numbers "
                               "in columns from and until") from error
        if table[-1][0] < 0 or not table[-1][1] < table[-1][2]:
            raise SettingError(f"{where}: line {number} is {row}; client must be at least 0, from below until")
    client, start, end = zip(*table, strict=True)
    # float64: single precision tells times since 1970 apart only to two minutes
    times = (torch.tensor(part, dtype=torch.float64) for part in (start, end))
    return Intervals(torch.tensor(client), *times)


def draw(
    selection: Selection, population: Population, seed: int, round: int, number: int,
    size: int | None, weights: Tensor | None, replace: bool,
) -> Cohort:
    """The `number`-th cohort of a round. `weights` are the algorithm's own; they go before the selection's.

    O(cohort), but O(pool) with an algorithm's own weights, or without replacement by any. Own weights that are one
    number, expanded, are a uniform draw.
    """
    pool = selection.pool(round, population)
    if not len(pool):
        raise NobodyAnswered(f"no client can be asked in round {round}")
    own = weights is not None
    if not own:
        weights, replace = selection.weights(population), selection.replace
    if size is not None and (size < 1 or (size > population.clients and not replace)):
        raise SettingError(f"asked = {size}, but the federation has {population.clients} clients; ask 1 to that many")
    if size is None and not own:
        return whole(pool, population)
    size = len(pool) if size is None else size
    key = keys.address(seed, round, number, Purpose.COHORT)
    if weights is None or (_alike(weights) and not replace):
        position = streams.draw_distinct(key, len(pool), min(size, len(pool))).sort().values
        chosen = _at(pool, position)  # ascending, as every pool is
        times = torch.ones_like(chosen)
        return Cohort(chosen, times, times.double() if own else population.weights[chosen])
    weights = _inside(weights, pool, population)
    cumulative = weights.cumsum(0, dtype=torch.float64) if own or not replace else _cumulative(weights)
    if float(cumulative[-1]) <= 0:
        raise NobodyAnswered(f"no client with a positive weight can be asked in round {round}")
    position, chance = _by_chance(key, weights, cumulative, size) if replace else _by_rank(key, weights, size, own)
    position, times = position.unique(return_counts=True)
    chosen = _at(pool, position)
    if own:  # the weights are in the draw already
        return _cohort(chosen, times, torch.ones(len(chosen), dtype=torch.float64))
    return _cohort(chosen, times, population.weights[chosen] / chance[position].double())


def whole(pool: range | Tensor, population: Population) -> Cohort:
    """Everyone in the pool, once."""
    ids = torch.arange(pool.start, pool.stop) if isinstance(pool, range) else pool
    weight = population.weights[pool.start : pool.stop] if isinstance(pool, range) else population.weights[pool]
    return Cohort(ids, torch.ones_like(ids), weight)


def _at(pool: range | Tensor, position: Tensor) -> Tensor:
    return position + pool.start if isinstance(pool, range) else pool[position]


def _alike(weights: Tensor) -> bool:
    """Whether it is one positive number, repeated without being written out."""
    return len(weights) > 1 and weights.stride(0) == 0 and float(weights[0]) > 0


def _inside(weights: Tensor, pool: range | Tensor, population: Population) -> Tensor:
    """Those of the pool; the same tensor where that is everyone."""
    weights = weights.cpu()
    if isinstance(pool, range):
        return weights if len(pool) == population.clients else weights[pool.start : pool.stop]
    return weights[pool]


@lru_cache(maxsize=4)
def _plain(sizes: Tensor) -> Tensor:
    """Tensors are told apart by identity: the sizes of a population are converted once."""
    return sizes.to("cpu", torch.float64)


@lru_cache(maxsize=4)
def _cumulative(weights: Tensor) -> Tensor:
    """Of a selection's own weights, which stay as they are: summed once."""
    return weights.cumsum(0, dtype=torch.float64)


def _by_chance(key: int, weights: Tensor, cumulative: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Positions, as `streams.draw_weighted` with replacement draws them, and in proportion to what."""
    position = torch.searchsorted(cumulative, streams.stream(key, count) * cumulative[-1], right=True)
    return position.clamp(max=len(cumulative) - 1), weights


def _by_rank(key: int, weights: Tensor, count: int, own: bool) -> tuple[Tensor, Tensor]:
    """Positions without replacement, and how likely each was; an algorithm's own draw has no use for the latter."""
    weights = weights.double()
    count = min(count, int((weights > 0).sum()))
    position = streams.draw_weighted(key, weights, count, replace=False)
    return position, weights if own else streams.inclusion(key, weights, count)


def _cohort(ids: Tensor, times: Tensor, weight: Tensor) -> Cohort:
    order = torch.argsort(ids)
    return Cohort(ids[order], times[order], (weight * times)[order])
