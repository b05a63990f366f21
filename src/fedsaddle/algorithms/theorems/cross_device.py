"""The step sizes of the theorems in the papers cdma (Theorems 1 to 3) and cd-mage (Theorems 1 to 3)."""

from __future__ import annotations

import math

from fedsaddle.algorithms.theorems.constants import CD_MAGE, CDMA
from fedsaddle.algorithms.theorems.statement import Settings, Theorem, ratio, require


def cdma_1(*, L_f: float, mu: float, sigma_1: float, sigma_2: float, G_1: float, G_2: float, L_0: float,
           S: int, K: int, T: int) -> Settings:
    gamma = min(_noise(20 * L_0 * S, L_f, T, K, sigma_2), _drift(30 * L_0, L_f, sigma_2, G_2, T, K),
                1 / (87 * L_f * K))
    eta = min(_noise(20 / 7 * L_0 * S, _smooth(L_f, mu) + L_f, T, K, sigma_1),
              _drift(3 * L_0, L_f, sigma_1, G_1, T, K), gamma / (21 * (L_f / mu) ** 2))
    return _constant(eta, gamma, S, K)


def cdma_2(*, L_f: float, mu: float, sigma_1: float, sigma_2: float, L_0: float, S: int, K: int, T: int) -> Settings:
    gamma = min(1 / (87 * L_f * K), _noise(4 / 3 * L_0 * S, L_f, T, K, sigma_2))
    eta = min(gamma / (21 * (L_f / mu) ** 2), _noise(40 / 21 * L_0 * S, _smooth(L_f, mu) + L_f, T, K, sigma_1))
    return _constant(eta, gamma, S, K)


def cdma_3(*, L_f: float, mu: float, sigma_1: float, sigma_2: float, L_0: float, S: int, K: int) -> Settings:
    kappa = L_f / mu
    noise = sigma_1**2 / kappa**2 + sigma_2**2
    fewest = noise / (L_f * L_0)
    require(fewest <= S, "S >= (sigma_1^2 / kappa^2 + sigma_2^2) / (L_f L_0)", fewest)
    cap = min(1 / (2 * L_f), 5.78e-4 / (L_f * K))
    c = math.cbrt(ratio(S * L_0, L_f**2 * noise)) / K
    return _decaying(c, cap, 1 / (12 * kappa**2), 200_000 * L_f**2 * K**2, S, K)


def cd_mage_1(*, L_1: float, L_2: float, L_12: float, L_21: float, mu: float, sigma_1: float, sigma_2: float,
              L_0: float, S: int, K: int, T: int) -> Settings:
    L_f, L_phi = _moduli(L_1, L_2, L_12, L_21, mu)
    gamma = min(1 / (87 * L_f * K), _noise(4 / 3 * L_0 * S, L_f, T, K, sigma_2))
    eta = min(1 / (36 * L_f * K), 1 / (4 * L_phi * K), mu**2 * gamma / (21 * L_12**2),
              _noise(40 / 21 * L_0 * S, L_phi + L_f, T, K, sigma_1))
    return _constant(eta, gamma, S, K)


def cd_mage_2(*, L_1: float, L_2: float, L_12: float, L_21: float, mu: float, S: int, K: int) -> Settings:
    L_f, L_phi = _moduli(L_1, L_2, L_12, L_21, mu)
    c, cap = math.cbrt(S) / (L_f * K), 1 / (100 * L_f * K)
    chosen = _decaying(c, cap, 2 * mu**2 / (33 * L_12**2), 8192 * L_f**2 * K**2 / S, S, K)
    return {**chosen, "eta_cap": min(1 / (2 * L_f), 1 / (2 * L_phi))}


def cd_mage_3(*, L_1: float, L_2: float, L_12: float, L_21: float, mu: float, sigma_1: float, sigma_2: float,
              G_1: float, G_2: float, L_0: float, S: int, K: int, T: int) -> Settings:
    L_f, L_phi = _moduli(L_1, L_2, L_12, L_21, mu)
    gamma = min(_noise(20 * L_0 * S, L_f, T, K, sigma_2), _drift(30 * L_0, L_f, sigma_2, G_2, T, K),
                1 / (87 * L_f * K))
    eta = min(_noise(20 / 7 * L_0 * S, L_phi + L_f, T, K, sigma_1), _drift(3 * L_0, L_f, sigma_1, G_1, T, K),
              1 / (36 * L_f * K), 1 / (4 * L_phi * K), mu**2 * gamma / (21 * L_12**2))
    return _constant(eta, gamma, S, K)


def _noise(above: float, L: float, T: int, K: int, sigma: float) -> float:
    return math.sqrt(ratio(above, L * T * K**2 * sigma**2))


def _drift(above: float, L_f: float, sigma: float, G: float, T: int, K: int) -> float:
    return math.cbrt(ratio(above, L_f**2 * (sigma**2 + G**2) * T * K**3))


def _smooth(L_f: float, mu: float) -> float:
    return (1 + L_f / mu / 2) * L_f  # L_Phi of cdma


def _moduli(L_1: float, L_2: float, L_12: float, L_21: float, mu: float) -> tuple[float, float]:
    """L_f and L_Phi of cd-mage (Lemmas 1 and 2)."""
    return math.sqrt(2 * max(L_1**2 + L_21**2, L_2**2 + L_12**2)), L_1 + L_12 * L_21 / (2 * mu)


def _constant(eta: float, gamma: float, S: int, K: int) -> Settings:
    return {"eta": eta, "gamma": gamma, "rho": 0.0, "steps": K, "asked": S}


def _decaying(c: float, cap: float, eta: float, alpha: float, S: int, K: int) -> Settings:
    """gamma_t = min(cap, c / (t+1)^(1/3)), eta_t = eta gamma_t, alpha_t = alpha gamma_t^2."""
    gamma, rho = (c, 1 / 3) if math.isfinite(c) else (cap, 0.0)
    return {**_constant(eta * gamma, gamma, S, K), "gamma_cap": cap, "c_alpha": alpha * gamma**2, "rho": rho}


THEOREMS = {
    ("cdma", "1"): Theorem(("cdma-nc", "cd-ma"), cdma_1, CDMA),
    ("cdma", "2"): Theorem(("cdma-one", "cd-mage"), cdma_2, CDMA),
    ("cdma", "3"): Theorem(("cdma-ada", "cd-mage+"), cdma_3, CDMA),
    ("cd-mage", "1"): Theorem(("cd-mage", "cdma-one"), cd_mage_1, CD_MAGE),
    ("cd-mage", "2"): Theorem(("cd-mage+", "cdma-ada"), cd_mage_2, CD_MAGE),
    ("cd-mage", "3"): Theorem(("cd-ma", "cdma-nc"), cd_mage_3, CD_MAGE),
}
