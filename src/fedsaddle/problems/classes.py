"""Cross-entropy and accuracy of every row, for problems about classes: one class a row, or one for each character."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fedsaddle.contracts import SettingError


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """One number a row; of a row that is a sequence, the mean over its characters."""
    _check(outputs, targets)
    if targets.dim() == 1:
        return functional.cross_entropy(outputs, targets, reduction="none")
    return functional.cross_entropy(outputs.transpose(1, 2), targets, reduction="none").mean(1)


def correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 for a row whose class has the largest output, else 0; of a sequence, the share of its characters."""
    _check(outputs, targets)
    hits = (outputs.argmax(-1) == targets).to(outputs.dtype)
    return hits if targets.dim() == 1 else hits.mean(1)


def _check(outputs: Tensor, targets: Tensor) -> None:
    if targets.dtype != torch.int64:
        raise SettingError(f"targets: are {targets.dtype}, no classes; give each row its class as an int64 number, "
                           "0, 1, 2, ...")
    if targets.dim() not in (1, 2) or outputs.shape[:-1] != targets.shape:
        raise SettingError(f"targets: shape {tuple(targets.shape)} does not fit outputs {tuple(outputs.shape)} of the "
                           "net; it must give one output a class for every row, or for every character of every row")
