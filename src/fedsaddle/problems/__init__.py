"""The objectives. `PROBLEMS`: the class of each, by name."""

from typing import Any

from fedsaddle.problems.auc import AUC
from fedsaddle.problems.quadratic import Quadratic

PROBLEMS: dict[str, type[Any]] = {"auc": AUC, "quadratic": Quadratic}

__all__ = ["AUC", "PROBLEMS", "Quadratic"]
