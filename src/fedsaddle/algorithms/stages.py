"""What stagewise methods share: the clock of their stages, the proximal term, the output of a stage.

Papers: codasca, Algorithms 1 and 3; cyclic-auc, Algorithm 2. Stage s counts from 0. A stage solves
min_v max_alpha f(v, alpha) + gamma/2 |v - v_0|^2, v_0 being the output of the stage before it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from fedsaddle.contracts import Number, Point, setting


def steps() -> Any:
    return setting(32, "I: local steps in a round of the first stage", at_least=1)


def of_the_group() -> Any:
    return setting(None, "M: clients asked of the active group; none: all of it", at_least=1)


def epochs() -> Any:
    return setting(10, "E_0: epochs in the first stage, each a visit to every group; none: one stage", at_least=1)


def of_groups() -> Any:
    return setting("mean", "a stage ends with the mean of its group averages or with the last one",
                   choices=("mean", "last"))


def proximal() -> Any:
    return setting(0.0, "gamma: weight of gamma/2 |v - v_0|^2, v_0 the start of the stage", at_least=0)


def decay(default: float) -> Any:
    return setting(default, "the next stage's step is this times the last one's", above=0, at_most=1)


def growth() -> Any:
    return setting(1.0, "the next stage's I is this times the last one's", at_least=1)


def lengthening(default: float) -> Any:
    return setting(default, "the next stage is this times as long as the last one", at_least=1)


class Stagewise(Protocol):
    """The settings that a clock reads."""

    @property
    def eta(self) -> float: ...
    @property
    def steps(self) -> int: ...
    @property
    def decay(self) -> float: ...
    @property
    def growth(self) -> float: ...
    @property
    def lengthening(self) -> float: ...


class Clock(NamedTuple):
    """Where a round (or an epoch) stands, and what its stage prescribes."""

    stage: int  # s
    turn: int  # its number in the stage, from 1
    length: int | None  # R_s (or E_s); None: the stage never ends
    eta: float  # eta_s
    steps: int  # I_s

    @property
    def last(self) -> bool:
        return self.turn == self.length


def clock(method: Stagewise, elapsed: int, length: int | None) -> Clock:
    """After so many rounds; `length` is the first stage's. I_s and R_s are rounded to whole numbers."""
    s, size = 0, length
    while size is not None and length is not None and elapsed >= size:
        elapsed, s = elapsed - size, s + 1
        size = round(length * method.lengthening**s)
    return Clock(s, elapsed + 1, size, method.eta * method.decay**s, round(method.steps * method.growth**s))


class Go(NamedTuple):
    """Take local steps on the stage's objective."""

    z: Point
    centre: Tensor  # v_0
    eta: Number


def pulled(gradient: Point, z: Point, centre: Tensor, gamma: float) -> Point:
    """grad F^s: the gradient of F at z and that of the proximal term, which concerns v alone."""
    return Point(gradient.x + gamma * (z.x - centre), gradient.y)


def output(kind: str, before: Point, z: Point, turn: int, mean: Point | None = None, chosen: int = 0) -> Point:
    """What a stage returns if it ends with this round.

    last: the round's z; random: the z of round `chosen`; mean: the average of `mean` over the rounds so far.
    """
    if kind == "mean" and mean is not None:
        return before + (mean - before) / turn
    return z if kind == "last" or turn == chosen else before
