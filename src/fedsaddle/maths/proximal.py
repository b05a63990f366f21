"""Proximal maps on the simplex: argmin over u of 1/2 |u - a|^2 + weight * D(u, prior), u >= 0, sum(u) = 1.

The server's side of DRFA-Prox (papers: drfa, Algorithm 2). Squared distances are a projection; KL and the
p-norms leave one or two scalar equations, solved to rounding; optimal transport is a quadratic programme, solved
by an interior point method down to a duality gap of rounding, and |u - exact|^2 / 2 is at most the gap.
In NumPy: the vectors are short and the steps many.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log

import numpy as np
import torch
from numpy.typing import NDArray

from fedsaddle.maths import projections

Array = NDArray[np.float64]
EPS = 2.0**-52


def squared(a: Array, weight: float, prior: Array) -> Array:
    """D = 1/2 |u - prior|^2: the projection of a weighted mean of both."""
    return projections.simplex(torch.from_numpy((a + weight * prior) / (1 + weight))).numpy()


def kl(a: Array, weight: float, prior: Array) -> Array:
    """D = sum u log(u / prior); u is 0 where the prior is."""
    known = prior > 0
    scale = np.log(prior[known] / weight)

    def each(s: Array) -> Array:
        """u - prior where u + weight log(u / prior) = prior + s."""
        return weight * _omega((prior[known] + s) / weight + scale) - prior[known]

    u = np.zeros_like(a)
    u[known] = _balanced(each, a[known], prior[known])
    return u


def norm(a: Array, weight: float, prior: Array, p: float) -> Array:
    """D = |u - prior|_p, p >= 1.

    For p > 1, |d|_p is the least over t > 0 of |d|_p^p / (p t^(p-1)) + (1 - 1/p) t, attained where t = |d|_p.
    With t given, the coordinates are coupled by their sum alone.
    """
    if p == 1:
        return _balanced(lambda s: np.maximum(np.sign(s) * np.maximum(np.abs(s) - weight, 0), -prior), a, prior)

    def solved(log_t: float) -> Array:
        log_c = log(weight) - (p - 1) * log_t
        return _change(lambda s: np.maximum(_shrunk(s, log_c, p), -prior), a - prior)

    def excess(log_t: float) -> float:
        d = np.abs(solved(log_t))
        largest = max(float(d.max()), 1e-300)
        return log(largest) + log(float(((d / largest) ** p).sum()) + 1e-300) / p - log_t

    low, high = log(1e-15), log(2.0)  # two points of the simplex are at most 2 apart
    return _on_simplex(prior + solved(_root(excess, low, high, 1e-13)))


def transport(a: Array, weight: float, prior: Array, cost: Array) -> Array:
    """D = the least sum of T_ij cost_ij over T >= 0 with row sums u and column sums prior.

    In T the problem is 1/2 |T 1 - a|^2 + weight <cost, T>, solved by Mehrotra's method: S >= 0 are the multipliers
    of T >= 0, psi those of the column sums. The best u by its duality gap is returned.
    """
    known = prior > EPS  # next to nothing starts elsewhere
    mass, price = prior[known], weight * cost[:, known]
    a = np.maximum(a - a.max(), -2 - price.max())  # u is the same: it is 0 wherever a is that far below its maximum
    T = np.tile(mass / len(a), (len(a), 1))
    slope = (T.sum(1) - a)[:, None] + price
    psi = slope.min(0) - 1
    S = slope - psi
    best, least, worse = T, np.inf, 0
    for _ in range(200):
        slope = (T.sum(1) - a)[:, None] + price
        gap = float((T * (slope - slope.min(0))).sum())
        best, least, worse = (T, gap, 0) if gap < least else (best, least, worse + 1)
        if gap <= EPS * (1 + np.abs(slope).max()) or worse == 3:  # in the end rounding wins
            break
        mean = float((S * T).mean())
        plan = _Plan(T, S, mass - T.sum(0), slope - psi - S)
        step_T, _, step_S = plan.step(0.0)  # how far a plain step gets says how much to centre
        reached = min(_room(T, step_T), _room(S, step_S))
        left = float(((T + reached * step_T) * (S + reached * step_S)).mean())
        step_T, step_psi, step_S = plan.step((left / mean) ** 3 * mean - step_T * step_S)
        length = min(_room(T, step_T), _room(S, step_S))
        T, psi, S = T + length * step_T, psi + length * step_psi, S + length * step_S
        T = T * (mass / T.sum(0))
    return _on_simplex(best.sum(1))


class _Plan:
    """Newton's equations at a transport plan, reduced to those of psi and formed without cancellation."""

    def __init__(self, T: Array, S: Array, missing: Array, residual: Array) -> None:
        self.T, self.S, self.missing, self.residual = T, S, missing, residual
        self.W = T / S
        self.damping = 1 / (1 + self.W.sum(1))
        between = self.W.T @ (self.damping[:, None] * self.W)
        np.fill_diagonal(between, 0)
        dominant = (1 + 4 * EPS) * (between.sum(1) + self.damping @ self.W) + 1e-300  # regular whatever the rounding
        self.system = np.diag(dominant) - between

    def step(self, product: Array | float) -> tuple[Array, Array, Array]:
        """Changes of T, psi and S towards S T = product."""
        R = product / self.T - self.S - self.residual
        row, column = (self.W * R).sum(1), (self.W * R).sum(0)
        psi = np.linalg.solve(self.system, self.missing - column + self.W.T @ (self.damping * row))
        u = self.damping * (row + self.W @ psi)
        return self.W * (R - u[:, None] + psi), psi, self.residual + u[:, None] - psi


