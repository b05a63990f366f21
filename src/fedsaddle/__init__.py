"""FedSaddle: federated minimax optimisation across parties that keep their data."""

from fedsaddle.algorithms import ALGORITHMS, make
from fedsaddle.contracts import ALL, Batch, Data, Draw, Pair, Point, Rows, SettingError, setting
from fedsaddle.data.clients import Clients, clients_from_arrays, clients_from_list
from fedsaddle.participation import Participation
from fedsaddle.participation.responses import Deadline, DropOuts, FirstResponders, Latencies
from fedsaddle.participation.selection import Cyclic, Trace, Uniform, Weighted
from fedsaddle.problems import AUC, GAN, Agnostic, Metric, Pairwise, Quadratic, Robust, from_module
from fedsaddle.runs import Result, train

__version__ = "0.1.0"

__all__ = [
    "ALGORITHMS", "ALL", "AUC", "GAN", "Agnostic", "Batch", "Clients", "Cyclic", "Data", "Deadline", "Draw", "DropOuts",
    "FirstResponders", "Latencies", "Metric", "Pair", "Pairwise", "Participation", "Point", "Quadratic", "Result",
    "Robust", "Rows", "SettingError", "Trace", "Uniform", "Weighted", "clients_from_arrays", "clients_from_list",
    "from_module", "make", "setting", "train",
]
