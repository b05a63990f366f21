"""How far apart two samples are, without a net that judges: the sliced Wasserstein distance (Rabin et al. 2011)."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from fedsaddle.maths import keys, streams

DIRECTIONS = 128


def sliced_wasserstein(one: Tensor, other: Tensor, directions: int = DIRECTIONS, seed: int = 0) -> float:
    """The mean over fixed random directions of the distance between the sorted projections; equally many rows each.

    0 where the two samples have the same distribution, and for two finite samples of one distribution small, not 0.
    """
    one, other = (part.flatten(1).double() for part in (one, other))
    slices = _directions(one.shape[1], directions, seed, one.device)
    sorted_ = [torch.sort(part @ slices, 0).values for part in (one, other)]
    return float((sorted_[0] - sorted_[1]).abs().mean())


@lru_cache(maxsize=4)
def _directions(length: int, count: int, seed: int, device: torch.device | str = "cpu") -> Tensor:
    """[length, count]: unit vectors, uniform on the sphere. Made on the CPU, so that every device has the same."""
    numbers = streams.stream(keys.address(seed, keys.Purpose.NOISE, length), length * count)
    normal = torch.special.ndtri(numbers.clamp(min=2.0**-60)).reshape(length, count)
    unit: Tensor = normal / torch.linalg.vector_norm(normal, dim=0)
    return unit.to(device)
