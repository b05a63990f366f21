"""CDMA, CODASCA and DRFA against plain NumPy transcriptions of their papers, and what their theory says."""

from __future__ import annotations

import numpy as np
import pytest

from fedsaddle.algorithms import make
from fedsaddle.participation import as_participation
from fedsaddle.participation.responses import DropOuts, FirstResponders
from fedsaddle.testing import quadratic_case
from transcribe import play, quadratic_gradient, quadratic_loss

FLAKY = as_participation(DropOuts(0.3), FirstResponders())


def close(point, x, y):
    np.testing.assert_allclose(point.x, x, atol=1e-9)
    np.testing.assert_allclose(point.y, y, atol=1e-9)


@pytest.mark.parametrize("name, beta", [("cdma-nc", 0), ("cdma-one", 1), ("cdma-ada", 1)])
def test_cdma_is_its_pseudo_code(name, beta):
    """Algorithms 1 and 2 of the paper, with drop-outs, past the round where ADA's alpha falls below 1."""
    c_eta, c_gamma, K, c_alpha, rho = 0.1, 0.2, 3, 1.5, 0.4
    more = {"c_alpha": c_alpha, "rho": rho} if name == "cdma-ada" else {}
    game = play(make(name, eta=c_eta, gamma=c_gamma, steps=K, asked=6, **more), quadratic_case(), 6, FLAKY)
    x, y = game.first.z
    x_before, y_before = x, y
    u, v = np.zeros_like(x), np.zeros_like(y)
    t = 0
    for played in game.rounds:
        if played.skipped:
            continue
        alpha = min(1, c_alpha / (t + 1) ** (2 * rho)) if more and t > 0 else 1.0
        eta, gamma = (c_eta / (t + 1) ** rho, c_gamma / (t + 1) ** rho) if more else (c_eta, c_gamma)
        *collection, update = played.asks
        if beta:
            gx, gy = np.zeros_like(x), np.zeros_like(y)
            for weight, data in zip(collection[0].weight, collection[0].data, strict=True):
                now, then = quadratic_gradient(x, y, data.full), quadratic_gradient(x_before, y_before, data.full)
                gx, gy = gx + weight * (now[0] - (1 - alpha) * then[0]), gy + weight * (now[1] - (1 - alpha) * then[1])
            u, v = (1 - alpha) * u + gx, (1 - alpha) * v + gy
        new_x, new_y = np.zeros_like(x), np.zeros_like(y)
        for weight, data in zip(update.weight, update.data, strict=True):
            xi, yi = x, y
            assert len(data.minibatches) == K
            for batch in data.minibatches:
                here, start = quadratic_gradient(xi, yi, batch), quadratic_gradient(x, y, batch)
                dx, dy = here[0] + beta * (u - start[0]), here[1] + beta * (v - start[1])
                xi, yi = xi - eta * dx, yi + gamma * dy
            new_x, new_y = new_x + weight * xi, new_y + weight * yi
        x_before, y_before, x, y, t = x, y, new_x, new_y, t + 1
        close(played.server.z, x, y)
    assert t >= 4


