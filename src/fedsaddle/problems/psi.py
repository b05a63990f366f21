"""Losses psi(a, b) of a pair of rows with scores a and b, and their means within and across clients (cyclic-auc).

The surrogates of Table 10 are functions of t = a - b. A psi of your own gets scores that broadcast against each
other (embeddings along the last axis) and gives one loss for each pair.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedsaddle.contracts import Pair, Scores, SettingError

Psi = Callable[[Tensor, Tensor], Tensor]


class Shape(NamedTuple):
    """The constants of the surrogates, each of which uses some."""

    margin: float  # m
    scale: float  # s, in the experiments 1 / lambda
    tau: float
    q: float


def _barrier_hinge(t: Tensor, c: Shape) -> Tensor:
    walls = torch.maximum(c.tau * (t - c.margin), c.margin - t)
    return torch.maximum(c.margin - c.tau * (c.margin + t), walls)


SURROGATES: dict[str, Callable[[Tensor, Shape], Tensor]] = {
    "square": lambda t, c: (c.margin - t) ** 2,
    "squared-hinge": lambda t, c: (c.margin - t).clamp(min=0) ** 2,
    "logistic": lambda t, c: functional.softplus(-c.scale * t),
    "sigmoid": lambda t, c: torch.sigmoid(-c.scale * t),
    "barrier-hinge": _barrier_hinge,
    "q-norm-hinge": lambda t, c: (c.margin - t).clamp(min=0) ** c.q,
}


def within(psi: Psi, first: Tensor, second: Tensor, pair: Pair) -> Tensor:
    """The mean over all pairs of a client's own batch; 0 where it has only one class."""
    weight = pair[0].weight[:, None] * pair[1].weight
    return (weight * _of(psi, first[:, None], second[None, :], weight)).sum()


def across(psi: Psi, first: Tensor, second: Tensor, pair: Pair, old: tuple[Scores, Scores]) -> Tensor:
    """The loss whose gradient is (11) + (12): the client's own scores are active, the old ones of others constant.

    (12) is printed with the derivative in the first argument; it is the second that is active.
    """
    one = pair[0].weight * old[1].weight
    other = pair[1].weight * old[0].weight
    return (one * _of(psi, first, old[1].value, one)).sum() + (other * _of(psi, old[0].value, second, other)).sum()


def _of(psi: Psi, a: Tensor, b: Tensor, like: Tensor) -> Tensor:
    value = psi(a, b)
    if value.shape != like.shape:
        raise SettingError(f"problem.psi: gives {tuple(value.shape)} for {tuple(like.shape)} pairs; let it broadcast "
                           "its two arguments and return one loss for each pair, without a mean or a sum")
    return value
