"""Data sets by name. `SOURCES`: the settings dataclass of each; `load(seed)` gives its training and test rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsaddle.contracts import Rows, SettingError, setting
from fedsaddle.maths import keys, streams


class DataSet(NamedTuple):
    """Inputs in float32, targets 0 .. classes - 1."""

    train: Rows
    test: Rows
    classes: int


@dataclass(frozen=True)
class Digits:
    """1,797 handwritten digits of 1x8x8 pixels scaled to [-1, 1], ten classes; comes with scikit-learn."""

    test_share: float = setting(0.25, "share of each class kept for the test", above=0.0, at_most=0.9)

    def load(self, seed: int) -> DataSet:
        from sklearn.datasets import load_digits  # noqa: PLC0415  # slow to import

        inputs, targets = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
        return split((inputs / 8 - 1).float().reshape(-1, 1, 8, 8), targets.long(), self.test_share, seed)


@dataclass(frozen=True)
class BreastCancer:
    """569 tumours with 30 measurements, standardised by the training rows; 1 is malignant. Comes with scikit-learn."""

    test_share: float = setting(0.25, "share of each class kept for the test", above=0.0, at_most=0.9)

    def load(self, seed: int) -> DataSet:
        from sklearn.datasets import load_breast_cancer  # noqa: PLC0415  # slow to import

        inputs, benign = (torch.from_numpy(part) for part in load_breast_cancer(return_X_y=True))
        train, test, classes = split(inputs, 1 - benign.long(), self.test_share, seed)
        mean, deviation = train.inputs.mean(0), train.inputs.std(0, correction=0)
        train, test = (part._replace(inputs=((part.inputs - mean) / deviation).float()) for part in (train, test))
        return DataSet(train, test, classes)


SOURCES: dict[str, type[Any]] = {"digits": Digits, "breast-cancer": BreastCancer}


def split(inputs: Tensor, targets: Tensor, test_share: float, seed: int) -> DataSet:
    """The same share of every class for the test, chosen by the seed alone; both parts keep the rows' order."""
    if not 0 < test_share < 1:
        raise SettingError(f"data.test_share: {test_share} leaves one part empty; set it strictly between 0 and 1")
    shuffled = torch.argsort(streams.stream(keys.address(seed, keys.Purpose.PARTITION, 0), len(targets)), stable=True)
    classes = int(targets.max()) + 1
    test = torch.zeros(len(targets), dtype=torch.bool)
    for label in range(classes):
        rows = shuffled[targets[shuffled] == label]
        test[rows[: round(test_share * len(rows))]] = True
    return DataSet(Rows(inputs[~test], targets[~test]), Rows(inputs[test], targets[test]), classes)


def one_class(targets: Tensor, label: int) -> Tensor:
    """1 for rows of this class, 0 for the rest. Deal rows to clients by the full labels first, then apply it."""
    positive = (targets == label).long()
    if not bool(positive.any()):
        raise SettingError(f"positive class: no row has label {label}; choose one of "
                           f"{', '.join(str(t) for t in sorted(set(targets.tolist())))}")
    return positive
