"""Plain modules without running statistics. `MODELS`: the settings dataclass of each, by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fedsaddle.models.checks import check_module
from fedsaddle.models.dense import MLP, Linear
from fedsaddle.models.lenet import LeNet5

MODELS: dict[str, type[Any]] = {"linear": Linear, "mlp": MLP, "lenet5": LeNet5}

__all__ = ["MLP", "MODELS", "LeNet5", "Linear", "build", "check_module"]


def build(model: Any, input_shape: tuple[int, ...], outputs: int, seed: int) -> nn.Module:
    """The module of a settings object with torch's usual first weights, drawn from `seed` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net: nn.Module = model.build(input_shape, outputs)
    return net
