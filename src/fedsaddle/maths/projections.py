"""Euclidean projections of a flat vector on the simplex, a ball and a box. All run under vmap."""

from __future__ import annotations

import torch
from torch import Tensor


def simplex(v: Tensor, total: float = 1.0) -> Tensor:
    """The nearest u with u >= 0 and sum(u) = total: u = (v - theta)_+, theta found from the sorted entries."""
    v = v - v.max()  # changes nothing but rounding: beside large entries `total` would be lost
    ordered = torch.sort(v, descending=True).values
    excess = ordered.cumsum(0) - total
    counts = torch.arange(1, len(v) + 1, dtype=v.dtype, device=v.device)
    support = (ordered * counts > excess).sum().clamp(min=1)
    theta = excess.gather(0, (support - 1)[None]) / support
    return (v - theta).clamp(min=0)


def ball(v: Tensor, radius: float, centre: Tensor | float = 0.0) -> Tensor:
    """The nearest u with |u - centre| <= radius."""
    distance: Tensor = torch.linalg.vector_norm(v - centre)
    return centre + (v - centre) * (radius / distance.clamp(min=radius))


def box(v: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """The nearest u with low <= u <= high."""
    return torch.minimum(torch.maximum(v, torch.as_tensor(low, dtype=v.dtype, device=v.device)),
                         torch.as_tensor(high, dtype=v.dtype, device=v.device))
