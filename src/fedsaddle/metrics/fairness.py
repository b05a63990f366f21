"""How a solution serves each client: the worst, the worst tenth, the average and the spread over clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedsaddle.contracts import Batch, Point, Problem, Rows
from fedsaddle.maths.nets import at_once
from fedsaddle.metrics.primal import fixed_noise
from fedsaddle.metrics.scalars import as_numbers

SLICE = 4096  # rows evaluated at once, at most
HIGHER = {"accuracy"}  # measures that are better when higher; of the others the worst is the highest
Track = Callable[[Iterable[Any]], Iterable[Any]]  # such as rich.progress.track


@torch.no_grad()
def by_client(problem: Problem, z: Point, clients: Any, track: Track = iter) -> dict[str, Tensor]:
    """The measures of every client, each the mean over its rows. `clients`: a data.Clients table.

    A problem's own `by_row` says what is measured; without it, the loss of every row.
    """
    of_rows = getattr(problem, "by_row", None) or (lambda z, rows: row_losses(problem, z, rows))
    parts: dict[str, list[Tensor]] = {}
    size = at_once(problem, clients.inputs, SLICE)
    for first in track(range(0, len(clients.targets), size)):
        rows = Rows(clients.inputs[first : first + size], clients.targets[first : first + size])
        for name, values in of_rows(z, rows).items():
            parts.setdefault(name, []).append(values)
    return {name: segment_means(torch.cat(values), clients.run.start, clients.run.size)
            for name, values in parts.items()}


def segment_means(values: Tensor, start: Tensor, size: Tensor) -> Tensor:
    """The mean of values[start : start + size] for every client; runs may overlap."""
    sums = torch.cat([values.new_zeros(1, dtype=torch.float64), values.double().cumsum(0)])
    return (sums[start + size] - sums[start]) / size


def row_losses(problem: Problem, z: Point, rows: Rows) -> dict[str, Tensor]:
    """The loss of every row: that of a batch which holds it alone."""
    count, width = len(rows.targets), getattr(problem, "noise", 0)
    noise: Any = fixed_noise(count, width, z.x.dtype, z.x.device) if width else ()
    weight = torch.ones(1, dtype=z.x.dtype, device=z.x.device)

    def one(inputs: Tensor, targets: Tensor, noise: Any) -> Tensor:
        return problem.loss(z.x, z.y, Batch(inputs[None], targets[None], weight, noise[None] if width else ()))

    return {"loss": vmap(one, in_dims=(0, 0, 0 if width else None))(*rows, noise)}


def summary(values: Tensor, higher: bool) -> dict[str, float]:
    """Over clients, all counting alike. worst_tenth: the mean of the worst 10 %, at least one client; spread: the
    standard deviation."""
    return as_numbers(_summary(values, higher))


def _summary(values: Tensor, higher: bool) -> dict[str, Tensor]:
    ordered = torch.sort(values.double(), descending=not higher).values
    tenth = ordered[: ceil(len(values) / 10)]
    return {"worst": ordered[0], "worst_tenth": tenth.mean(), "mean": ordered.mean(),
            "spread": ordered.std(correction=0)}


def fairness(problem: Problem, z: Point, clients: Any, track: Track = iter) -> dict[str, float]:
    """The summary of every measure by client: accuracy_worst, accuracy_worst_tenth, ..., loss_spread."""
    return as_numbers({f"{name}_{part}": value for name, values in by_client(problem, z, clients, track).items()
                       for part, value in _summary(values, name in HIGHER).items()})
