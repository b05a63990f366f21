"""A problem of your own: a class with `first` and `loss`, or a module and a loss of rows (docs/your-own-problem.md)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedsaddle.contracts import Batch, Materials, Point, Problem, SettingError, empty
from fedsaddle.maths import flat
from fedsaddle.models.checks import check_module

# (net, y, batch) -> one loss a row; `net` maps inputs to outputs
RowLoss = Callable[[Callable[[Tensor], Any], Tensor, Batch], Tensor]


def from_module(
    net: nn.Module, loss: RowLoss, y: Tensor | None = None, project: Callable[[Tensor], Tensor] | None = None,
) -> Problem:
    """min over the net's parameters, max over y, of the mean of `loss(net, y, batch)` over a client's rows.

    loss: one number a row, without a mean or a sum; `batch.inputs` and `batch.targets` are its rows, `net(inputs)` its
    outputs. y: where the maximising variable starts, of any shape; left out, there is none. project: of y, onto its
    domain.
    """
    return FromModule(net, loss, empty() if y is None else torch.as_tensor(y), project)


@dataclass(frozen=True, eq=False)  # tensors cannot be compared for equality with one answer
class FromModule:
    """What `from_module` makes."""

    net: nn.Module
    row_loss: RowLoss
    start: Tensor  # y at the start, in its own shape
    project_y: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        check_module(self.net)

    def first(self) -> Point:
        x = flat.flatten(self.net)
        return Point(x, self.start.detach().reshape(-1).to(x))

    def loss(self, x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        each = self.row_loss(partial(flat.call, self.net, x), y.reshape(self.start.shape), batch)
        if tuple(each.shape) != tuple(batch.weight.shape):
            raise SettingError(f"loss: gives {tuple(each.shape)} for {len(batch.weight)} rows; return one number for "
                               "each row, without a mean or a sum")
        return (batch.weight * each).sum()

    def project(self, z: Point) -> Point:
        if self.project_y is None:
            return z
        return Point(z.x, self.project_y(z.y.reshape(self.start.shape)).reshape(-1))

    def named(self, z: Point) -> dict[str, Tensor]:
        net = {f"net.{name}": values.clone() for name, values in flat.named(self.net, z.x).items()}
        return {**net, "y": z.y.reshape(self.start.shape).clone()}


def pose(form: Any, settings: dict[str, Any], materials: Materials) -> Problem:
    """A problem of a settings file. One that has no `pose` gets, of these, what its signature names: `net`, the model
    with as many outputs as it has in `outputs` or the data has classes; `shape`, that of an input."""
    if hasattr(form, "pose"):
        posed: Problem = form.pose(settings, materials)
        return posed
    wanted = inspect.signature(form).parameters.keys() - settings.keys()
    more: dict[str, Any] = {}
    if "net" in wanted:
        more["net"] = materials.net(getattr(form, "outputs", materials.classes or 1))
    if "shape" in wanted:
        more["shape"] = tuple(materials.clients.inputs.shape[1:])
    made: Problem = form(**more, **settings)
    return made
