"""g(lambda) = -strength * D(lambda, prior), what pulls lambda back to a prior (papers: drfa, Section 5)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsaddle.contracts import SettingError, setting
from fedsaddle.maths import projections, proximal
from fedsaddle.maths.proximal import Array

MOST_CLIENTS = 2000  # for transport on a metric: a plan has clients^2 numbers
LEAST_WEIGHT = 1e-30  # below it a regulariser moves lambda by less than rounding


class Pull(NamedTuple):
    """g, by its settings."""

    regulariser: str
    strength: float
    prior: Tensor
    norm: float = 2.0
    metric: str = "discrete"


def strength() -> Any:
    return setting(0.1, "weight of the regulariser: g = -strength * D(lambda, prior)", at_least=0)


def prior() -> Any:
    return setting((), "u_0, where lambda starts and is pulled to: a number per client; empty: uniform")


def distribution(prior: tuple[float, ...], clients: int, like: Tensor) -> Tensor:
    """u_0 as a vector that sums to one."""
    if prior and (len(prior) != clients or min(prior) < 0 or sum(prior) <= 0):
        raise SettingError(f"algorithm.prior: {len(prior)} numbers for {clients} clients; give one per client, none "
                           "negative, not all zero")
    u = torch.tensor(prior, dtype=torch.float64)
    return (u / u.sum()).to(like.device, like.dtype) if prior else _uniform(clients, like.device, like.dtype)


@lru_cache(maxsize=4)  # rounds ask for it, and a million numbers are a round's time
def _uniform(clients: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.full((clients,), 1 / clients, dtype=torch.float64).to(device, dtype)


def gradient(mixture: Tensor, pull: Pull) -> Tensor:
    """Of g, for the regularisers that have one everywhere but on the edge of the simplex."""
    if pull.regulariser == "kl":  # up to a constant, which the projection takes away
        ratio = mixture.clamp(min=1e-12) / pull.prior.clamp(min=1e-12)
        return -pull.strength * ratio.log()
    return -pull.strength * (mixture - pull.prior) if pull.regulariser == "squared" else torch.zeros_like(mixture)


def ascend(target: Tensor, weight: float, pull: Pull) -> Tensor:
    """argmax over u of weight g(u) - |target - u|^2 / 2, u on the simplex."""
    weight = weight * pull.strength
    if pull.regulariser == "none" or weight < LEAST_WEIGHT or not bool(torch.isfinite(target).all()):
        return projections.long_simplex(target)
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
    """What it costs to move mass from a client to another: on a line, or as a file says."""
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


@lru_cache(maxsize=4)  # rounds ask for it, and a million numbers are a round's time
def _table(file: str, changed: int) -> Array:
    """Read once; again when the file was changed."""
    return np.loadtxt(file, delimiter=",", ndmin=2, encoding="utf-8-sig")
