"""Between the host and a device."""

from __future__ import annotations

import torch
from torch import Tensor


def sent(value: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; the host does not wait for it."""
    if device.type == "cuda" and value.device.type == "cpu":
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)


def finished(device: torch.device) -> None:
    """Wait for everything that was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
