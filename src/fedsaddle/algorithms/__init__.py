"""The algorithms by the names that users type. Adding one: its file, a line here, its test."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fedsaddle.algorithms.cdma import CDMA
from fedsaddle.algorithms.codasca import CODASCA
from fedsaddle.algorithms.drfa import DRFA
from fedsaddle.algorithms.parallel_sgda import ParallelSGDA

SADDLE = "min_x max_y mean_i f_i(x, y)"
ROBUST = "min_x max_lambda sum_i lambda_i f_i(x), lambda on the simplex"
NONE: Mapping[str, Any] = MappingProxyType({})
MEAN_ONLY = "the mean reply; nothing client by client"


class Entry(NamedTuple):
    """An algorithm and what a user should know before choosing it."""

    algorithm: Any  # the settings dataclass
    paper: str
    solves: str
    copies: int  # copies of z that a client asked in every phase uploads per round
    scalars: int = 0  # further numbers that it uploads per round
    learns: str = MEAN_ONLY  # what the server learns per client
    client_state: str = "none"  # what a client keeps between rounds
    cases: tuple[str, ...] = ("quadratic", "auc")  # the kinds of problem that the contract battery runs it on
    fixed: Mapping[str, Any] = NONE  # settings that make it this method
    defaults: Mapping[str, Any] = NONE  # other defaults than the class has
    trial: Mapping[str, Any] = NONE  # settings for the battery that reach within 12 rounds what is special about it


ALGORITHMS: dict[str, Entry] = {
    "cdma-nc": Entry(CDMA, "cdma", SADDLE, 1, fixed={"beta": 0, "c_alpha": math.inf}, defaults={"rho": 0.0}),
    "cdma-one": Entry(CDMA, "cdma", SADDLE, 2, fixed={"beta": 1, "c_alpha": math.inf}, defaults={"rho": 0.0}),
    "cdma-ada": Entry(CDMA, "cdma", SADDLE, 2, fixed={"beta": 1}, trial={"c_alpha": 1.0}),
    "parallel-sgda": Entry(ParallelSGDA, "cdma", SADDLE, 1),
    "codasca": Entry(CODASCA, "codasca", SADDLE, 2, client_state="its control variate c_i, a copy of z",
                     trial={"stage_rounds": 4, "output": "random", "proximal": 0.1}),
    "drfa": Entry(DRFA, "drfa", ROBUST, 2, scalars=1, learns="the loss of each client asked, on a minibatch"),
}


def make(name: str, **settings: Any) -> Any:
    """An algorithm by its name, with settings other than its defaults."""
    entry = ALGORITHMS[name]
    return entry.algorithm(**{**entry.defaults, **settings, **entry.fixed})
