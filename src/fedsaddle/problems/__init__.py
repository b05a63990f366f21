"""The objectives. `PROBLEMS`: the class of each, by name."""

from typing import Any

from fedsaddle.problems.agnostic import Agnostic
from fedsaddle.problems.auc import AUC
from fedsaddle.problems.gan import GAN
from fedsaddle.problems.metric import Metric
from fedsaddle.problems.own import from_module
from fedsaddle.problems.pairwise import Pairwise
from fedsaddle.problems.quadratic import Quadratic
from fedsaddle.problems.robust import Robust

PROBLEMS: dict[str, type[Any]] = {
    "auc": AUC, "pairwise": Pairwise, "metric": Metric, "robust": Robust, "gan": GAN, "agnostic": Agnostic,
    "quadratic": Quadratic,
}

__all__ = ["AUC", "GAN", "PROBLEMS", "Agnostic", "Metric", "Pairwise", "Quadratic", "Robust", "from_module"]
