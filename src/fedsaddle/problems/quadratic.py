"""A quadratic saddle whose solution is known: what every method must reach, and the measure of drift and noise.

f_i(x, y) = mean over rows r of client i of  1/2 x'A_r x + x'B_r y - 1/2 y'C_r y + a_r'x - c_r'y.
A row's inputs are the entries of A, B and C, its targets those of a and c, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsaddle.contracts import Batch, Materials, Point, Rows, SettingError, setting


class Coefficients(NamedTuple):
    """One quadratic: a row's, a client's or the whole objective's. A and C are symmetric."""

    A: Tensor
    B: Tensor
    C: Tensor
    a: Tensor
    c: Tensor


def unpack(inputs: Tensor, targets: Tensor, dimension_x: int, dimension_y: int) -> Coefficients:
    """The coefficients written in one row."""
    m, n = dimension_x, dimension_y
    wanted = (m * m + m * n + n * n, m + n)
    if (*inputs.shape, *targets.shape) != wanted:
        raise SettingError(f"quadratic: rows of {tuple(inputs.shape)} inputs and {tuple(targets.shape)} targets, "
                           f"but dimension_x = {m} and dimension_y = {n} need {wanted[0]} and {wanted[1]} numbers")
    A, B, C = inputs[: m * m], inputs[m * m : m * m + m * n], inputs[m * m + m * n :]
    A, B, C = A.reshape(m, m), B.reshape(m, n), C.reshape(n, n)
    return Coefficients((A + A.T) / 2, B, (C + C.T) / 2, targets[:m], targets[m:])


def value(q: Coefficients, x: Tensor, y: Tensor) -> Tensor:
    return x @ (q.A @ x) / 2 + x @ (q.B @ y) - y @ (q.C @ y) / 2 + q.a @ x - q.c @ y


def gradient(q: Coefficients, x: Tensor, y: Tensor) -> Point:
    return Point(q.A @ x + q.B @ y + q.a, q.B.T @ x - q.C @ y - q.c)


def solve(q: Coefficients) -> Point:
    """The saddle: where both gradients vanish."""
    system = torch.cat([torch.cat([q.A, q.B], 1), torch.cat([q.B.T, -q.C], 1)])
    z = torch.linalg.solve(system, torch.cat([-q.a, q.c]))
    return Point(z[: len(q.a)], z[len(q.a) :])


def gap(q: Coefficients, x: Tensor, y: Tensor) -> Tensor:
    """max over y' of f(x, y') minus min over x' of f(x', y): zero at the saddle and nowhere else."""
    best_x = -torch.linalg.solve(q.A, q.B @ y + q.a)
    return value(q, x, response(q, x)) - value(q, best_x, y)


def response(q: Coefficients, x: Tensor) -> Tensor:
    """y*(x), the maximiser over y."""
    best: Tensor = torch.linalg.solve(q.C, q.B.T @ x - q.c)
    return best


def coefficients(clients: Any, weights: Tensor, dimension_x: int, dimension_y: int) -> Coefficients:
    """The whole objective, sum_i w_i f_i, in float64. `clients`: data.Clients; `weights`: one a client, any total."""
    start, size = (part.cpu() for part in clients.run)
    owner = torch.repeat_interleave(torch.arange(len(size)), size)
    row = torch.arange(len(owner)) - (size.cumsum(0) - size - start)[owner]
    share = weights.cpu().double() / weights.sum().cpu().double() / size
    weight = torch.zeros(len(clients.inputs), dtype=torch.float64).index_add_(0, row, share[owner])
    return unpack(weight @ clients.inputs.cpu().double(), weight @ clients.targets.cpu().double(),
                  dimension_x, dimension_y)


def saddle(clients: Any, weights: Tensor, dimension_x: int, dimension_y: int) -> Point:
    """The solution of the federation's problem. It depends on the client weights as soon as clients differ."""
    return solve(coefficients(clients, weights, dimension_x, dimension_y))


@dataclass(frozen=True, eq=False)  # tensors cannot be compared for equality with one answer
class Quadratic:
    """x and y free. With `mean`, the whole objective, it measures how far from the saddle a point is."""

    dimension_x: int = setting(10, "length of x", at_least=1)
    dimension_y: int = setting(10, "length of y", at_least=1)
    start: float = setting(1.0, "every entry of x and y at the start")
    mean: Coefficients | None = None
    headline = "distance"

    @staticmethod
    def pose(settings: dict[str, Any], materials: Materials) -> Quadratic:
        m, n = settings["dimension_x"], settings["dimension_y"]
        return Quadratic(mean=coefficients(materials.clients, materials.weights, m, n), **settings)

    def first(self) -> Point:
        return Point(torch.full((self.dimension_x,), self.start), torch.full((self.dimension_y,), self.start))

    def loss(self, x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        return value(self._of(batch), x, y)

    def gradient(self, x: Tensor, y: Tensor, batch: Batch) -> Point:
        return gradient(self._of(batch), x, y)

    def _of(self, batch: Batch) -> Coefficients:
        """The batch's quadratic: f is linear in its coefficients, so they are averaged rather than the losses."""
        return unpack(batch.weight @ batch.inputs, batch.weight @ batch.targets, self.dimension_x, self.dimension_y)

    @torch.no_grad()
    def measure(self, z: Point, rows: Rows) -> dict[str, float]:
        """With `mean`: objective, duality gap, primal value and gradient, and relative distance to the saddle.
        Without: the rows' mean loss."""
        z = Point(z.x.cpu().double(), z.y.cpu().double())
        if self.mean is None:
            inputs, targets = rows.inputs.cpu().double().mean(0), rows.targets.cpu().double().mean(0)
            return {"objective": float(value(unpack(inputs, targets, self.dimension_x, self.dimension_y), *z))}
        best, first = solve(self.mean), self.first()
        start = Point(first.x.double(), first.y.double())
        top = response(self.mean, z.x)
        return {"objective": float(value(self.mean, *z)), "gap": float(gap(self.mean, *z)),
                "primal": float(value(self.mean, z.x, top)),
                "primal_gradient": float(torch.linalg.vector_norm(gradient(self.mean, z.x, top).x)),
                "distance": _norm(z - best) / _norm(start - best)}

    def named(self, z: Point) -> dict[str, Tensor]:
        return {"x": z.x.clone(), "y": z.y.clone()}


def _norm(z: Point) -> float:
    return float(torch.linalg.vector_norm(torch.cat(z)))
