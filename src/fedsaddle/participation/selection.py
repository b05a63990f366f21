"""Who can be asked in a round, and who of them is drawn."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
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
    """Every client can be asked, drawn by its size or by given weights."""

    by: tuple[float, ...] = setting((), "one weight per client; empty: the number of its rows")
    replace: bool = setting(False, "draw with replacement: a client drawn twice runs once and counts twice")
    cycle = 1

    def pool(self, round: int, population: Population) -> range | Tensor:
        return range(population.clients)

    def weights(self, population: Population) -> Tensor | None:
        if not self.by:
            return population.sizes.to("cpu", torch.float64)
        if len(self.by) != population.clients or min(self.by) < 0 or sum(self.by) <= 0:
            raise SettingError(f"participation.select.by: {len(self.by)} weights for {population.clients} clients; "
                               "give one weight per client, none negative, not all zero")
        return torch.tensor(self.by, dtype=torch.float64)


@dataclass(frozen=True)
class Cyclic:
    """Groups of clients take turns in a fixed order; only the active group can be asked (papers: cyclic-auc)."""

    groups: int = setting(5, "number of groups; client i belongs to group i * groups // clients", at_least=1)
    replace = False

    @property
    def cycle(self) -> int:
        return self.groups

    def pool(self, round: int, population: Population) -> range | Tensor:
        if self.groups > population.clients:
            raise SettingError(f"participation.select.groups = {self.groups} for {population.clients} clients; "
                               "every group needs a client")
        active = round % self.groups
        first, end = (-(-g * population.clients // self.groups) for g in (active, active + 1))
        return range(first, end)

    def weights(self, population: Population) -> Tensor | None:
        return None


@dataclass(frozen=True)
class Trace:
    """Clients can be asked when a file says so: a CSV with the columns client, from, until (from <= time < until)."""

    file: str = setting("", "path of the CSV file")
    tick: float = setting(1.0, "time that a round takes, in the file's unit; 1: the file counts rounds", above=0)
    period: float = setting(0.0, "the trace repeats after this time; 0: it does not repeat", at_least=0)
    cycle = 1
    replace = False

    def pool(self, round: int, population: Population) -> range | Tensor:
        client, start, end = read_trace(self.file)
        if int(client.max()) >= population.clients:
            raise SettingError(f"participation.select.file = {self.file!r}: names client {int(client.max())}, but "
                               f"there are {population.clients} clients, numbered from 0")
        time = round * self.tick
        time = time % self.period if self.period else time
        available: Tensor = client[(start <= time) & (time < end)].unique()
        return available

    def weights(self, population: Population) -> Tensor | None:
        return None


def read_trace(file: str) -> tuple[Tensor, Tensor, Tensor]:
    """The intervals of an availability trace: client, from, until."""
    try:
        return _intervals(file, Path(file).stat().st_mtime_ns)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"participation.select.file = {file!r}: cannot be read ({error}); give the path of a CSV "
                           "file with the columns client, from, until") from error


@lru_cache(maxsize=8)
def _intervals(file: str, changed: int) -> tuple[Tensor, Tensor, Tensor]:
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
    return torch.tensor(client), torch.tensor(start, dtype=torch.float64), torch.tensor(end, dtype=torch.float64)


def draw(
    selection: Selection, population: Population, seed: int, round: int, number: int,
    size: int | None, weights: Tensor | None, replace: bool,
) -> Cohort:
    """The `number`-th cohort of a round. `weights` are the algorithm's own; they go before the selection's."""
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
    if weights is None:
        position = streams.draw_distinct(key, len(pool), min(size, len(pool)))
        chosen = position + pool.start if isinstance(pool, range) else pool[position]
        return _cohort(chosen, torch.ones_like(chosen), population.weights[chosen])
    ids = whole(pool, population).ids
    weights = weights.to("cpu", torch.float64)[ids]
    if float(weights.sum()) <= 0:
        raise NobodyAnswered(f"no client with a positive weight can be asked in round {round}")
    size = size if replace else min(size, int((weights > 0).sum()))
    position, times = streams.draw_weighted(key, weights, size, replace).unique(return_counts=True)
    chosen = ids[position]
    if own:  # the weights are in the draw already
        return _cohort(chosen, times, torch.ones(len(chosen), dtype=torch.float64))
    chance = weights if replace else streams.inclusion(key, weights, size)
    return _cohort(chosen, times, population.weights[chosen] / chance[position])


def whole(pool: range | Tensor, population: Population) -> Cohort:
    """Everyone in the pool, once."""
    ids = torch.arange(pool.start, pool.stop) if isinstance(pool, range) else pool
    return Cohort(ids, torch.ones_like(ids), population.weights[ids])


def _cohort(ids: Tensor, times: Tensor, weight: Tensor) -> Cohort:
    order = torch.argsort(ids)
    return Cohort(ids[order], times[order], (weight * times)[order])
