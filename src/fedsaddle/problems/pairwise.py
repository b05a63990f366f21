"""Pairwise AUC maximisation with any surrogate, pairs across all clients (cyclic-auc, section 5 and Table 10).

F(w) = sum_i w_i E_{z in D1_i} sum_j w_j E_{z' in D2_j} psi(h(w; z), h(w; z')), positives D1, negatives D2.
A client without positives adds nothing to the first sum, one without negatives nothing to the second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedsaddle.contracts import (
    Batch,
    Federation,
    Materials,
    Pair,
    Point,
    Rows,
    Scores,
    SettingError,
    setting,
)
from fedsaddle.maths import flat
from fedsaddle.maths.nets import at_once
from fedsaddle.metrics import auc
from fedsaddle.metrics.scalars import as_numbers
from fedsaddle.models.checks import check_module
from fedsaddle.problems import alarms
from fedsaddle.problems.auc import SLICE
from fedsaddle.problems.psi import SURROGATES, Psi, Shape, across, within
from fedsaddle.problems.shares import CLASSES, class_shares, known_shares, named_shares

SEEN = 2048  # rows of each class, evenly spaced, whose pairs are evaluated: all pairs would be too many

SCORES: dict[str, Callable[[Tensor], Tensor]] = {"sigmoid": torch.sigmoid, "linear": lambda output: output}


@dataclass(frozen=True)
class Pairwise:
    """x: the net's parameters, y: empty. Rows with target > 0 are the positives. `psi`: a loss of your own."""

    net: nn.Module
    surrogate: str = setting("sigmoid", "psi(a, b), the loss of a positive with score a and a negative with score b, "
                             "t = a - b", choices=tuple(SURROGATES))
    margin: float = setting(1.0, "m of the square, the barrier and the hinge losses", above=0)
    scale: float = setting(1.0, "s of the logistic and the sigmoid loss, 1/lambda in the paper", above=0)
    tau: float = setting(2.0, "tau of the barrier hinge: the slope of its walls", above=1)
    q: float = setting(2.0, "q of the q-norm hinge", above=1)
    score: str = setting("sigmoid", "how the net's output becomes a score h", choices=tuple(SCORES))
    psi: Psi | None = None
    shares: tuple[float, float] | None = None  # of clients that have positives, negatives, by the objective's weights
    strata = CLASSES
    headline = "auc"

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        return {} if self.score == "linear" else {"scores": (0.0, 1.0)}

    @staticmethod
    def pose(settings: dict[str, Any], materials: Materials) -> Pairwise:
        return Pairwise(materials.net(1), **settings)

    def __post_init__(self) -> None:
        check_module(self.net)
        for name, known in (("surrogate", SURROGATES), ("score", SCORES)):
            if getattr(self, name) not in known:
                raise SettingError(f"problem.{name}: unknown {getattr(self, name)!r}; choose one of {', '.join(known)}")

    def first(self) -> Point:
        weights = flat.flatten(self.net)
        return Point(weights, weights.new_zeros(0))

    def pair_loss(self, a: Tensor, b: Tensor) -> Tensor:
        """psi(a, b)."""
        if self.psi is not None:
            return self.psi(a, b)
        return SURROGATES[self.surrogate](a - b, Shape(self.margin, self.scale, self.tau, self.q))

    def loss(self, x: Tensor, y: Tensor, batch: Pair) -> Tensor:
        """Within one client: the mean over the pairs of its batch. What methods that know no pairs minimise."""
        return within(self.pair_loss, self.scores(x, batch[0]), self.scores(x, batch[1]), batch)

    def active_loss(
        self, x: Tensor, y: Tensor, pair: Pair, old: tuple[Scores, Scores],
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Across clients: own positives against old negatives of others, and old positives against own negatives."""
        first, second = self.scores(x, pair[0]), self.scores(x, pair[1])
        # The sum over j in F has zeros where a client lacks the class, a pool has not: without the shares a class that
        # few clients have would pull less than the other, and the step would be no gradient of anything.
        passive = tuple(Scores(s.value, s.weight * share) for s, share in zip(old, self._shares(), strict=True))
        return across(self.pair_loss, first, second, pair, (passive[0], passive[1])), (first, second)

    def scores(self, x: Tensor, batch: Batch) -> Tensor:
        return self._score(x, batch.inputs)

    def _score(self, x: Tensor, inputs: Tensor) -> Tensor:
        output = flat.call(self.net, x, inputs)
        if tuple(output.shape) not in ((len(inputs),), (len(inputs), 1)):
            raise SettingError(f"problem.net: gives {tuple(output.shape)} for {len(inputs)} rows; give it one output")
        return SCORES[self.score](output.reshape(len(inputs)))

    def _shares(self) -> tuple[float, float]:
        if self.shares is None:
            raise SettingError("problem.shares: which clients have positives and negatives is not known yet; use the "
                               "problem that prepare(federation) returns, or set shares")
        return self.shares

    def prepare(self, federation: Federation) -> Pairwise:
        """Learn how many of the clients have each class, with the objective's weights."""
        return self if self.shares is not None else replace(self, shares=class_shares(federation))

    def constants(self) -> dict[str, float]:
        return named_shares(self.shares)

    def with_constants(self, values: dict[str, float]) -> Pairwise:
        return replace(self, shares=known_shares(values))

    @torch.no_grad()
    def measure(self, z: Point, rows: Rows) -> dict[str, float]:
        """AUC of all rows, and the mean of psi over pairs of evenly spaced rows, every pair weighing the same."""
        scores = torch.cat([self._score(z.x, part) for part in rows.inputs.split(at_once(self, rows.inputs, SLICE))])
        h, positive = scores.double(), rows.targets > 0
        pairs = self.pair_loss(spaced(h[positive])[:, None], spaced(h[~positive])[None, :])
        return {"auc": auc(scores, positive), **as_numbers({
            "objective": pairs.mean(),
            "score_min": h.min(), "score_max": h.max(), "score_spread": h.std(correction=0),
        })}

    def alarms(self, measures: dict[str, float]) -> list[str]:
        return alarms.of_scores(measures, bounded=bool(self.ranges))

    def named(self, z: Point) -> dict[str, Tensor]:
        return {f"net.{name}": values.clone() for name, values in flat.named(self.net, z.x).items()}


def spaced(values: Tensor, most: int = SEEN) -> Tensor:
    """At most so many of the rows, evenly spaced."""
    step = max(1, len(values) / most)
    return values[(torch.arange(min(most, len(values)), device=values.device) * step).long()]
