"""The parameters of an nn.Module as one flat vector, and back."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call


def flatten(module: nn.Module) -> Tensor:
    """A copy of all parameters, one after the other, in the module's order."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]) if any(True for _ in module.parameters()) \
        else torch.zeros(0)


def named(module: nn.Module, flat: Tensor) -> dict[str, Tensor]:
    """The flat vector as the module's named parameters (views)."""
    shapes = {name: p.shape for name, p in module.named_parameters()}
    parts = flat.split([prod(shape) for shape in shapes.values()])
    return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def call(module: nn.Module, flat: Tensor, inputs: Tensor) -> Any:
    """The module's output with its parameters taken from the flat vector. Not thread-safe: it swaps parameters."""
    return functional_call(module, named(module, flat), (inputs,))
