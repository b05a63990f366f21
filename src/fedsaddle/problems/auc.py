"""AUC maximisation as a minimax problem: the square pairwise loss, split over clients (codasca, section 3).

f_i(w, a, b; alpha) = mean over client i's rows of
  (1-p)(h-a)^2 [pos] + p(h-b)^2 [neg] + 2(1+alpha)(p h [neg] - (1-p) h [pos]) - p(1-p) alpha^2
with h the score of a row. At the saddle a and b are the mean scores of the two classes, and alpha = b - a.

The margin form (AUC-M; Yuan, Yan, Sonka, Yang 2021, "Large-scale robust deep AUC maximization") no longer pushes
classes that lie m apart: with alpha >= 0,
  (1-p)(h-a)^2 [pos] + p(h-b)^2 [neg] + 2 alpha (p(1-p) m + p h [neg] - (1-p) h [pos]) - p(1-p) alpha^2,
which at its saddle is p(1-p) (variance of the positives' scores + that of the negatives' + max(0, m - a + b)^2).
Without alpha >= 0 and with m = 1 it is the square form, alpha one larger, plus p(1-p).

Both are, with positive[..] the mean over rows of what stands in brackets where a row is a positive and 0 elsewhere,
  positive[c+ (h-a)^2] + negative[c- (h-b)^2] + 2 (1+alpha) (negative[c- h] - positive[c+ h]) - c0 alpha^2
  with c+ = 1-p, c- = p, c0 = p(1-p). With draws = "classes" the two are means over rows of their class, drawn apart,
and c+ = 1/q+, c- = 1/q-, c0 = 1, q+ and q- the shares of clients that have the class. With one client that is the
above over p(1-p): no longer small where a class is rare, and no minibatch is without it. With several, the rows of
a client weigh what the client weighs, as in the pairwise form of cyclic-auc, however many of the class it has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedsaddle.contracts import (
    Batch,
    Data,
    Draw,
    Federation,
    Materials,
    Oracle,
    Pair,
    Point,
    Rows,
    SettingError,
    ShareOf,
    setting,
)
from fedsaddle.maths import flat
from fedsaddle.maths.nets import at_once
from fedsaddle.metrics import auc
from fedsaddle.metrics.scalars import as_numbers
from fedsaddle.models.checks import check_module
from fedsaddle.problems import alarms
from fedsaddle.problems.shares import CLASSES, class_shares, known_shares, named_shares

SLICE = 8192  # rows evaluated at once, at most

SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "linear": lambda output: output,
    "softmax": lambda output: torch.softmax(output, 1)[:, 1],  # class 1 against the rest, as the published code
}


class Share(NamedTuple):
    """How much of a client's data is of each class: empty in the question, filled in the reply.

    Both are asked for, since a rounded sum of weights need not be exactly 1 where a class is missing.
    """

    positive: ShareOf | float = 0.0
    negative: ShareOf | float = 0.0


def positive_share(oracle: Oracle, message: Share, client: Any, data: Data) -> tuple[Share, Any]:
    batch = data.full
    positive = batch.targets > 0
    return Share((batch.weight * positive).sum(), (batch.weight * ~positive).sum()), client


@dataclass(frozen=True)
class AUC:
    """x = (the net's parameters, a, b), y = (alpha,). Rows with target > 0 are the positives."""

    net: nn.Module
    score: str = setting("sigmoid", "how the net's output becomes a score h", choices=tuple(SCORES))
    form: str = setting("square", "the square loss of all pairs, or the margin form of AUC-M",
                        choices=("square", "margin"))
    margin: float = setting(1.0, "m of the margin form: how far apart the classes' mean scores are pushed", above=0)
    outputs: int = setting(2, "outputs of a net with the softmax score; class 1 is the score", at_least=2)
    draws: str = setting("rows", "what a minibatch holds: rows as they come, or so many positives and as many "
                         "negatives, where a class is rare", choices=("rows", "classes"))
    p: float | None = setting(None, "share of positives, between 0 and 1; left out, the clients are asked once with "
                                    "the objective's weights; draws = classes needs none", above=0.0)
    shares: tuple[float, float] | None = None  # q+ and q-, where classes are drawn apart
    headline = "auc"

    @property
    def strata(self) -> tuple[str, ...]:
        return CLASSES if self.draws == "classes" else ()

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        return {} if self.score == "linear" else {"scores": (0.0, 1.0)}

    @staticmethod
    def pose(settings: dict[str, Any], materials: Materials) -> AUC:
        return AUC(materials.net(settings["outputs"] if settings["score"] == "softmax" else 1), **settings)

    def __post_init__(self) -> None:
        check_module(self.net)
        if self.score not in SCORES:
            raise SettingError(f"problem.score: unknown score {self.score!r}; choose one of {', '.join(SCORES)}")
        if self.form not in ("square", "margin"):
            raise SettingError(f"problem.form: unknown form {self.form!r}; choose square or margin")
        if self.draws not in ("rows", "classes"):
            raise SettingError(f"problem.draws: unknown draws {self.draws!r}; choose rows or classes")
        if self.draws == "classes" and self.p is not None:
            raise SettingError(f"problem.p: {self.p}, but with problem.draws = classes both classes count alike and no "
                               "share is needed; leave p out, or draw rows")
        if self.p is not None and not 0 < self.p < 1:
            raise SettingError(f"problem.p: {self.p} is no share of positives; set it strictly between 0 and 1, or "
                               "leave it out to have the clients asked for it")

    def first(self) -> Point:
        weights = flat.flatten(self.net)
        return Point(torch.cat([weights, weights.new_zeros(2)]), weights.new_zeros(1))

    def loss(self, x: Tensor, y: Tensor, batch: Batch | Pair) -> Tensor:
        a, b, alpha = x[-2], x[-1], y[0]
        if isinstance(batch, Pair):
            return self._constant(alpha) + sum(
                (side.weight * self._terms(self.scores(x, side), pos, a, b, alpha)).sum()
                for side, pos in zip(batch, (1.0, 0.0), strict=True))
        terms = self._terms(self.scores(x, batch), self._positive(batch), a, b, alpha) + self._constant(alpha)
        return (batch.weight * terms).sum()

    def scores(self, x: Tensor, batch: Batch) -> Tensor:
        """One score h a row."""
        return self._score(x, batch.inputs)

    def _score(self, x: Tensor, inputs: Tensor) -> Tensor:
        output = flat.call(self.net, x[:-2], inputs)
        shape, rows = tuple(output.shape), len(inputs)
        if self.score == "softmax":
            if len(shape) != 2 or shape[0] != rows or shape[1] < 2:
                raise SettingError(f"problem.score: softmax needs two or more outputs a row, but the net gives {shape} "
                                   f"for {rows} rows; give it 2 outputs, or set score to sigmoid")
        elif shape == (rows, 1):
            output = output.squeeze(1)
        elif shape != (rows,):
            raise SettingError(f"problem.score: {self.score} needs one output a row, but the net gives {shape} for "
                               f"{rows} rows; give it 1 output, or set score to softmax")
        return SCORES[self.score](output)

    def _positive(self, batch: Batch) -> Tensor:
        """1 for each positive, 0 for each negative."""
        if batch.targets.shape != batch.weight.shape:
            raise SettingError(f"targets: shape {tuple(batch.targets.shape)} for {len(batch.weight)} scores; give each "
                               "row one number, positive where it is above 0")
        return (batch.targets > 0).to(batch.weight.dtype)

    def _factors(self) -> tuple[float, float, float]:
        """c+, c-, c0."""
        if self.draws == "classes":
            if self.shares is None:
                raise SettingError("problem.shares: which clients have positives and negatives is not known yet; use "
                                   "the problem that prepare(federation) returns, or set shares")
            return 1 / self.shares[0], 1 / self.shares[1], 1.0
        p = self._share()
        return 1 - p, p, p * (1 - p)

    def _terms(self, h: Tensor, pos: Tensor | float, a: Tensor, b: Tensor, alpha: Tensor) -> Tensor:
        """The loss of every row, less what does not depend on it. pos: 1 for a positive, 0 for a negative."""
        first, second, _ = self._factors()
        neg = 1 - pos
        slope = 1 + alpha if self.form == "square" else alpha
        return (first * (h - a) ** 2 * pos + second * (h - b) ** 2 * neg
                + 2 * slope * (second * h * neg - first * h * pos))

    def _constant(self, alpha: Tensor) -> Tensor:
        c = self._factors()[2]
        return (2 * c * self.margin * alpha if self.form == "margin" else 0) - c * alpha**2

    def _alpha(self, h: Tensor, positive: Tensor) -> Tensor:
        """The maximiser over alpha, every row weighing the same, or both classes."""
        if self.draws == "classes":
            apart = h[~positive].mean() - h[positive].mean()  # b - a
        else:
            p = self._share()
            apart = torch.where(positive, -(1 - p) * h, p * h).mean() / (p * (1 - p))  # b - a, p being the rows' share
        return apart if self.form == "square" else (self.margin + apart).clamp(min=0)

    def best_response(self, z: Point, rows: Rows) -> Tensor:
        """y*(x) = (alpha*,) on these rows."""
        return self._alpha(self._pooled(z.x, rows.inputs).double(), rows.targets > 0)[None].to(z.y)

    def project(self, z: Point) -> Point:
        return z if self.form == "square" else Point(z.x, z.y.clamp(min=0))

    @torch.no_grad()
    def _pooled(self, x: Tensor, inputs: Tensor) -> Tensor:
        return torch.cat([self._score(x, part) for part in inputs.split(at_once(self, inputs, SLICE))])

    def _share(self) -> float:
        if self.p is None:
            raise SettingError("problem.p: the share of positives is not known yet; use the problem that "
                               "prepare(federation) returns, or set p")
        return self.p

    def prepare(self, federation: Federation) -> AUC:
        """Learn p with the objective's own client weights: with any other the saddle is not AUC's."""
        if self.draws == "classes":
            return self if self.shares is not None else replace(self, shares=class_shares(federation))
        if self.p is not None:
            return self
        share = federation.average(positive_share, Share(), federation.everyone(), Draw(full=True, inputs=False)).mean
        positive, negative = float(share.positive), float(share.negative)
        if not positive or not negative:
            missing = "negatives (target <= 0)" if positive else "positives (target > 0)"
            raise SettingError(f"targets: no client has any {missing}, so there is no AUC to maximise; check how the "
                               "targets are coded")
        return replace(self, p=positive / (positive + negative))

    def constants(self) -> dict[str, float]:
        return {**({} if self.p is None else {"p": self.p}), **named_shares(self.shares)}

    def with_constants(self, values: dict[str, float]) -> AUC:
        return replace(self, p=values.get("p"), shares=known_shares(values))

    @torch.no_grad()
    def measure(self, z: Point, rows: Rows) -> dict[str, float]:
        """AUC, the minimax loss at z and its maximum over alpha (`primal`), weighing rows as `_alpha` does."""
        scores, positive = self._pooled(z.x, rows.inputs), rows.targets > 0
        h, (a, b), alpha = scores.double(), z.x[-2:].double(), z.y[0].double()
        pos, weight = positive.double(), torch.full_like(h, 1 / len(h))
        if self.shares is not None:  # every class's terms are divided by its share
            weight = torch.where(positive, self.shares[0] / pos.sum(), self.shares[1] / (1 - pos).sum())

        def value(alpha: Tensor) -> Tensor:
            return (weight * self._terms(h, pos, a, b, alpha)).sum() + self._constant(alpha)

        return {"auc": auc(scores, positive), **as_numbers({
            "objective": value(alpha), "primal": value(self._alpha(h, positive)),
            "score_min": h.min(), "score_max": h.max(), "score_spread": h.std(correction=0),
        })}

    def alarms(self, measures: dict[str, float]) -> list[str]:
        return alarms.of_scores(measures, bounded=bool(self.ranges))

    def named(self, z: Point) -> dict[str, Tensor]:
        net = {f"net.{name}": values.clone() for name, values in flat.named(self.net, z.x[:-2]).items()}
        return {**net, "a": z.x[-2].clone(), "b": z.x[-1].clone(), "alpha": z.y[0].clone()}
