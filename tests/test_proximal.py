"""The proximal maps on the simplex against scipy's optimisers, hand numbers, and each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

from fedsaddle.maths import proximal

HARD = settings(max_examples=25, deadline=None, derandomize=True)


@st.composite
def cases(draw):
    """a of any size, a prior that may hold zeros, a weight over six decades."""
    n = draw(st.integers(2, 5))
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    prior = random.dirichlet(np.ones(n))
    if draw(st.booleans()):
        prior[random.integers(n)] = 0
        prior /= prior.sum()
    return random.normal(size=n) * 10.0 ** draw(st.integers(-2, 1)), 10.0 ** draw(st.integers(-4, 1)), prior, random


def transport_cost(u, prior, cost):
    """The least cost of moving prior to u, by linear programming."""
    n = len(u)
    rows, columns = np.kron(np.eye(n), np.ones(n)), np.kron(np.ones(n), np.eye(n))
    got = linprog(cost.ravel(), A_eq=np.vstack([rows, columns])[:-1], b_eq=np.concatenate([u, prior])[:-1])
    assert got.status == 0
    return got.fun


def best_of(objective, starts, most):
    """scipy's best point of the simplex below `most`: SLSQP from several starts, made feasible."""
    found = []
    for start in starts:
        got = minimize(objective, np.minimum(start, most), method="SLSQP", bounds=[(0, top) for top in most],
                       constraints={"type": "eq", "fun": lambda u: u.sum() - 1},
                       options={"ftol": 1e-15, "maxiter": 500})
        u = np.clip(got.x, 0, most)
        found.append(u / u.sum())
    return min(found, key=objective)


def compare(ours, objective, prior, random, tolerance, most=None):
    """Nobody finds a better point, and the best one found is ours (the objective is strongly convex)."""
    n = len(prior)
    assert ours.min() >= 0 and abs(ours.sum() - 1) < 1e-12
    theirs = best_of(objective, [prior, np.full(n, 1 / n), *random.dirichlet(np.ones(n), 3)],
                     np.ones(n) if most is None else most)
    assert objective(ours) <= objective(theirs) + 1e-12 * max(1, abs(objective(theirs)))
    np.testing.assert_allclose(ours, theirs, atol=tolerance)


@HARD
@given(cases())
def test_squared(case):
    a, weight, prior, random = case
    compare(proximal.squared(a, weight, prior),
            lambda u: ((u - a) ** 2).sum() / 2 + weight * ((u - prior) ** 2).sum() / 2, prior, random, 1e-6)


@HARD
@given(cases())
def test_kl(case):
    a, weight, prior, random = case

    def objective(u):
        v, u0 = np.maximum(u[prior > 0], 1e-300), prior[prior > 0]
        return ((u - a) ** 2).sum() / 2 + weight * (v * np.log(v / u0)).sum()

    compare(proximal.kl(a, weight, prior), objective, prior, random, 1e-4, most=(prior > 0) * 1.0)


@pytest.mark.parametrize("p", [1.0, 1.2, 1.5, 2.0, 4.0])
@settings(HARD, max_examples=10)
@given(case=cases())
def test_norm(p, case):
    a, weight, prior, random = case
    compare(proximal.norm(a, weight, prior, p),
            lambda u: ((u - a) ** 2).sum() / 2 + weight * np.linalg.norm(u - prior, p), prior, random, 1e-4)


