"""What the layers of a problem's nets mean for how they are computed."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

IMAGES = 50  # on a CPU: what lies between the layers then stays in its caches (benchmarks/speed/evaluating.py)


def mixes_rows(problem: Any) -> bool:
    """Whether rows of a batch touch each other, as they do in batch norm: then a batch must hold no padding.

    A problem whose own loss does so says it with an attribute `mixes_rows = True`.
    """
    return bool(getattr(problem, "mixes_rows", False)) or _has(problem, _BatchNorm)


def at_once(problem: Any, inputs: Tensor, most: int) -> int:
    """Rows to evaluate at a time: `most`, or few where a CPU convolves them. Not where rows touch each other: there
    their number is part of the result, which is the same on every device."""
    few = inputs.device.type == "cpu" and _has(problem, _ConvNd) and not mixes_rows(problem)
    return min(IMAGES, most) if few else most


def _has(problem: Any, kind: type[nn.Module]) -> bool:
    nets = [part for part in getattr(problem, "__dict__", {}).values() if isinstance(part, nn.Module)]
    return any(isinstance(layer, kind) for net in nets for layer in net.modules())
