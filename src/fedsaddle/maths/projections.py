"""Euclidean projections of a flat vector on the simplex, a ball and a box. All run under vmap."""

from __future__ import annotations

import torch
from torch import Tensor

LONG = 10_000  # entries from which a sort is slower than a few passes


def simplex(v: Tensor, total: float = 1.0) -> Tensor:
    """The nearest u with u >= 0 and sum(u) = total: u = (v - theta)_+, theta found from the sorted entries."""
    v = v - v.max()  # changes nothing but rounding: beside large entries `total` would be lost
    ordered = torch.sort(v, descending=True).values
    excess = ordered.cumsum(0) - total
    counts = torch.arange(1, len(v) + 1, dtype=v.dtype, device=v.device)
    support = (ordered * counts > excess).sum().clamp(min=1)
    theta = excess.gather(0, (support - 1)[None]) / support
    return (v - theta).clamp(min=0)


def long_simplex(v: Tensor, total: float = 1.0) -> Tensor:
    """`simplex` for vectors of the server that may be long: O(entries) by Michelot's method, but not under vmap.

    theta rises with every pass over the entries still above it, and stays where none falls out. Sums are in float64:
    beside a million entries single precision would not see 1.
    """
    if len(v) <= LONG:
        return simplex(v, total)
    v = v - v.max()
    left, theta = v, (v.sum(dtype=torch.float64) - total) / len(v)
    while True:
        above = left[left > theta.to(v.dtype)]
        if len(above) == len(left) or not len(above):
            return v.sub_(theta.to(v.dtype)).clamp_(min=0)
        left, theta = above, (above.sum(dtype=torch.float64) - total) / len(above)


def ball(v: Tensor, radius: float, centre: Tensor | float = 0.0) -> Tensor:
    """The nearest u with |u - centre| <= radius."""
    distance: Tensor = torch.linalg.vector_norm(v - centre)
    return centre + (v - centre) * (radius / distance.clamp(min=radius))


def box(v: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """The nearest u with low <= u <= high."""
    return torch.minimum(torch.maximum(v, torch.as_tensor(low, dtype=v.dtype, device=v.device)),
                         torch.as_tensor(high, dtype=v.dtype, device=v.device))