@HARD
@given(cases())
def test_transport(case):
    """Against SLSQP over plans, to 1e-4; and by its duality gap, which bounds the error of u."""
    a, weight, prior, random = case
    n = len(a)
    cost = random.random((n, n)) if random.random() < 0.5 else np.abs(np.subtract.outer(np.arange(n), np.arange(n))) / n
    cost = cost * (1 - np.eye(n))
    u = proximal.transport(a, weight, prior, cost)
    assert u.min() >= 0 and abs(u.sum() - 1) < 1e-12

    def objective(plan):
        rows = plan.reshape(n, n).sum(1)
        return ((rows - a) ** 2).sum() / 2 + weight * (cost.ravel() @ plan)

    def slope(plan):
        return ((plan.reshape(n, n).sum(1) - a)[:, None] + weight * cost).ravel()

    columns = np.kron(np.ones(n), np.eye(n))
    theirs = minimize(objective, np.outer(np.full(n, 1 / n), prior).ravel(), jac=slope, method="SLSQP",
                      bounds=[(0, 1)] * n**2, options={"ftol": 1e-14, "maxiter": 1000},
                      constraints={"type": "eq", "fun": lambda T: columns @ T - prior, "jac": lambda T: columns})
    np.testing.assert_allclose(u, theirs.x.reshape(n, n).sum(1), atol=1e-4)
    primal = ((u - a) ** 2).sum() / 2 + weight * transport_cost(u, prior, cost)
    phi = u - a  # the dual function at phi: Lagrange's, of the constraint u = T 1
    dual = -(phi @ phi) / 2 - phi @ a + prior @ (weight * cost + phi[:, None]).min(0)
    assert primal - dual <= 1e-12 * max(1, abs(dual)) + 1e-9 * weight  # linprog is good to 1e-9


def test_hand_numbers():
    """Two clients, a = (0.9, 0.1), uniform prior: u = (0.5 + d, 0.5 - d), and d is known for each distance."""
    a, prior, w = np.array([0.9, 0.1]), np.array([0.5, 0.5]), 0.1
    discrete = 1 - np.eye(2)
    for got, d in [
        (proximal.squared(a, w, prior), 0.4 / 1.1),
        (proximal.norm(a, w, prior, 1.0), 0.4 - 0.1),
        (proximal.norm(a, w, prior, 2.0), 0.4 - 0.1 / 2**0.5),
        (proximal.norm(a, w, prior, 3.0), 0.4 - 0.05 * 2 ** (1 / 3)),
        (proximal.transport(a, w, prior, discrete), 0.4 - 0.05),
        (proximal.transport(a, w, prior, discrete / 2), 0.4 - 0.025),
    ]:
        np.testing.assert_allclose(got, [0.5 + d, 0.5 - d], atol=1e-9)
    d = proximal.kl(a, w, prior)[0] - 0.5
    assert abs(2 * d - 0.8 + w * np.log((0.5 + d) / (0.5 - d))) < 1e-12


@settings(HARD, max_examples=60)
@given(cases(), st.floats(1e-6, 1e6), st.sampled_from([1.0, 1.01, 1.5, 2.0, 3.0, 100.0]))
def test_always_on_the_simplex(case, size, p):
    a, weight, prior, random = case
    a, weight, cost = a * size, weight * random.choice([1e-6, 1.0, 1e6]), random.random((len(a), len(a)))
    np.fill_diagonal(cost, 0)
    for u in (proximal.squared(a, weight, prior), proximal.kl(a, weight, prior),
              proximal.norm(a, weight, prior, p), proximal.transport(a, weight, prior, cost)):
        assert u.min() >= 0 and abs(u.sum() - 1) < 1e-12


def test_heavy_weights_return_the_prior_and_light_ones_the_projection():
    random = np.random.default_rng(3)
    a, prior, cost = random.normal(size=6), random.dirichlet(np.ones(6)), 1 - np.eye(6)
    nearest = proximal.squared(a, 0.0, prior)
    assert nearest.max() > prior.max() + 0.1  # the two ends differ
    for map_ in (proximal.squared, proximal.kl, lambda *args: proximal.norm(*args, 1.5),
                 lambda *args: proximal.norm(*args, 1.0), lambda *args: proximal.transport(*args, cost)):
        np.testing.assert_allclose(map_(a, 1e8, prior), prior, atol=1e-6)
        np.testing.assert_allclose(map_(a, 1e-9, prior), nearest, atol=1e-6)


def test_transport_on_the_discrete_metric_is_half_the_1_norm():
    random = np.random.default_rng(4)
    for n in (2, 7, 40):
        a, prior = random.normal(size=n) / n, random.dirichlet(np.ones(n))
        for weight in (1e-3, 0.02, 0.3):
            np.testing.assert_allclose(proximal.transport(a, weight, prior, 1 - np.eye(n)),
                                       proximal.norm(a, weight / 2, prior, 1.0), atol=1e-9)
