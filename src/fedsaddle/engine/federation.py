"""The federation that an algorithm talks to: its clock, its draws, its asks, its ledger.

It decides who is asked; an Answering says who answers and what. In simulation an engine (vectorised or one by one)
computes the replies of those that a chain of responses lets through; across sites they come over a wire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
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
from fedsaddle.participation.responses import Moment, Response, arrivals
from fedsaddle.participation.selection import Population, Selection, draw, whole

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


class Replies(NamedTuple):
    """What came back of an ask."""

    outcome: Outcome | None  # None: nobody answered
    who: Tensor | None  # positions among those asked of the clients whose replies are in it; None: all of them
    late: int
    size: Size  # of one reply
    seconds: float  # until the ask was closed
    details: Mapping[str, Any] = MappingProxyType({})  # for the record


class Answering(Protocol):
    """Who can be asked, who answers, and what: a simulation of it, real sites, or a record of them."""

    def among(self, select: Selection, round: int, number: int) -> Selection:
        """The selection, restricted to those who can be asked for the `number`-th cohort of the round."""

    def replies(self, ask: Ask) -> Replies: ...


class Asked(NamedTuple):
    """An ask of this round, as it is recorded."""

    work: str
    traffic: Traffic
    details: Mapping[str, Any] = MappingProxyType({})


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


class Simulated:
    """An Answering by an engine: a chain of responses says who answers in time."""

    def __init__(self, engine: Engine, chain: tuple[Response, ...], listed: int = 0) -> None:
        """listed: asks of at most so many clients are recorded with their numbers."""
        self.engine, self.chain, self.listed = engine, chain, listed

    def among(self, select: Selection, round: int, number: int) -> Selection:
        return select

    def replies(self, ask: Ask) -> Replies:
        who, out, closed = self.answers(ask)
        if who is None or len(who):
            outcome = self.engine.run(ask if who is None else restricted(ask, who))
            return Replies(outcome, who, len(out), outcome.size, closed, self.details(ask, who, out))
        # The size of late replies still counts: one is computed, and dropped with the round.
        size = self.engine.run(restricted(ask, out[:1])).size if len(out) else Size(0, 0)
        return Replies(None, who, len(out), size, closed, self.details(ask, who, out))

    def details(self, ask: Ask, who: Tensor | None, out: Tensor) -> dict[str, list[int]]:
        """The numbers of those asked, used and too late, as runs across sites record them; empty for large asks."""
        if ask.ids.shape[0] > self.listed or ask.address[1] == PREPARATION:
            return {}
        asked: list[int] = ask.ids.tolist()
        used = asked if who is None else [asked[at] for at in who.tolist()]
        return {"clients": used, "asked_clients": asked, "late_clients": [asked[at] for at in out.tolist()]}

    def answers(self, ask: Ask) -> tuple[Tensor | None, Tensor, float]:
        """Positions of those that answer in time (None: all) and of those too late, and when the ask was closed."""
        if not self.chain or ask.address[1] == PREPARATION:
            return None, torch.zeros(0, dtype=torch.int64), 0.0
        arrived = arrivals(self.chain, ask.ids, Moment(*ask.address))
        out = (arrived.seconds.isfinite() & ~arrived.accepted).nonzero().flatten()
        return arrived.accepted.nonzero().flatten(), out, arrived.closed


class EngineFederation:
    """contracts.Federation over an engine."""

    def __init__(self, engine: Engine, participation: Participation, population: Population, seed: int,
                 answering: Answering | None = None) -> None:
        """answering: none: simulated, as the participation says."""
        self.engine, self.participation, self.population, self.seed = engine, participation, population, seed
        self.answering = answering or Simulated(engine, participation.respond)
        self.num_clients = population.clients
        self.batch_size = engine.batch_size
        self.cycle = participation.select.cycle
        self.asks: list[Asked] = []  # of this round, in order
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
        select = self.answering.among(self.participation.select, self.round, self._cohorts - 1)
        return draw(select, self.population, self.seed, self.round, self._cohorts - 1,
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
        asked = cohort.ids.shape[0]
        _check_rows(message, personal, asked)
        ask = Ask(work, message, tuple(personal), tuple(collect), tuple(summed), cohort.ids, cohort.weight.double(),
                  self.population.weights[cohort.ids], as_draw(batches), (self.seed, self.round, len(self.asks)))
        replies = self.answering.replies(ask)
        got = cohort if replies.who is None else Cohort(*(part[replies.who] for part in cohort))
        count = got.ids.shape[0]
        self.asks.append(Asked(
            getattr(work, "__name__", "work"),
            traffic_of(size_of(message, personal), replies.size, asked, count, replies.late, replies.seconds),
            replies.details))
        if replies.outcome is None:
            raise NobodyAnswered(f"none of {asked} clients answered in round {self.round}")
        if float(got.weight.sum()) <= 0:
            raise NobodyAnswered(f"the clients that answered in round {self.round} have no weight in the mean")
        share = float((ask.objective if replies.who is None else ask.objective[replies.who]).sum())
        mean, summed_up, each, _ = replies.outcome
        return Average(mean, summed_up, each, count, share, got.ids, got.times)

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
        return sum((ask.traffic for ask in self.asks), Traffic())

    def _key(self) -> int:
        self._dice += 1
        return keys.address(self.seed, self.round, self._dice, Purpose.SERVER)


def _check_rows(message: Any, personal: Sequence[str], asked: int) -> None:
    for name in personal:
        for leaf in leaves(getattr(message, name)):
            if len(leaf) != asked:
                raise ValueError(f"personal field {name!r} has {len(leaf)} rows for a cohort of {asked}")


def restricted(ask: Ask, who: Tensor) -> Ask:
    """The ask to the clients at these positions alone, with their rows of personal fields."""
    own = {name: map_leaves(lambda leaf: leaf[who.to(leaf.device)], getattr(ask.message, name))
           for name in ask.personal}
    message = ask.message._replace(**own) if own else ask.message
    return ask._replace(message=message, ids=ask.ids[who], weight=ask.weight[who], objective=ask.objective[who])


def sort_fields(fields: Sequence[str], collect: Sequence[str], summed: Sequence[str]) -> dict[str, str]:
    """For every reply field where it goes: 'mean', 'sum' or 'each'."""
    unknown = {*collect, *summed} - {*fields, "*"}
    if unknown:
        raise ValueError(f"no field {sorted(unknown)} in a reply with fields {list(fields)}")
    everything = "*" in collect
    return {name: "each" if everything or name in collect else "sum" if name in summed else "mean" for name in fields}
