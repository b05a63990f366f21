"""Training against one perturbation that all inputs share (papers: cdma, robust adversarial network training).

f_i(x, y) = mean over client i's rows of cross-entropy(net(input + y), class) - (lambda/2) |y|^2.
The authors' published code subtracts 0.001 |y|^2, which is lambda = 0.002 here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

import torch
from torch import Tensor, nn

from fedsaddle.contracts import Batch, Materials, Point, Rows, SettingError, setting
from fedsaddle.maths import flat, projections
from fedsaddle.maths.nets import at_once, mixes_rows
from fedsaddle.metrics.primal import SLICE, Pooled, ascend, on_domain
from fedsaddle.metrics.scalars import as_numbers
from fedsaddle.models.checks import check_module
from fedsaddle.problems.agnostic import NOT_FINITE, classes_of
from fedsaddle.problems.classes import correct, cross_entropy

WIDE = 16384  # rows whose gradient is computed at once on a GPU
FAR = 10.0  # |y|^2 beyond which the authors' code starts the ascent at 0


@dataclass(frozen=True)
class Robust:
    """x: the net's parameters, y: the perturbation, which starts at 0. Evaluated by ascent in y."""

    net: nn.Module
    shape: tuple[int, ...]  # of an input, and of the perturbation
    penalty: float = setting(0.001, "lambda: (lambda/2) |y|^2 is subtracted from the loss; 0 with a radius", at_least=0)
    radius: float | None = setting(None, "y is kept within this distance of 0 by projection; none: anywhere", above=0)
    steps: int = setting(20, "steps of ascent in the evaluation", at_least=0)
    size: float = setting(1.0, "size of these steps", above=0)
    headline = "robust_loss"

    @staticmethod
    def pose(settings: dict[str, Any], materials: Materials) -> Robust:
        shape = tuple(materials.clients.inputs.shape[1:])
        return Robust(materials.net(classes_of(materials)), shape, **settings)

    def __post_init__(self) -> None:
        check_module(self.net)
        if not self.penalty and self.radius is None:
            raise SettingError("problem.penalty = 0: nothing holds the perturbation; set a penalty above 0, or a "
                               "radius")

    def first(self) -> Point:
        weights = flat.flatten(self.net)
        return Point(weights, weights.new_zeros(prod(self.shape)))

    def loss(self, x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        fit = (batch.weight * cross_entropy(self._outputs(x, y, batch.inputs), batch.targets)).sum()
        return fit - self.penalty / 2 * (y**2).sum()

    def _outputs(self, x: Tensor, y: Tensor, inputs: Tensor) -> Tensor:
        if tuple(inputs.shape[1:]) != tuple(self.shape) or not inputs.is_floating_point():
            raise SettingError(f"problem.shape = {tuple(self.shape)}: the inputs are {inputs.dtype} of shape "
                               f"{tuple(inputs.shape[1:])}; a perturbation is added to real numbers of one shape")
        outputs: Tensor = flat.call(self.net, x, inputs + y.reshape(self.shape))
        return outputs

    def project(self, z: Point) -> Point:
        return z if self.radius is None else Point(z.x, projections.ball(z.y, self.radius))

    def measure(self, z: Point, rows: Rows) -> dict[str, float]:
        """Loss and accuracy without perturbation, and after ascent from 0 and from the trained y (`..._from_y`).

        robust_loss is the cross-entropy on the perturbed rows; robust_objective is f there, the penalty subtracted.
        robust_loss_published is what the authors' code calls so: robust_objective, the ascent starting at y, or at 0
        where y is far from it.
        """
        # Many rows keep a GPU busy; in batch norm they would change the result.
        wide = rows.inputs.device.type == "cuda" and not mixes_rows(self)
        objective, at_rest = Pooled(self, rows, z.x.dtype, WIDE if wide else SLICE), torch.zeros_like(z.y)
        got = self._fit(z.x, at_rest, rows, "")
        got["objective"] = objective.value(*z)
        for start, name in ((at_rest, ""), (z.y, "_from_y")):
            y = ascend(lambda y: objective.slope(z.x, y)[1], start, self.steps, self.size, on_domain(self, z.x))
            robust = self._fit(z.x, y, rows, name)
            got |= {f"robust_{key}": value for key, value in robust.items()}
            got[f"robust_objective{name}"] = robust[f"loss{name}"] - self.penalty / 2 * (y.double() ** 2).sum()
        near = (z.y**2).sum() <= FAR
        got["robust_loss_published"] = torch.where(near, got["robust_objective_from_y"], got["robust_objective"])
        return as_numbers({**got, "perturbation": torch.linalg.vector_norm(z.y)})

    def by_row(self, z: Point, rows: Rows) -> dict[str, Tensor]:
        """Without perturbation."""
        return self._each(z.x, torch.zeros_like(z.y), rows)

    @torch.no_grad()
    def _each(self, x: Tensor, y: Tensor, rows: Rows) -> dict[str, Tensor]:
        outputs = self._outputs(x, y, rows.inputs)
        return {"loss": cross_entropy(outputs, rows.targets), "accuracy": correct(outputs, rows.targets)}

    def _fit(self, x: Tensor, y: Tensor, rows: Rows, name: str) -> dict[str, Tensor]:
        size = at_once(self, rows.inputs, SLICE)
        parts = [self._each(x, y, Rows(*part)) for part in zip(*(torch.split(p, size) for p in rows), strict=True)]
        return {key + name: torch.cat([part[key] for part in parts]).double().mean() for key in parts[0]}

    def alarms(self, measures: dict[str, float]) -> list[str]:
        return [] if isfinite(measures["loss"]) and isfinite(measures["objective"]) else [NOT_FINITE]

    def named(self, z: Point) -> dict[str, Tensor]:
        net = {f"net.{name}": values.clone() for name, values in flat.named(self.net, z.x).items()}
        return {**net, "perturbation": z.y.reshape(self.shape).clone()}
