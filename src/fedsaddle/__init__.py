"""FedSaddle: federated minimax optimisation across parties that keep their data."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedsaddle.version import __version__

if TYPE_CHECKING:
    from fedsaddle.algorithms import ALGORITHMS, make
    from fedsaddle.contracts import ALL, Batch, Data, Draw, Pair, Point, Rows, SettingError, setting
    from fedsaddle.data.clients import Clients, clients_from_arrays, clients_from_list
    from fedsaddle.participation import Participation
    from fedsaddle.participation.responses import Deadline, DropOuts, FirstResponders, Latencies
    from fedsaddle.participation.selection import Cyclic, Trace, Uniform, Weighted
    from fedsaddle.problems import AUC, GAN, Agnostic, Metric, Pairwise, Quadratic, Robust, from_module
    from fedsaddle.runs import Result, train

__all__ = [
    "ALGORITHMS",
    "ALL",
    "AUC",
    "GAN",
    "Agnostic",
    "Batch",
    "Clients",
    "Cyclic",
    "Data",
    "Deadline",
    "Draw",
    "DropOuts",
    "FirstResponders",
    "Latencies",
    "Metric",
    "Pair",
    "Pairwise",
    "Participation",
    "Point",
    "Quadratic",
    "Result",
    "Robust",
    "Rows",
    "SettingError",
    "Trace",
    "Uniform",
    "Weighted",
    "__version__",
    "clients_from_arrays",
    "clients_from_list",
    "from_module",
    "make",
    "setting",
    "train",
]

# Where the public names are. They are imported when they are first used: a courier of a site, started for every
# message, uses none of them and must not wait for torch.
_HOMES = {
    "algorithms": ("ALGORITHMS", "make"),
    "contracts": ("ALL", "Batch", "Data", "Draw", "Pair", "Point", "Rows", "SettingError", "setting"),
    "data.clients": ("Clients", "clients_from_arrays", "clients_from_list"),
    "participation": ("Participation",),
    "participation.responses": ("Deadline", "DropOuts", "FirstResponders", "Latencies"),
    "participation.selection": ("Cyclic", "Trace", "Uniform", "Weighted"),
    "problems": ("AUC", "GAN", "Agnostic", "Metric", "Pairwise", "Quadratic", "Robust", "from_module"),
    "runs": ("Result", "train"),
}
_HOME = {name: f"{__name__}.{home}" for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
