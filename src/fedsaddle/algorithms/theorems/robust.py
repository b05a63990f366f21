"""The step sizes of the theorems in the paper drfa (Theorems 1 to 6)."""

from __future__ import annotations

import math

from fedsaddle.algorithms.theorems.constants import DRFA
from fedsaddle.algorithms.theorems.statement import Settings, Theorem, at_least_one, require


def convex(*, L: float, T: int, m: int) -> Settings:
    """Theorems 1 and 3, which are about the average of all iterates: tau = T^(1/4) / sqrt(m)."""
    return {"eta": 1 / (4 * L * math.sqrt(T)), "gamma": T ** (-5 / 8), "steps": at_least_one(T**0.25 / math.sqrt(m)),
            "asked": m, "output": "average"}


def nonconvex(*, L: float, T: int, m: int) -> Settings:
    """Theorems 2 and 4: tau = T^(1/4)."""
    return {"eta": 1 / (4 * L * T**0.75), "gamma": T**-0.5, "steps": at_least_one(T**0.25), "asked": m}


def strongly_convex(*, L: float, mu: float, T: int, m: int, tau: int | None = None) -> Settings:
    """Theorem 5, which is about the average of the second half, and, for tau, Corollary 1."""
    chosen = _ascent(L, mu, T, m, tau, 16)
    return {**chosen, "output": "average", "average_from": T // (2 * chosen["steps"])}


def pl(*, L: float, mu: float, T: int, m: int, tau: int | None = None) -> Settings:
    """Theorem 6 and, for tau, Corollary 2."""
    require(m >= T, "m >= T", T)
    return _ascent(L, mu, T, m, tau, 8)


def _ascent(L: float, mu: float, T: int, m: int, tau: int | None, factor: int) -> Settings:
    alpha = L + L / mu * L
    fewest = factor * alpha * math.log(T) / mu
    require(fewest <= T, f"T >= {factor} (kappa L + L) log(T) / mu", fewest)
    steps = at_least_one(math.sqrt(T / m)) if tau is None else tau
    return {"eta": 4 * math.log(T) / (mu * T), "gamma": 1 / L, "steps": steps, "asked": m}


THEOREMS = {
    ("drfa", "1"): Theorem(("drfa",), convex, DRFA),
    ("drfa", "2"): Theorem(("drfa",), nonconvex, DRFA),
    ("drfa", "3"): Theorem(("drfa-prox",), convex, DRFA),
    ("drfa", "4"): Theorem(("drfa-prox",), nonconvex, DRFA),
    ("drfa", "5"): Theorem(("drfa-ga",), strongly_convex, DRFA),
    ("drfa", "6"): Theorem(("drfa-ga",), pl, DRFA),
}
