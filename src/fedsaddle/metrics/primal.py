"""Progress that means something for minimax: the primal value Phi(x) = max_y f(x, y) and the norm of its gradient.

f(x_t, y_t) may rise or fall while a method does well; Phi is what is minimised. Where the maximiser y* is unique,
grad Phi(x) = grad_x f(x, y*) (Danskin). y* comes from the problem where it is known in closed form, else from ascent
with a step that is searched for, so that Phi is approached from below and never overstated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value

from fedsaddle.contracts import Batch, Point, Problem, Rows
from fedsaddle.maths import keys, streams
from fedsaddle.maths.nets import at_once
from fedsaddle.metrics.scalars import as_numbers

SLICE = 2048  # rows whose gradient is computed at once, at most

Project = Callable[[Tensor], Tensor]
Slope = Callable[[Tensor], tuple[Tensor, Tensor]]  # y -> value, gradient


class Primal(NamedTuple):
    """The primal side of a saddle at x."""

    value: float  # Phi(x)
    gradient: float  # |grad Phi(x)|
    y: Tensor  # y*


def primal(problem: Problem, z: Point, rows: Rows, steps: int = 20, size: float = 1.0) -> Primal:
    """Phi(x) on pooled rows, each weighing the same. `steps` of ascent from z.y, the first tried with `size`."""
    best = getattr(problem, "best_response", None)
    objective = Pooled(problem, rows, z.x.dtype)
    y = best(z, rows) if best else climb(lambda y: objective.slope(z.x, y), z.y, steps, size, on_domain(problem, z.x))
    value, gradient = objective.gradient(z.x, y)
    return Primal(**as_numbers({"value": value, "gradient": torch.linalg.vector_norm(gradient)}), y=y)


def measures(problem: Problem, z: Point, rows: Rows, steps: int) -> dict[str, float]:
    """As measures of a run. A problem of pairs minimises only: its objective says it already."""
    if getattr(problem, "strata", ()):
        return {}
    found = primal(problem, z, rows, steps)
    return {"primal": found.value, "primal_gradient": found.gradient}


class Pooled:
    """f of a problem on all rows at once, computed in slices."""

    def __init__(self, problem: Problem, rows: Rows, dtype: torch.dtype, most: int = SLICE) -> None:
        """most: rows in a slice; where the device has no room for them, they become fewer."""
        self.problem, self.rows, self.at_once = problem, rows, at_once(problem, rows.inputs, most)
        self.noise = getattr(problem, "noise", 0)
        self.dtype = dtype

    def batches(self) -> Any:
        """(share of the rows, batch): weights sum to one in each, since a loss may have terms without weights."""
        total = len(self.rows.targets)
        for first in range(0, total, self.at_once):
            inputs, targets = (part[first : first + self.at_once] for part in self.rows)
            weight = torch.full((len(targets),), 1 / len(targets), dtype=self.dtype, device=inputs.device)
            yield len(targets) / total, Batch(inputs, targets, weight, self._noise(first, len(targets), inputs.device))

    def _noise(self, first: int, count: int, device: torch.device) -> Any:
        """The same numbers at every evaluation, so that two can be compared."""
        return fixed_noise(count, self.noise, self.dtype, device, first) if self.noise else ()

    @torch.no_grad()
    def value(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([share * self.problem.loss(x, y, batch) for share, batch in self.batches()]).sum()

    def slope(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """f and its gradient in y."""
        return self._summed(grad_and_value(self.problem.loss, argnums=1), x, y)

    def gradient(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """f and its gradient in x."""
        return self._summed(grad_and_value(self.problem.loss, argnums=0), x, y)

    def _summed(self, both: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        value = gradient = torch.zeros((), dtype=x.dtype, device=x.device)
        try:
            for share, batch in self.batches():
                g, v = both(x, y, batch)
                value, gradient = value + share * v.detach(), gradient + share * g.detach()
        except torch.OutOfMemoryError:
            if self.at_once <= SLICE:
                raise
            self.at_once //= 2
            return self._summed(both, x, y)
        return value, gradient


def fixed_noise(
    rows: int, width: int, dtype: torch.dtype, device: torch.device, first: int = 0, seed: int = 0,
) -> Tensor:
    """Uniform numbers on [0, 1) for evaluation: `width` a row, rows `first`, `first` + 1, ... of one long stream."""
    key = keys.address(seed, keys.Purpose.NOISE)
    return streams.stream(key, rows * width, first * width, device).reshape(rows, width).to(dtype)


def on_domain(problem: Problem, x: Tensor) -> Project:
    """The problem's projection, of y alone."""
    project = getattr(problem, "project", None)
    return (lambda y: project(Point(x, y)).y) if project else (lambda y: y)


def ascend(gradient: Callable[[Tensor], Tensor], y: Tensor, steps: int, size: float, project: Project) -> Tensor:
    """Plain projected gradient ascent: what papers report as the inner maximum."""
    for _ in range(steps):
        y = project(y + size * gradient(y))
    return y


def climb(slope: Slope, y: Tensor, steps: int, size: float, project: Project) -> Tensor:
    """Projected gradient ascent that never steps down: a step is halved until f is above the parabola of curvature
    1 / size that touches it at y, and the next is tried at twice its size."""
    if not y.numel():
        return y
    y = project(y)
    value, gradient = slope(y)
    for _ in range(steps):
        while size > 1e-12:
            ahead = project(y + size * gradient)
            new = slope(ahead)
            step = ahead - y
            above = new[0] >= value + gradient @ step - step @ step / (2 * size)
            stays, enough = torch.stack([(ahead == y).all(), above]).tolist()  # the one time that the host waits
            if stays:
                return y
            if enough:
                break
            size /= 2
        else:
            break
        y, (value, gradient), size = ahead, new, 2 * size
    return y
