"""Classification, the f_i of agnostic and distributionally robust learning (papers: drfa).

min_w max_lambda sum_i lambda_i f_i(w) + g(lambda), lambda on the simplex: f_i is the mean cross-entropy of client i's
rows; lambda and g live in the algorithm (drfa, afl, ...). Rows are of one class each, or sequences with the next
character at every place.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from fedsaddle.contracts import Batch, Materials, Point, Rows, SettingError
from fedsaddle.maths import flat
from fedsaddle.maths.nets import at_once
from fedsaddle.metrics.auc import auc
from fedsaddle.metrics.scalars import as_numbers
from fedsaddle.models.checks import check_module
from fedsaddle.problems.classes import correct, cross_entropy

SLICE = 4096  # rows evaluated at once, at most


@dataclass(frozen=True)
class Agnostic:
    """x: the net's parameters, y: empty. Cross-entropy of one class a row, or of the next character at every place."""

    net: nn.Module
    headline = "accuracy"
    ranges = MappingProxyType({"loss": (0.0, inf)})  # a cross-entropy

    @staticmethod
    def pose(settings: dict[str, Any], materials: Materials) -> Agnostic:
        return Agnostic(materials.net(classes_of(materials)), **settings)

    def __post_init__(self) -> None:
        check_module(self.net)

    def first(self) -> Point:
        weights = flat.flatten(self.net)
        return Point(weights, weights.new_zeros(0))

    def loss(self, x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        return (batch.weight * cross_entropy(flat.call(self.net, x, batch.inputs), batch.targets)).sum()

    @torch.no_grad()
    def measure(self, z: Point, rows: Rows) -> dict[str, float]:
        """Accuracy and cross-entropy, every row weighing the same; of two classes also the AUC of their log-odds."""
        size = at_once(self, rows.inputs, SLICE)
        parts = [self._looks(z, Rows(*part)) for part in zip(*(torch.split(p, size) for p in rows), strict=True)]
        looks = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        odds = looks.pop("odds", None)
        ranked = {} if odds is None else {"auc": auc(odds, rows.targets > 0)}
        return as_numbers({name: values.double().mean() for name, values in looks.items()}) | ranked

    @torch.no_grad()
    def by_row(self, z: Point, rows: Rows) -> dict[str, Tensor]:
        return {name: values for name, values in self._looks(z, rows).items() if name != "odds"}

    def _looks(self, z: Point, rows: Rows) -> dict[str, Tensor]:
        outputs = flat.call(self.net, z.x, rows.inputs)
        odds = {"odds": outputs[:, 1] - outputs[:, 0]} if outputs.dim() == 2 and outputs.shape[1] == 2 else {}
        return {"accuracy": correct(outputs, rows.targets), "loss": cross_entropy(outputs, rows.targets), **odds}

    def alarms(self, measures: dict[str, float]) -> list[str]:
        return [] if isfinite(measures["loss"]) else [NOT_FINITE]

    def named(self, z: Point) -> dict[str, Tensor]:
        return {f"net.{name}": values.clone() for name, values in flat.named(self.net, z.x).items()}


NOT_FINITE = "the loss is no longer finite: the run has diverged; lower the step sizes"


def classes_of(materials: Materials) -> int:
    if not materials.classes:
        raise SettingError("problem: is about classes, and this data set has none; choose another problem, or a data "
                           "set with classes, such as mnist")
    return materials.classes