@pytest.mark.parametrize("output", ["last", "random"])
def test_codasca_is_its_pseudo_code(output):
    """Algorithms 3 and 4 with partial participation: controls by eq. (6), two stages, the proximal term."""
    eta_l, eta_g, I, R, gamma, decay = 0.05, 1.3, 3, 3, 0.2, 0.5
    method = make("codasca", eta=eta_l, eta_global=eta_g, steps=I, asked=6, proximal=gamma, stage_rounds=R,
                  decay=decay, output=output, growth=2.0)
    game = play(method, quadratic_case(), 8, FLAKY)
    v, alpha = game.first.z
    N, chosen = 10, game.first.chosen
    w = np.zeros(N)
    controls = {i: (np.zeros_like(v), np.zeros_like(alpha)) for i in range(N)}
    cv, ca = np.zeros_like(v), np.zeros_like(alpha)
    v0, r, kept = v, 0, None
    for played in game.rounds:
        if played.skipped:
            continue
        (ask,) = played.asks
        steps_v, steps_a = np.zeros_like(v), np.zeros_like(alpha)
        change_v, change_a = np.zeros_like(v), np.zeros_like(alpha)
        for i, weight, share, data in zip(ask.clients, ask.weight, ask.share, ask.data, strict=True):
            w[i] = share
            (civ, cia), vi, ai = controls[i], v, alpha
            assert len(data.minibatches) == I
            for batch in data.minibatches:
                gv, ga = quadratic_gradient(vi, ai, batch)
                gv = gv + gamma * (vi - v0)
                vi, ai = vi - eta_l * (gv - civ + cv), ai + eta_l * (ga - cia + ca)
            new = civ - cv + (v - vi) / (I * eta_l), cia - ca + (ai - alpha) / (I * eta_l)
            change_v, change_a = change_v + share * (new[0] - civ), change_a + share * (new[1] - cia)
            controls[i] = new
            steps_v, steps_a = steps_v + weight * vi, steps_a + weight * ai
        v, alpha = v + eta_g * (steps_v - v), alpha + eta_g * (steps_a - alpha)
        cv, ca, r = cv + change_v, ca + change_a, r + 1
        kept = (v, alpha) if r == chosen or output == "last" else kept
        if r == R:
            (v, alpha), v0, r = kept, kept[0], 0
            controls = {i: (0 * v, 0 * alpha) for i in range(N)}
            cv, ca, eta_l, I = 0 * v, 0 * alpha, eta_l * decay, I * 2
            chosen = played.dice[-1]
        close(played.server.z, v, alpha)
        close(played.server.c, cv, ca)
        c_mean = [sum(w[i] * controls[i][part] for i in range(N)) for part in (0, 1)]
        close(played.server.c, *c_mean)  # c is the mean of all c_i at all times


def test_drfa_is_its_pseudo_code():
    """Algorithm 1: draws by lambda with replacement, one snapshot step a round, losses of a uniform subset."""
    eta, gamma, tau, m, N = 0.05, 0.02, 4, 5, 10
    game = play(make("drfa", eta=eta, gamma=gamma, steps=tau, asked=m), quadratic_case(), 6, FLAKY)
    (x, y), mixture = game.first.z, np.full(N, 1 / N)
    done = 0
    for played in game.rounds:
        if played.skipped:
            continue
        done += 1
        drawn, uniform = played.asks
        snapshot_step = played.dice[0]
        assert 1 <= snapshot_step <= tau
        total = drawn.times.sum()
        new = [np.zeros_like(x), np.zeros_like(y)]
        snapshot = [np.zeros_like(x), np.zeros_like(y)]
        for times, data in zip(drawn.times, drawn.data, strict=True):
            xi, yi = x, y
            for step, batch in enumerate(data.minibatches, start=1):
                gx, gy = quadratic_gradient(xi, yi, batch)
                xi, yi = xi - eta * gx, yi + eta * gy
                if step == snapshot_step:
                    snapshot = [snapshot[0] + times / total * xi, snapshot[1] + times / total * yi]
            new = [new[0] + times / total * xi, new[1] + times / total * yi]
        v = np.zeros(N)
        for i, data in zip(uniform.clients, uniform.data, strict=True):
            v[i] = N / len(uniform.clients) * quadratic_loss(*snapshot, data.minibatches[0])
        mixture = on_simplex(mixture + tau * gamma * v)
        x, y = new
        close(played.server.z, x, y)
        np.testing.assert_allclose(played.server.mixture, mixture, atol=1e-9)
        assert abs(played.server.mixture.sum() - 1) < 1e-12 and played.server.mixture.min() >= 0
    assert done >= 3


def on_simplex(v):
    """The projection by bisection on its multiplier."""
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - middle, 0)
