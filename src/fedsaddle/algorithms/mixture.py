"""lambda, the clients' weights in a robust objective: what DRFA, DRFA-Prox, DRFA-GA and AFL share (papers: drfa).

min_w max_lambda sum_i lambda_i f_i(w) + g(lambda), lambda on the simplex. On a problem with a maximising variable y
the clients take descent-ascent steps in (x, y).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsaddle.algorithms.regularisers import distribution
from fedsaddle.contracts import Average, Cohort, Federation, LossValue, Point, setting


class Averages(NamedTuple):
    z: Point  # w^, of the local iterates
    mixture: Tensor  # lambda^, of lambda^(0), ..., lambda^(S-1)


class Server(NamedTuple):
    z: Point  # w
    mixture: Tensor  # lambda
    average: Averages | tuple[()]  # () where nobody asked for it
    round: int


class Loss(NamedTuple):
    value: LossValue


def output() -> Any:
    return setting("last", "what is returned: the last model, or as in the theorems the average of all local "
                   "iterates, for which every client uploads one more copy", choices=("last", "average"))


def decay() -> Any:
    return setting(1.0, "the next round's gamma is this times the last one's: 1 in the paper, 0.9 in the authors' code",
                   above=0, at_most=1)


def first(z: Point, federation: Federation, prior: tuple[float, ...], output: str) -> Server:
    mixture = distribution(prior, federation.num_clients, z.x)
    return Server(z, mixture, Averages(z, mixture) if output == "average" else (), round=0)


def trained(federation: Federation, mixture: Tensor, size: int, everyone: bool) -> Cohort:
    """D: drawn by lambda with replacement. `everyone`: the limit of many draws."""
    if everyone:
        return weighed(federation.everyone(), mixture)
    return federation.cohort(size, weights=mixture, replace=True)


def evaluated(federation: Federation, size: int, everyone: bool) -> Cohort:
    """U: uniform without replacement, whatever the participation draws by."""
    alike = torch.ones(1).expand(federation.num_clients)  # not written out: the draw costs what the cohort does
    return federation.everyone() if everyone else federation.cohort(size, weights=alike)


def weighed(asked: Cohort, mixture: Tensor) -> Cohort:
    """The same clients; a mean of theirs weighs them by lambda."""
    return asked._replace(weight=mixture.cpu()[asked.ids])


def slope(losses: Average, federation: Federation, mixture: Tensor) -> Tensor:
    """v: N / m times the loss of each of the m clients that answered, 0 elsewhere; its mean is (f_1, ..., f_N)."""
    v = torch.zeros_like(mixture)
    v[losses.ids] = losses.each.value * federation.num_clients / losses.answered
    return v


def averaged(server: Server, iterates: Any, begin: int = 0) -> Averages | tuple[()]:
    """The averages with this round's mean of the local iterates; those of z begin after `begin` rounds."""
    if not server.average:
        return ()
    z, mixture = server.average
    done = server.round + 1
    return Averages(z + (iterates - z) / max(1, done - begin), mixture + (server.mixture - mixture) / done)


def solution(server: Server) -> Point:
    return server.average.z if server.average else server.z
