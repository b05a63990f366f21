"""Measures leave the device together: the host waits once for all of them, not once for each."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def as_numbers(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Scalars of one device as Python numbers, in one transfer."""
    return dict(zip(values, torch.stack([value.detach().double() for value in values.values()]).tolist(), strict=True))
