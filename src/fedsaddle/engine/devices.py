"""Between the host and a device."""

from __future__ import annotations

import copy
import dataclasses

import torch
from torch import Tensor, nn

from fedsaddle.contracts import Problem


def sent(value: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; the host does not wait for it."""
    if device.type == "cuda" and value.device.type == "cpu":
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)


def finished(device: torch.device) -> None:
    """Wait for everything that was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def placed(problem: Problem, device: torch.device) -> Problem:
    """The problem with its modules' buffers on the device; a user's own module is left where it was."""
    if device.type == "cpu" or not dataclasses.is_dataclass(problem):
        return problem
    nets = {f.name: copy.deepcopy(net).to(device) for f in dataclasses.fields(problem)
            if isinstance(net := getattr(problem, f.name), nn.Module)}
    return dataclasses.replace(problem, **nets) if nets else problem
