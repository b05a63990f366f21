"""The step sizes of the theorems in the papers codasca (Theorems 1 to 3) and cyclic-auc (Theorems 4.5 and 5.2).

Where a theorem sets I_s up to a constant, the constant is 1.
"""

from __future__ import annotations

import math

from fedsaddle.algorithms.theorems.constants import CODASCA, CYCLIC_AUC
from fedsaddle.algorithms.theorems.statement import Settings, Theorem, at_least_one, require


def codasca_1(*, L: float, ell: float, mu: float, mu_2: float, K: int, D: float,
              eta_0: float | None = None) -> Settings:
    eta, c, iterations = _stage(L, ell, mu, mu_2, eta_0)
    steps = at_least_one(1 / math.sqrt(K * eta) if D > 0 else 1 / (K * eta))
    slower = c / 2 if D > 0 else c  # I_s = 1 / sqrt(K eta_s) or 1 / (K eta_s)
    return {"eta": eta, "steps": steps, "proximal": 2 * ell, "stage_rounds": math.ceil(iterations / steps),
            "decay": math.exp(-c), "growth": math.exp(slower), "lengthening": math.exp(c - slower), "output": "mean"}


def codasca_2(*, L: float, ell: float, mu: float, mu_2: float, K: int, I_0: int,
              eta_tilde: float | None = None) -> Settings:
    bound = min(_bound(ell, mu_2), mu_2 / (40 * ell**2))
    eta = bound if eta_tilde is None else eta_tilde
    require(eta <= bound, "eta_tilde <= min(1 / (3 ell + 3 ell^2 / mu_2), mu_2 / (40 ell^2))", bound)
    c = 4 * ell + 248 / 53 * (L + 2 * ell)
    factor = math.exp(2 * mu / (c + 2 * mu))
    return {"eta": eta / (math.sqrt(K) * I_0), "eta_global": math.sqrt(K), "steps": I_0, "proximal": 2 * ell,
            "stage_rounds": math.ceil(1000 / (eta * mu_2)), "decay": 1 / factor, "growth": factor,
            "lengthening": 1.0, "output": "random"}


def codasca_3(*, L: float, ell: float, mu: float, mu_2: float, K: int, M: int, epsilon: float,
              eta_0: float | None = None) -> Settings:
    large = M * K * mu * epsilon >= 1
    eta, c, iterations = _stage(L, ell, mu, mu_2, None if large else eta_0)
    decay = 1.0 if large else math.exp(-c)
    return {"eta": eta, "proximal": 2 * ell, "stage_rounds": math.ceil(iterations), "decay": decay,
            "lengthening": 1 / decay, "output": "mean"}


def cyclic_4_5(*, L: float, ell: float, mu: float, mu_2: float, K: int, M: int,
               eta_0: float | None = None) -> Settings:
    eta, c, iterations = _stage(L, ell, mu, mu_2, eta_0)
    steps = at_least_one(1 / (K * math.sqrt(M * eta)))
    return {"eta": eta, "steps": steps, "asked": M, "proximal": 2 * ell,
            "stage_epochs": math.ceil(iterations / (K * steps)),  # T_s = E_s K I_s
            "decay": math.exp(-c), "growth": math.exp(c / 2), "lengthening": math.exp(c / 2), "output": "mean"}


def cyclic_5_2(*, K: int, M: int, epsilon: float) -> Settings:
    return {"eta": epsilon**2 * M, "steps": at_least_one(1 / (M * K * epsilon)), "asked": M}


def _bound(ell: float, mu_2: float) -> float:
    return 1 / (3 * ell + 3 * ell**2 / mu_2)


def _stage(L: float, ell: float, mu: float, mu_2: float, eta_0: float | None) -> tuple[float, float, float]:
    """eta_0, c and T_0 of eta_s = eta_0 exp(-s c), T_s = T_0 exp(s c), s from 0."""
    bound = min(_bound(ell, mu_2), 1 / (4 * ell))
    eta = bound if eta_0 is None else eta_0
    require(eta <= bound, "eta_0 <= min(1 / (3 ell + 3 ell^2 / mu_2), 1 / (4 ell))", bound)
    share = mu / (L + 2 * ell)
    return eta, share / (5 + share), 212 / (eta * min(ell, mu_2))


THEOREMS = {
    ("codasca", "1"): Theorem(("coda+",), codasca_1, CODASCA),
    ("codasca", "2"): Theorem(("codasca",), codasca_2, CODASCA),
    ("codasca", "3"): Theorem(("npa",), codasca_3, CODASCA),
    ("cyclic-auc", "4.5"): Theorem(("cycp-minimax",), cyclic_4_5, CYCLIC_AUC),
    ("cyclic-auc", "5.2"): Theorem(("cycp-pairwise",), cyclic_5_2, CYCLIC_AUC),
}
