"""Who of those asked answers, when, and whom the server still waits for.

A chain of small steps, each refining the arrivals of one ask: drop-outs and latencies say when replies
come, first responders and a deadline say when the server goes on. Keyed, so equal on every engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedsaddle.contracts import SettingError, setting
from fedsaddle.maths import keys, streams
from fedsaddle.maths.keys import Purpose


class Moment(NamedTuple):
    """The address of an ask."""

    seed: int
    round: int
    ask: int


class Arrivals(NamedTuple):
    """The replies of one ask, one entry per client asked."""

    seconds: Tensor  # on the virtual clock, from the ask; infinite: never
    accepted: Tensor  # whether the server uses the reply
    closed: float  # when the server went on
    enough: bool = False  # it went on because enough had answered, with others still out


class Response(Protocol):
    """One step of the chain. What `decides` who is used comes after what says when replies arrive."""

    @property
    def decides(self) -> bool: ...
    def respond(self, arrivals: Arrivals, ids: Tensor, moment: Moment) -> Arrivals: ...


@dataclass(frozen=True)
class Everyone:
    """Everyone answers at once."""

    decides = False

    def respond(self, arrivals: Arrivals, ids: Tensor, moment: Moment) -> Arrivals:
        return arrivals


@dataclass(frozen=True)
class DropOuts:
    """Each client fails to answer with the same probability, independently at every ask."""

    rate: float = setting(0.1, "probability that a client does not answer", at_least=0, at_most=1)
    decides = False

    def respond(self, arrivals: Arrivals, ids: Tensor, moment: Moment) -> Arrivals:
        gone = _uniform(ids, Purpose.DROP, *moment) < self.rate
        return _settle(torch.where(gone, inf, arrivals.seconds), arrivals.accepted & ~gone)


@dataclass(frozen=True)
class Latencies:
    """Replies take log-normal times on a virtual clock: some clients are always slow, and every ask varies."""

    median: float = setting(1.0, "median time of a reply, in virtual seconds", above=0)
    client_spread: float = setting(0.5, "spread of the clients' own speeds (standard deviation of the log)", at_least=0)
    ask_spread: float = setting(0.25, "spread from one ask to the next (standard deviation of the log)", at_least=0)
    decides = False

    def respond(self, arrivals: Arrivals, ids: Tensor, moment: Moment) -> Arrivals:
        own = _normal(ids, Purpose.LATENCY, moment.seed)
        now = _normal(ids, Purpose.LATENCY, *moment)
        seconds = self.median * torch.exp(self.client_spread * own + self.ask_spread * now)
        return _settle(arrivals.seconds + seconds, arrivals.accepted)


@dataclass(frozen=True)
class FirstResponders:
    """SIWER: the server goes on with the first S_t = ceil(p_t * asked) replies (papers: cdma, Algorithm 1).

    p_t is uniform on [low, high], one for all asks of a round. Without latencies, who comes first is a
    uniform draw among those asked.
    """

    low: float = setting(0.5, "smallest share of the cohort that is waited for", above=0, at_most=1)
    high: float = setting(1.0, "largest share of the cohort that is waited for", above=0, at_most=1)
    decides = True

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise SettingError(f"participation.respond.low = {self.low}: is above high = {self.high}; swap them")

    def enough(self, asked: int, moment: Moment) -> int:
        """S_t: how many of so many are waited for."""
        p = keys.uniform(keys.address(moment.seed, moment.round, 0, Purpose.ENOUGH))
        share = self.low + (self.high - self.low) * p
        return max(1, ceil(share * asked - 1e-9))  # in floats 0.55 * 100 is a little more than 55

    def respond(self, arrivals: Arrivals, ids: Tensor, moment: Moment) -> Arrivals:
        enough = self.enough(len(ids), moment)
        tie = torch.argsort(_uniform(ids, Purpose.ARRIVAL, *moment))
        order = tie[torch.argsort(torch.where(arrivals.accepted, arrivals.seconds, inf)[tie], stable=True)]
        first = torch.zeros_like(arrivals.accepted)
        first[order[:enough]] = True
        if int(arrivals.accepted.sum()) < enough:
            return arrivals  # too few: whoever answers is used
        return _settle(arrivals.seconds, arrivals.accepted & first)._replace(enough=True)


@dataclass(frozen=True)
class Deadline:
    """Replies after a deadline on the virtual clock are too late."""

    seconds: float = setting(10.0, "virtual seconds after which the server goes on", above=0)
    decides = True

    def respond(self, arrivals: Arrivals, ids: Tensor, moment: Moment) -> Arrivals:
        if arrivals.enough and arrivals.closed <= self.seconds:
            return arrivals
        settled = _settle(arrivals.seconds, arrivals.accepted & (arrivals.seconds <= self.seconds))
        return settled._replace(closed=self.seconds) if bool((arrivals.seconds > self.seconds).any()) else settled


def arrivals(chain: tuple[Response, ...], ids: Tensor, moment: Moment) -> Arrivals:
    """Pass an ask through the chain, starting from everyone answering at once. Who decides comes last."""
    state = Arrivals(torch.zeros(len(ids), dtype=torch.float64), torch.ones(len(ids), dtype=torch.bool), 0.0)
    for response in sorted(chain, key=lambda step: step.decides):
        state = response.respond(state, ids, moment)
    return state


def _settle(seconds: Tensor, accepted: Tensor) -> Arrivals:
    return Arrivals(seconds, accepted, float(seconds[accepted].max()) if bool(accepted.any()) else 0.0)


def _uniform(ids: Tensor, purpose: Purpose, *moment: int) -> Tensor:
    return streams.uniform(streams.fold(keys.address(*moment, purpose), ids), torch.tensor(0))


def _normal(ids: Tensor, purpose: Purpose, *moment: int) -> Tensor:
    normal: Tensor = torch.special.ndtri(_uniform(ids, purpose, *moment).clamp(min=2.0**-60))
    return normal
