"""Data sets by name. `SOURCES`: the settings dataclass of each; `load(seed)` gives its training and test rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsaddle.contracts import Rows, SettingError, setting
from fedsaddle.data.clients import Clients
from fedsaddle.data.synthetic import quadratic_clients
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


@dataclass(frozen=True)
class QuadraticSaddles:
    """Made-up clients of the problem `quadratic`, with a known solution."""

    dimension_x: int = setting(10, "length of x", at_least=1)
    dimension_y: int = setting(10, "length of y", at_least=1)
    fewest_rows: int = setting(10, "rows of the smallest client", at_least=1)
    most_rows: int = setting(10, "rows of the largest client; sizes are drawn uniformly between the two", at_least=1)
    heterogeneity: float = setting(1.0, "how far clients lie apart; 0: identical clients", at_least=0)
    noise: float = setting(0.5, "how far the rows of a client lie apart; 0: identical rows", at_least=0)
    coupling: float = setting(1.0, "size of the term x'By", at_least=0)

    def deal(self, clients: int, seed: int) -> Clients:
        return quadratic_clients(clients, (self.fewest_rows, self.most_rows), self.dimension_x, self.dimension_y,
                                 self.heterogeneity, self.noise, self.coupling, seed)


SOURCES: dict[str, type[Any]] = {"digits": Digits, "breast-cancer": BreastCancer, "quadratic": QuadraticSaddles}


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