def _room(value: Array, step: Array) -> float:
    """How far along the step all values stay positive, at most 1."""
    return min(1.0, 0.99 / max(float((-step / value).max()), 1e-300))


def _balanced(each: Callable[[Array], Array], a: Array, prior: Array) -> Array:
    return _on_simplex(prior + _change(each, a - prior))


def _change(each: Callable[[Array], Array], s: Array) -> Array:
    """d = each(s - theta) with theta such that d sums to zero. `each` rises and has the sign of its argument."""

    def imbalance(theta: float) -> float:
        d = each(s - theta)
        return float(d.sum() / max(np.abs(d).sum(), 1e-300))

    return each(s - _root(imbalance, float(s.min()), float(s.max()), 2 * EPS))


def _on_simplex(u: Array) -> Array:
    """Without the rounding."""
    u = np.maximum(u, 0)
    u /= u.sum()
    return u


def _root(f: Callable[[float], float], low: float, high: float, enough: float) -> float:
    """Where f, which falls from >= 0 at `low` to <= 0 at `high`, is 0, up to `enough` (Chandrupatla's method)."""
    a, b, at_a, at_b = low, high, f(low), f(high)
    if at_a <= 0 or at_b >= 0:
        return low if at_a <= 0 else high
    share = 0.5  # of the way from a to b, between which the root lies
    for _ in range(1000):
        x = a + share * (b - a)
        value = f(x)
        if (value > 0) == (at_a > 0):
            c, at_c = a, at_a
        else:
            c, at_c, b, at_b = b, at_b, a, at_a
        a, at_a = x, value
        least = 2 * EPS * max(abs(a), abs(b)) / abs(b - a)
        if abs(value) <= enough or least >= 0.5:
            return a
        xi, phi = (a - b) / (c - b), (at_a - at_b) / (at_c - at_b)
        share = 0.5
        if phi**2 < xi and (1 - phi) ** 2 < 1 - xi:  # inverse quadratic interpolation stays inside
            share = at_a / (at_b - at_a) * at_c / (at_b - at_c) \
                + (c - a) / (b - a) * at_a / (at_c - at_a) * at_b / (at_c - at_b)
        share = min(1 - least, max(least, share))
    return a


def _omega(z: Array) -> Array:
    """w with w + log(w) = z: Newton in log(w), which converges from above, the function being convex."""
    z = np.maximum(z, -800.0)  # exp(-800) is 0
    l = np.where(z > 1, np.log(np.maximum(z, 1)), z)
    for _ in range(50):
        w = np.exp(l)
        change = (w + l - z) / (w + 1)
        l = l - change
        if (np.abs(change) <= 4 * EPS * np.maximum(np.abs(l), 1)).all():
            break
    return np.exp(l)


def _shrunk(s: Array, log_c: float, p: float) -> Array:
    """sign(s) r with r + c r^(p-1) = |s|: Newton in log(r) on log(r + c r^(p-1)), which is convex."""
    target = np.log(np.maximum(np.abs(s), 1e-300))
    l = np.minimum(target, (target - log_c) / (p - 1))
    for _ in range(100):
        other = log_c + (p - 1) * l
        total = np.logaddexp(l, other)
        change = (total - target) / (np.exp(l - total) + (p - 1) * np.exp(other - total))
        l = l - change
        if (np.abs(change) <= 4 * EPS * np.maximum(np.abs(l), 1)).all():
            break
    return np.sign(s) * np.exp(l)
