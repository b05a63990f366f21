"""Data sets that come with scikit-learn, and made-up clients: nothing to fetch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedsaddle.contracts import setting
from fedsaddle.data.clients import Clients
from fedsaddle.data.dataset import DataSet, split, standardised
from fedsaddle.data.synthetic import quadratic_clients


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
        data = split(inputs, 1 - benign.long(), self.test_share, seed)
        return standardised(data._replace(names=("benign", "malignant")))


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
