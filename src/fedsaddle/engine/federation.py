"""The federation that an algorithm talks to: its clock, its draws, its asks, its ledger.

It decides who is asked and who answers; an engine (vectorised or one by one) computes the replies.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedsaddle.contracts import Average, Cohort, Draw, NobodyAnswered, Point, Problem, Work, as_draw
from fedsaddle.engine.ledger import Size, Traffic, size_of, traffic_of
from fedsaddle.engine.oracle import ProblemOracle
from fedsaddle.maths import keys
from fedsaddle.maths.keys import Purpose
from fedsaddle.maths.trees import leaves, lift, map_leaves
from fedsaddle.participation import Participation
from fedsaddle.participation.responses import Moment, arrivals
from fedsaddle.participation.selection import Population, draw, whole

PREPARATION = -1  # the round before the first: constants of the problem are asked for, and everyone answers


class Ask(NamedTuple):
    """One ask to the clients that will answer it."""

    work: Work
    message: Any  # tensors on the engine's device, numbers lifted to tensors on the host; personal fields have rows
    personal: tuple[str, ...]
    collect: tuple[str, ...]
    summed: tuple[str, ...]
    ids: Tensor
    weight: Tensor  # in the mean
    objective: Tensor  # the objective's weights, for summed fields
    draw: Draw
    address: tuple[int, int, int]  # seed, round, ask


class Outcome(NamedTuple):
    mean: Any
    sum: Any
    each: Any
    size: Size  # of one reply


class Engine(Protocol):
    """Computes replies and keeps client states; the reference and the simulation are two."""

    device: torch.device
    dtype: torch.dtype
    batch_size: int
    oracle: ProblemOracle

    def pose(self, problem: Problem) -> None:
        """Set the problem: again, once its constants are known."""

    def open(self, first_client: Any) -> None:
        """Set the state of clients never visited."""

    def alone(self) -> AbstractContextManager[None]:
        """Asks in here are not shared with other processes of the run."""

    def expect(self, rounds: int) -> None:
        """So many rounds are still to come: what is worth preparing for."""

    def run(self, ask: Ask) -> Outcome: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def dump(self) -> dict[str, Tensor]: ...
    def load(self, tensors: dict[str, Tensor]) -> None: ...


class EngineFederation:
    """contracts.Federation over an engine."""

    def __init__(self, engine: Engine, participation: Participation, population: Population, seed: int) -> None:
        self.engine, self.participation, self.population, self.seed = engine, participation, population, seed
        self.num_clients = population.clients
        self.batch_size = engine.batch_size
        self.cycle = participation.select.cycle
        self.asks: list[tuple[str, Traffic]] = []  # of this round, in order, with the name of the work
        self.begin(0)

    def begin(self, round: int) -> None:
        """Set the clock; what the last round left uncommitted is gone."""
        self.round = round
        self.epoch_ends = (round + 1) % self.cycle == 0
        self.asks = []
        self._cohorts = self._dice = 0
        self.engine.rollback()

    def commit(self) -> None:
        self.engine.commit()

    def cohort(self, size: int | None, weights: Tensor | None = None, replace: bool = False) -> Cohort:
        self._cohorts += 1
        return draw(self.participation.select, self.population, self.seed, self.round, self._cohorts - 1,
                    size, weights, replace)

    def everyone(self) -> Cohort:
        if self.round == PREPARATION:
            return whole(range(self.num_clients), self.population)
        return self.cohort(None)

    def average(
        self, work: Work, message: Any, cohort: Cohort, batches: int | Draw,
        personal: Sequence[str] = (), collect: Sequence[str] = (), summed: Sequence[str] = (),
    ) -> Average:
        message = lift(message, self.engine.device, self.engine.dtype)
        address = (self.seed, self.round, len(self.asks))
        message_size, asked = size_of(message, personal), len(cohort.ids)
        answers = self._answers(cohort, Moment(*address))

        def run(some: Cohort, who: Tensor | None) -> Outcome:
            own = message if who is None else _rows(message, personal, who)
            return self.engine.run(Ask(
                work, own, tuple(personal), tuple(collect), tuple(summed), some.ids, some.weight.double(),
                self.population.weights[some.ids], as_draw(batches), address))

        _check_rows(message, personal, asked)
        got, late, closed = answers.cohort, answers.late, answers.closed
        count = len(got.ids)
        if not count:  # the size of late replies still counts: one is computed, and dropped with the round
            size = run(_some(cohort, answers.out[:1]), answers.out[:1]).size if late else Size(0, 0)
            self._count(work, traffic_of(message_size, size, asked, 0, late, closed))
            raise NobodyAnswered(f"none of {asked} clients answered in round {self.round}")
        outcome = run(got, answers.who)
        self._count(work, traffic_of(message_size, outcome.size, asked, count, late, closed))
        if float(got.weight.sum()) <= 0:
            raise NobodyAnswered(f"the clients that answered in round {self.round} have no weight in the mean")
        share = float(self.population.weights[got.ids].sum())
        return Average(outcome.mean, outcome.sum, outcome.each, count, share, got.ids, got.times)

    def collect(
        self, work: Work, message: Any, cohort: Cohort, batches: int | Draw, personal: Sequence[str] = (),
    ) -> Average:
        return self.average(work, message, cohort, batches, personal, collect=("*",))

    def project(self, z: Point) -> Point:
        return self.engine.oracle.project(z)

    def randint(self, low: int, high: int) -> int:
        return keys.randint(self._key(), low, high)

    def uniform(self) -> float:
        return keys.uniform(self._key())

    @property
    def traffic(self) -> Traffic:
        """Of this round so far."""
        return sum((traffic for _, traffic in self.asks), Traffic())

    def _count(self, work: Work, traffic: Traffic) -> None:
        self.asks.append((getattr(work, "__name__", "work"), traffic))

    def _key(self) -> int:
        self._dice += 1
        return keys.address(self.seed, self.round, self._dice, Purpose.SERVER)

    def _answers(self, cohort: Cohort, moment: Moment) -> Answers:
        if not self.participation.respond or self.round == PREPARATION:
            return Answers(cohort, None, 0, 0.0)
        arrived = arrivals(self.participation.respond, cohort.ids, moment)
        who = arrived.accepted.nonzero().flatten()
        out = (arrived.seconds.isfinite() & ~arrived.accepted).nonzero().flatten()
        return Answers(_some(cohort, who), who, len(out), arrived.closed, out)


class Answers(NamedTuple):
    """Who answered an ask in time, and who too late."""

    cohort: Cohort
    who: Tensor | None  # their positions among those asked; None: all of them
    late: int
    closed: float  # seconds until the ask was closed
    out: Tensor = torch.zeros(0, dtype=torch.int64)  # positions of those too late


def _some(cohort: Cohort, who: Tensor) -> Cohort:
    return Cohort(*(part[who] for part in cohort))


def _check_rows(message: Any, personal: Sequence[str], asked: int) -> None:
    for name in personal:
        for leaf in leaves(getattr(message, name)):
            if len(leaf) != asked:
                raise ValueError(f"personal field {name!r} has {len(leaf)} rows for a cohort of {asked}")


def _rows(message: Any, personal: Sequence[str], who: Tensor) -> Any:
    """The message with the personal rows of those that answer."""
    own = {name: map_leaves(lambda leaf: leaf[who.to(leaf.device)], getattr(message, name)) for name in personal}
    return message._replace(**own) if own else message


def sort_fields(fields: Sequence[str], collect: Sequence[str], summed: Sequence[str]) -> dict[str, str]:
    """For every reply field where it goes: 'mean', 'sum' or 'each'."""
    unknown = {*collect, *summed} - {*fields, "*"}
    if unknown:
        raise ValueError(f"no field {sorted(unknown)} in a reply with fields {list(fields)}")
    everything = "*" in collect
    return {name: "each" if everything or name in collect else "sum" if name in summed else "mean" for name in fields}
