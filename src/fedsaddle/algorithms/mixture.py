"""lambda, the clients' weights in a robust objective: what DRFA, DRFA-Prox, DRFA-GA and AFL share (papers: drfa).

min_w max_lambda sum_i lambda_i f_i(w) + g(lambda), lambda on the simplex, g = -strength * D(lambda, prior).
On a problem with a maximising variable y the clients take descent-ascent steps in (x, y).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsaddle.contracts import Average, Cohort, Federation, Point, SettingError, setting
from fedsaddle.maths import projections, proximal
from fedsaddle.maths.proximal import Array

MOST_CLIENTS = 2000  # for transport on a metric: a plan has clients^2 numbers


class Averages(NamedTuple):
    z: Point  # w^, of the local iterates
    mixture: Tensor  # lambda^, of lambda^(0), ..., lambda^(S-1)


class Server(NamedTuple):
    z: Point  # w
    mixture: Tensor  # lambda
    average: Averages | tuple[()]  # () where nobody asked for it
    round: int


class Loss(NamedTuple):
    value: Tensor


class Pull(NamedTuple):
    """g, by its settings."""

    regulariser: str
    strength: float
    prior: Tensor
    norm: float = 2.0
    metric: str = "discrete"


def output() -> Any:
    return setting("last", "what is returned: the last model, or as in the theorems the average of all local "
                   "iterates, for which every client uploads one more copy", choices=("last", "average"))


def strength() -> Any:
    return setting(0.1, "weight of the regulariser: g = -strength * D(lambda, prior)", at_least=0)


def prior() -> Any:
    return setting((), "u_0, where lambda starts and is pulled to: a number per client; empty: uniform")


def first(z: Point, federation: Federation, prior: tuple[float, ...], output: str) -> Server:
    mixture = distribution(prior, federation.num_clients, z.x)
    return Server(z, mixture, Averages(z, mixture) if output == "average" else (), round=0)


def distribution(prior: tuple[float, ...], clients: int, like: Tensor) -> Tensor:
    """u_0 as a vector that sums to one."""
    if prior and (len(prior) != clients or min(prior) < 0 or sum(prior) <= 0):
        raise SettingError(f"algorithm.prior: {len(prior)} numbers for {clients} clients; give one per client, none "
                           "negative, not all zero")
    u = torch.tensor(prior or (1.0,) * clients, dtype=torch.float64)
    return (u / u.sum()).to(like.device, like.dtype)


def trained(federation: Federation, mixture: Tensor, size: int, everyone: bool) -> Cohort:
    """D: drawn by lambda with replacement. `everyone`: the limit of many draws."""
    if everyone:
        return weighed(federation.everyone(), mixture)
    return federation.cohort(size, weights=mixture, replace=True)


def evaluated(federation: Federation, size: int, everyone: bool) -> Cohort:
    """U: uniform without replacement, whatever the participation draws by."""
    return federation.everyone() if everyone else federation.cohort(size, weights=torch.ones(federation.num_clients))


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


def gradient(mixture: Tensor, pull: Pull) -> Tensor:
    """Of g, for the regularisers that have one everywhere but on the edge of the simplex."""
    if pull.regulariser == "kl":  # up to a constant, which the projection takes away
        ratio = mixture.clamp(min=1e-12) / pull.prior.clamp(min=1e-12)
        return -pull.strength * ratio.log()
    return -pull.strength * (mixture - pull.prior) if pull.regulariser == "squared" else torch.zeros_like(mixture)


def ascend(target: Tensor, weight: float, pull: Pull) -> Tensor:
    """argmax over u of weight g(u) - |target - u|^2 / 2, u on the simplex."""
    weight = weight * pull.strength
    if pull.regulariser == "none" or weight == 0 or not bool(torch.isfinite(target).all()):
        return projections.simplex(target)
    a, u0 = (part.detach().cpu().double().numpy() for part in (target, pull.prior))
    u = PROXIMAL[pull.regulariser](a, weight, u0 / u0.sum(), pull)
    return torch.from_numpy(u).to(target.device, target.dtype)


def _transport(a: Array, weight: float, prior: Array, pull: Pull) -> Array:
    if pull.metric == "discrete":  # moving mass costs 1 wherever it goes: half the 1-norm
        return proximal.norm(a, weight / 2, prior, 1)
    return proximal.transport(a, weight, prior, cost(pull.metric, len(a)))


PROXIMAL: dict[str, Callable[[Array, float, Array, Pull], Array]] = {
    "squared": lambda a, weight, prior, pull: proximal.squared(a, weight, prior),
    "kl": lambda a, weight, prior, pull: proximal.kl(a, weight, prior),
    "norm": lambda a, weight, prior, pull: proximal.norm(a, weight, prior, pull.norm),
    "transport": _transport,
}


def cost(metric: str, clients: int) -> Array:
    """What it costs to move mass from a client to another: 'discrete', 'line', or a file's."""
    if clients > MOST_CLIENTS:
        raise SettingError(f"algorithm.metric = {metric!r}: {clients} clients are more than {MOST_CLIENTS}, and a "
                           "transport plan has the square of that many numbers; set it to 'discrete'")
    i = np.arange(clients)
    if metric == "line":
        distance: Array = np.abs(i[:, None] - i) / clients
        return distance
    try:
        table = _table(metric, Path(metric).stat().st_mtime_ns)
    except (OSError, ValueError) as error:
        raise SettingError(f"algorithm.metric = {metric!r}: cannot be read ({error}); give 'discrete', 'line' or the "
                           "path of a CSV file with a row of distances per client") from error
    if table.shape != (clients, clients) or not (table >= 0).all() or not np.isfinite(table).all() or table[i, i].any():
        raise SettingError(f"algorithm.metric = {metric!r}: holds {table.shape[0]} rows of {table.shape[1]} numbers; "
                           f"it needs {clients} rows of {clients}, none negative or infinite, the diagonal zero")
    return table


@lru_cache(maxsize=4)
def _table(file: str, changed: int) -> Array:
    """Read once; again when the file was changed."""
    return np.loadtxt(file, delimiter=",", ndmin=2, encoding="utf-8-sig")


def solution(server: Server) -> Point:
    return server.average.z if server.average else server.z
