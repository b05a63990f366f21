"""The algorithms by the names that users type. Adding one: its file, a line here, its test."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fedsaddle.algorithms.afl import AFL
from fedsaddle.algorithms.amplified_scaffold import AmplifiedSCAFFOLD
from fedsaddle.algorithms.catalyst import CatalystScaffoldS
from fedsaddle.algorithms.cdma import CDMA
from fedsaddle.algorithms.coda import CODA
from fedsaddle.algorithms.codasca import CODASCA
from fedsaddle.algorithms.cycp_minimax import CyCPMinimax
from fedsaddle.algorithms.drfa import DRFA
from fedsaddle.algorithms.drfa_ga import DRFAGA
from fedsaddle.algorithms.extra_step import ExtraStepLocalSGD
from fedsaddle.algorithms.fedavg import FedAvg
from fedsaddle.algorithms.fedgda_gt import FedGDAGT
from fedsaddle.algorithms.local_sgda_plus import LocalSGDAPlus
from fedsaddle.algorithms.momentum_local_sgda import MomentumLocalSGDA
from fedsaddle.algorithms.pairwise import CyCPPairwise
from fedsaddle.algorithms.parallel_sgda import ParallelSGDA
from fedsaddle.algorithms.qfedavg import QFedAvg
from fedsaddle.algorithms.scaffold import SCAFFOLD

SADDLE = "min_x max_y mean_i f_i(x, y)"
PAIRS = "min_x mean_i mean_j of psi over the pairs of rows of clients i and j"
ROBUST = "min_x max_lambda sum_i lambda_i f_i(x), lambda on the simplex"
PULLED = "min_x max_lambda sum_i lambda_i f_i(x) + g(lambda), lambda on the simplex"
CYCLIC = "min_x max_y mean_i f_i(x, y), groups of clients taking turns: set participation.select to cyclic"
FAIR = "min_x mean_i f_i(x)^(q+1) / (q+1)"
NONE: Mapping[str, Any] = MappingProxyType({})
MEAN_ONLY = "the mean reply; nothing client by client"

NO_PULL = {"regulariser": "none", "strength": 0.0, "prior": (), "norm": 2.0, "metric": "discrete"}
AVERAGED = {"amplification": 1.0, "period": 1}
SCORES = "the score and the class of every row in each client's minibatches"


class Entry(NamedTuple):
    """An algorithm and what a user should know before choosing it."""

    algorithm: Any  # the settings dataclass
    paper: str
    solves: str
    copies: int  # copies of z that a client asked in every phase uploads per round
    scalars: int = 0  # further numbers that it uploads per round
    scores: int = 0  # further scores (each a number, or an embedding) that it uploads for every row of its minibatches
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
    "cd-ma": Entry(CDMA, "cd-mage", SADDLE, 1, fixed={"beta": 0, "c_alpha": math.inf}, defaults={"rho": 0.0}),
    "cd-mage": Entry(CDMA, "cd-mage", SADDLE, 2, fixed={"beta": 1, "c_alpha": math.inf}, defaults={"rho": 0.0}),
    "cd-mage+": Entry(CDMA, "cd-mage", SADDLE, 2, fixed={"beta": 1}, defaults={"c_alpha": 10.0, "rho": 0.2},
                      trial={"c_alpha": 1.0, "gamma_cap": 0.08}),
    "parallel-sgda": Entry(ParallelSGDA, "cdma", SADDLE, 1),
    "local-sgda": Entry(CDMA, "cdma", SADDLE, 1, fixed={"beta": 0, "c_alpha": math.inf, "asked": None},
                        defaults={"rho": 0.0}),
    "local-sgda+": Entry(LocalSGDAPlus, "cdma", SADDLE, 1, trial={"refresh": 3}),
    "extra-step-local-sgd": Entry(ExtraStepLocalSGD, "cdma", SADDLE, 1),
    "catalyst-scaffold-s": Entry(CatalystScaffoldS, "cdma", SADDLE, 2, trial={"theta": 0.5, "stage_steps": 10}),
    "fedgda-gt": Entry(FedGDAGT, "cdma", SADDLE, 2),
    "momentum-local-sgda": Entry(MomentumLocalSGDA, "cdma", SADDLE, 2),
    "npa": Entry(CODA, "codasca", SADDLE, 1, fixed={"steps": 1, "growth": 1.0}, defaults={"batches": 32},
                 trial={"batches": 3, "stage_rounds": 4, "proximal": 0.1}),
    "coda": Entry(CODA, "codasca", SADDLE, 1, fixed={"batches": 1, "recompute": True}, defaults={"stage_rounds": 100},
                  learns="the mean reply and, after each stage, the mean slope and curvature in y",
                  trial={"stage_rounds": 4, "proximal": 0.1}),
    "coda+": Entry(CODA, "codasca", SADDLE, 1, fixed={"batches": 1, "recompute": False},
                   trial={"stage_rounds": 4, "proximal": 0.1, "growth": 1.5, "lengthening": 1.5}),
    "codasca": Entry(CODASCA, "codasca", SADDLE, 2, client_state="its control variate c_i, a copy of z",
                     trial={"stage_rounds": 4, "output": "random", "proximal": 0.1}),
    "cycp-minimax": Entry(CyCPMinimax, "cyclic-auc", SADDLE, 1, trial={"stage_epochs": 2, "proximal": 0.1}),
    "rs-minimax": Entry(CyCPMinimax, "cyclic-auc", SADDLE, 1, defaults={"stage_epochs": 50},
                        trial={"stage_epochs": 3, "proximal": 0.1, "growth": 1.5}),
    "cycp-pairwise": Entry(CyCPPairwise, "cyclic-auc", PAIRS, 1, scores=1, learns=SCORES, cases=("pairwise", "metric"),
                           trial={"stage_epochs": 2}),
    "rs-pairwise": Entry(CyCPPairwise, "cyclic-auc", PAIRS, 1, scores=1, learns=SCORES, cases=("pairwise",),
                         defaults={"stage_epochs": 50}, trial={"stage_epochs": 3, "growth": 1.5, "output": "last"}),
    "drfa": Entry(DRFA, "drfa", ROBUST, 2, scalars=1, learns="the loss of each client asked, on a minibatch",
                  fixed=NO_PULL),
    "drfa-prox": Entry(DRFA, "drfa", PULLED, 2, scalars=1, learns="the loss of each client asked, on a minibatch",
                       defaults={"regulariser": "kl"}),
    "drfa-ga": Entry(DRFAGA, "drfa", PULLED, 1, scalars=1, learns="the loss of every client, on all its data"),
    "afl": Entry(AFL, "drfa", ROBUST, 1, scalars=1, learns="the loss of every client, on a minibatch",
                 trial={"asked": None}),
    "q-fedavg": Entry(QFedAvg, "drfa", FAIR, 1, scalars=1),
    "fedavg": Entry(FedAvg, "drfa", SADDLE, 1, fixed=AVERAGED),
    "scaffold": Entry(SCAFFOLD, "codasca", SADDLE, 2, client_state="its control variate c_i, a copy of z"),
    "cycp-fedavg": Entry(FedAvg, "cyclic-auc", CYCLIC, 1, fixed=AVERAGED),
    "amplified-fedavg": Entry(FedAvg, "cyclic-auc", CYCLIC, 1, trial={"period": 3}),
    "amplified-scaffold": Entry(AmplifiedSCAFFOLD, "cyclic-auc", CYCLIC, 2, trial={"period": 3},
                                client_state="its control variate c_i and the mean of its gradients in the period, "
                                "two copies of z"),
}


def make(name: str, **settings: Any) -> Any:
    """An algorithm by its name, with settings other than its defaults."""
    entry = ALGORITHMS[name]
    return entry.algorithm(**{**entry.defaults, **settings, **entry.fixed})
