"""Contrastive metric learning, pairs across all clients (cyclic-auc, eq. 14; the loss of Hadsell et al.).

psi = 1/2 |e - e'|^2 for two rows of one class, 1/2 max(0, m - |e - e'|)^2 for two of different classes, e = net(row).
Any row may meet any other: a client's batch is two draws from all of its rows. What pairwise methods exchange as the
score of a row is its embedding with its class behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedsaddle.contracts import Batch, Materials, Pair, Point, Rows, Scores, SettingError, setting
from fedsaddle.maths import flat
from fedsaddle.metrics import auc
from fedsaddle.metrics.scalars import as_numbers
from fedsaddle.models.checks import check_module
from fedsaddle.problems.alarms import NARROW
from fedsaddle.problems.pairwise import spaced
from fedsaddle.problems.psi import across, within

SEEN = 512  # rows, evenly spaced, whose pairs are evaluated


@dataclass(frozen=True)
class Metric:
    """x: the net's parameters, y: empty. Rows with equal targets are similar."""

    net: nn.Module
    dimension: int = setting(16, "length of an embedding: the net's outputs", at_least=1)
    margin: float = setting(1.0, "m: rows of different classes are pushed to this distance", above=0)
    strata = ("rows", "rows")
    headline = "auc"

    @staticmethod
    def pose(settings: dict[str, Any], materials: Materials) -> Metric:
        return Metric(materials.net(settings["dimension"]), **settings)

    def __post_init__(self) -> None:
        check_module(self.net)

    def first(self) -> Point:
        weights = flat.flatten(self.net)
        return Point(weights, weights.new_zeros(0))

    def pair_loss(self, a: Tensor, b: Tensor) -> Tensor:
        """psi of eq. (14); a and b are embeddings with their class behind them."""
        apart = distance(a[..., :-1], b[..., :-1])
        similar = (a[..., -1] == b[..., -1]).to(apart.dtype)
        return similar * apart**2 / 2 + (1 - similar) * (self.margin - apart).clamp(min=0) ** 2 / 2

    def loss(self, x: Tensor, y: Tensor, batch: Pair) -> Tensor:
        """Within one client: the mean over the pairs of its batch."""
        return within(self.pair_loss, self.scores(x, batch[0]), self.scores(x, batch[1]), batch)

    def active_loss(
        self, x: Tensor, y: Tensor, pair: Pair, old: tuple[Scores, Scores],
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Across clients: own rows against old embeddings of others' rows, on either side of the pair."""
        first, second = self.scores(x, pair[0]), self.scores(x, pair[1])
        return across(self.pair_loss, first, second, pair, old), (first, second)

    def scores(self, x: Tensor, batch: Batch) -> Tensor:
        return self._score(x, batch.inputs, batch.targets)

    def _score(self, x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        output = flat.call(self.net, x, inputs)
        if tuple(output.shape) != (len(inputs), self.dimension):
            raise SettingError(f"problem.dimension = {self.dimension}: the net gives {tuple(output.shape)} for "
                               f"{len(inputs)} rows; give it {self.dimension} outputs, or set dimension to its outputs")
        if targets.shape != (len(inputs),):
            raise SettingError(f"targets: shape {tuple(targets.shape)} for {len(inputs)} rows; give each row one class")
        return torch.cat([output, targets.to(output.dtype)[:, None]], 1)

    @torch.no_grad()
    def measure(self, z: Point, rows: Rows) -> dict[str, float]:
        """Over pairs of evenly spaced rows: how well the distance tells similar pairs from others (`auc`), the mean of
        psi, and the mean distances."""
        scores = self._score(z.x, spaced(rows.inputs, SEEN), spaced(rows.targets, SEEN)).double()
        i, j = torch.triu_indices(len(scores), len(scores), offset=1, device=scores.device)
        a, b = scores[i], scores[j]
        apart, similar = distance(a[:, :-1], b[:, :-1]), a[:, -1] == b[:, -1]
        return {"auc": auc(-apart, similar), **as_numbers({
            "objective": self.pair_loss(a, b).mean(),
            "distance_similar": apart[similar].mean(), "distance_other": apart[~similar].mean(),
        })}

    def alarms(self, measures: dict[str, float]) -> list[str]:
        if measures["distance_other"] < NARROW:
            return ["all embeddings have fallen together, where gradients vanish; start again with a smaller step size"]
        return []

    def named(self, z: Point) -> dict[str, Tensor]:
        return {f"net.{name}": values.clone() for name, values in flat.named(self.net, z.x).items()}


def distance(a: Tensor, b: Tensor) -> Tensor:
    """|a - b| along the last axis. Its gradient where a = b, which a root does not have, is 0."""
    squared = ((a - b) ** 2).sum(-1)
    apart = squared > 0
    return torch.where(apart, torch.where(apart, squared, 1.0).sqrt(), 0.0)
