"""The methods of the papers cdma and cd-mage and their baselines: NumPy transcriptions, identities, convergence."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from fedsaddle.algorithms import ALGORITHMS, make
from fedsaddle.contracts import Point
from fedsaddle.data.synthetic import quadratic_clients
from fedsaddle.engine.ledger import Traffic
from fedsaddle.engine.training import Progress, one_round
from fedsaddle.maths import keys, projections
from fedsaddle.participation import Participation, as_participation
from fedsaddle.participation.responses import DropOuts, FirstResponders
from fedsaddle.problems import Quadratic
from fedsaddle.problems.quadratic import coefficients, solve
from fedsaddle.testing import job, quadratic_case
from transcribe import play, quadratic_gradient

FLAKY = as_participation(DropOuts(0.3), FirstResponders())
SIWER = as_participation(FirstResponders())


def case(heterogeneity=1.0, noise=0.5, coupling=1.0):
    clients = quadratic_clients(10, (1, 30), 3, 2, heterogeneity=heterogeneity, noise=noise, coupling=coupling, seed=2)
    return Quadratic(3, 2), clients


def run(method, problem, rounds, participation=None):
    """z after every round, on the vectorised engine in float64."""
    start = job(method, problem, participation or Participation(), rounds=rounds)
    server, path = start.progress.server, []
    for number in range(rounds):
        server, _ = one_round(method, start.federation, Progress(server, number, Traffic()))
        path.append(torch.cat(server.z).numpy().copy())
    return np.array(path)


def close(point, x, y):
    np.testing.assert_allclose(point.x, x, atol=1e-9)
    np.testing.assert_allclose(point.y, y, atol=1e-9)


def mean(ask, local):
    """The weighted mean over those that answered of what `local(data)` returns, a tuple of arrays."""
    replies = [local(data) for data in ask.data]
    return tuple(sum(w * reply[part] for w, reply in zip(ask.weight, replies, strict=True))
                 for part in range(len(replies[0])))


def played(game, rounds_done):
    """The rounds that somebody answered, of which there must be enough."""
    done = [each for each in game.rounds if not each.skipped]
    assert len(done) >= rounds_done
    return done


# Transcriptions.


def test_cd_mage_plus_is_its_pseudo_code_with_both_caps():
    """Algorithms 1 to 3 of cd-mage with the schedule of its Theorem 2: capped first, then decaying."""
    c_eta, c_gamma, K, c_alpha, rho, eta_cap, gamma_cap = 0.12, 0.2, 3, 1.2, 0.5, 0.05, 0.11
    game = play(make("cd-mage+", eta=c_eta, gamma=c_gamma, steps=K, asked=6, c_alpha=c_alpha, rho=rho,
                     eta_cap=eta_cap, gamma_cap=gamma_cap), quadratic_case(), 10, FLAKY)
    x, y = before = game.first.z
    u, v = 0 * x, 0 * y
    caps = set()
    for t, round_ in enumerate(played(game, 6)):
        gamma = min(gamma_cap, c_gamma / (t + 1) ** rho)
        eta = min(eta_cap, c_eta / c_gamma * gamma)
        alpha = min(1, c_alpha * gamma**2 / c_gamma**2) if t else 1
        caps.add((gamma == gamma_cap, eta == eta_cap))
        collection, update = round_.asks

        def change(data, z=(x, y), old=before, kept=1 - alpha):
            now, then = quadratic_gradient(*z, data.full), quadratic_gradient(*old, data.full)
            return now[0] - kept * then[0], now[1] - kept * then[1]

        g = mean(collection, change)
        u, v = (1 - alpha) * u + g[0], (1 - alpha) * v + g[1]

        def local(data, z=(x, y), w=(u, v), eta=eta, gamma=gamma):
            xi, yi = z
            for batch in data.minibatches:
                here, start = quadratic_gradient(xi, yi, batch), quadratic_gradient(*z, batch)
                xi, yi = xi - eta * (here[0] - start[0] + w[0]), yi + gamma * (here[1] - start[1] + w[1])
            return xi, yi

        before, (x, y) = (x, y), mean(update, local)
        close(round_.server.z, x, y)
    assert caps == {(True, True), (False, True), (False, False)}


@pytest.mark.parametrize("name", ["cdma-one", "cdma-ada", "catalyst-scaffold-s"])
def test_both_phases_ask_the_same_clients_only_without_resampling(name):
    """The papers draw anew for the second phase; the authors' code does not. Everyone asked answers here."""
    for resample in (True, False):
        game = play(make(name, steps=2, asked=4, resample=resample), case(), 6)
        same = [gradients.clients == steps.clients for gradients, steps in (round_.asks for round_ in game.rounds)]
        assert not any(same) if resample else all(same)


def test_without_resampling_one_client_takes_its_own_steps_of_descent_and_ascent():
    """Its correction is its own full gradient, so with full batches K local steps are K plain ones."""
    problem, clients = case(noise=0.0)
    game = play(make("cdma-one", eta=0.1, gamma=0.2, steps=3, asked=1, resample=False), (problem, clients), 5)
    x, y = game.first.z
    for round_ in game.rounds:
        for _ in range(3):
            gx, gy = quadratic_gradient(x, y, round_.asks[0].data[0].full)
            x, y = x - 0.1 * gx, y + 0.2 * gy
        close(round_.server.z, x, y)


@pytest.mark.parametrize("R", [1, 2, 3])
def test_local_sgda_plus_is_its_pseudo_code(R):
    eta, gamma, K = 0.1, 0.2, 3
    game = play(make("local-sgda+", eta=eta, gamma=gamma, steps=K, asked=6, refresh=R), quadratic_case(), 8, FLAKY)
    x, y = game.first.z
    for t, round_ in enumerate(played(game, 5)):
        if t % R == 0:
            snapshot = x

        def local(data, x=x, y=y, xs=snapshot):
            assert len(data.minibatches) == K
            for batch in data.minibatches:
                x, y = x - eta * quadratic_gradient(x, y, batch)[0], y + gamma * quadratic_gradient(xs, y, batch)[1]
            return x, y

        x, y = mean(round_.asks[0], local)
        close(round_.server.z, x, y)


def test_extra_step_local_sgd_is_its_pseudo_code():
    eta, K = 0.2, 3
    game = play(make("extra-step-local-sgd", eta=eta, steps=K, asked=6), quadratic_case(), 6, FLAKY)
    x, y = game.first.z
    for round_ in played(game, 3):

        def local(data, x=x, y=y):
            assert len(data.minibatches) == 2 * K
            draws = iter(data.minibatches)
            for _ in range(K):
                gx, gy = quadratic_gradient(x, y, next(draws))
                gx, gy = quadratic_gradient(x - eta * gx, y + eta * gy, next(draws))
                x, y = x - eta * gx, y + eta * gy
            return x, y

        x, y = mean(round_.asks[0], local)
        close(round_.server.z, x, y)


def test_catalyst_scaffold_s_is_its_pseudo_code():
    eta, eta_g, K, theta, K_0 = 0.1, 0.12, 3, 0.7, 8
    game = play(make("catalyst-scaffold-s", eta=eta, eta_global=eta_g / eta, steps=K, asked=6, theta=theta,
                     stage_steps=K_0), quadratic_case(), 10, FLAKY)
    x, y = centre = game.first.z
    done, stages, lengths = 0, 0, set()
    for round_ in played(game, 6):
        full, update = round_.asks
        c = mean(full, lambda data, x=x, y=y: quadratic_gradient(x, y, data.full))
        kappa, stay = 1, 1 - 1 / K  # each local step ends the round with probability 1/K
        while 1 - stay**kappa <= round_.dice[0]:
            kappa += 1

        def local(data, z=(x, y), c=c, centre=centre, kappa=kappa):
            assert len(data.minibatches) == kappa
            xi, yi = z
            for batch in data.minibatches:
                here, start = quadratic_gradient(xi, yi, batch), quadratic_gradient(*z, batch)
                dx, dy = here[0] - start[0] + c[0], here[1] - start[1] + c[1]
                xi, yi = xi - eta * (dx + theta * (xi - centre[0])), yi + eta * (dy - theta * (yi - centre[1]))
            return z[0] + eta_g / eta * (xi - z[0]), z[1] + eta_g / eta * (yi - z[1])

        x, y = mean(update, local)
        done += kappa
        lengths.add(kappa)
        if done >= K_0:
            centre, done, stages = (x, y), 0, stages + 1
        close(round_.server.z, x, y)
        close(round_.server.centre, *centre)
    assert stages >= 2 and len(lengths) >= 3


def test_fedgda_gt_is_its_pseudo_code():
    eta, K = 0.1, 4
    game = play(make("fedgda-gt", eta=eta, steps=K), quadratic_case(), 5, FLAKY)
    x, y = game.first.z
    for round_ in played(game, 3):
        tracked, update = round_.asks
        gx, gy = mean(tracked, lambda data, x=x, y=y: quadratic_gradient(x, y, data.full))

        def local(data, x=x, y=y, gx=gx, gy=gy):
            at_start = quadratic_gradient(x, y, data.full)
            for _ in range(K):
                here = quadratic_gradient(x, y, data.full)
                x, y = x - eta * (here[0] - at_start[0] + gx), y + eta * (here[1] - at_start[1] + gy)
            return x, y

        x, y = mean(update, local)
        close(round_.server.z, x, y)


def test_momentum_local_sgda_is_its_pseudo_code():
    """alpha eta_x = 0.1, alpha eta_y = 0.2, alpha beta = 0.3."""
    alpha, eta_x, eta_y, beta, K = 0.1, 1.0, 2.0, 3.0, 3
    game = play(make("momentum-local-sgda", eta=alpha * eta_x, gamma=alpha * eta_y, momentum=alpha * beta, steps=K,
                     asked=6), quadratic_case(), 6, FLAKY)
    (x, y), (dx, dy) = game.first.z, game.first.d
    for round_ in played(game, 3):

        def local(data, x=x, y=y, dx=dx, dy=dy):
            for batch in data.minibatches:
                x_half, y_half = x - eta_x * dx, y + eta_y * dy
                x, y = x + alpha * (x_half - x), y + alpha * (y_half - y)
                gx, gy = quadratic_gradient(x, y, batch)
                dx, dy = (1 - beta * alpha) * dx + beta * alpha * gx, (1 - beta * alpha) * dy + beta * alpha * gy
            return x, y, dx, dy

        x, y, dx, dy = mean(round_.asks[0], local)
        close(round_.server.z, x, y)
        close(round_.server.d, dx, dy)


def test_momentum_starts_from_the_mean_gradient_of_everyone():
    problem, clients = case(noise=0.0)
    first = play(make("momentum-local-sgda", asked=3), (problem, clients), 1).first
    q = [part.numpy() for part in coefficients(clients, clients.run.size, 3, 2)]
    close(first.d, q[0] @ first.z.x + q[1] @ first.z.y + q[3], q[1].T @ first.z.x - q[2] @ first.z.y - q[4])


def test_parallel_sgda_is_its_pseudo_code():
    eta, gamma = 0.1, 0.2
    game = play(make("parallel-sgda", eta=eta, gamma=gamma, asked=6), quadratic_case(), 6, FLAKY)
    x, y = game.first.z
    for round_ in played(game, 3):
        gx, gy = mean(round_.asks[0], lambda data, x=x, y=y: quadratic_gradient(x, y, data.full))
        x, y = x - eta * gx, y + gamma * gy
        close(round_.server.z, x, y)


# Identities.


def test_names_of_one_method():
    assert make("cd-ma", eta=0.2, asked=5) == make("cdma-nc", eta=0.2, asked=5)
    assert make("cd-mage", gamma=0.3) == make("cdma-one", gamma=0.3)
    assert make("cd-mage+", rho=0.3, c_alpha=2.0) == make("cdma-ada", rho=0.3, c_alpha=2.0)
    assert make("local-sgda", steps=4) == make("cdma-nc", steps=4, asked=None)
    assert make("local-sgda", asked=3).asked is None  # always everyone


def test_ada_with_alpha_one_is_one():
    ada = run(make("cdma-ada", c_alpha=1e9, rho=0.3, asked=6, steps=3), case(), 8, FLAKY)
    one = run(make("cdma-one", rho=0.3, asked=6, steps=3), case(), 8, FLAKY)
    np.testing.assert_array_equal(ada, one)
    other = run(make("cdma-ada", c_alpha=0.5, rho=0.3, asked=6, steps=3), case(), 8, FLAKY)
    assert abs(other - one).max() > 1e-3


def test_one_with_one_step_is_parallel_sgda():
    """With any minibatch: both terms of the correction use it at the same point, so what remains is w."""
    one = run(make("cdma-one", eta=0.1, gamma=0.2, steps=1, asked=6), case(), 8, SIWER)
    parallel = run(make("parallel-sgda", eta=0.1, gamma=0.2, asked=6), case(), 8, SIWER)
    np.testing.assert_allclose(one, parallel, atol=1e-12)


def test_without_correction_it_is_nc():
    nc = make("cdma-nc", asked=6, steps=3)
    path = run(nc, case(), 6, FLAKY)
    np.testing.assert_array_equal(path, run(dataclasses.replace(nc, c_alpha=0.3), case(), 6, FLAKY))
    assert abs(path - run(dataclasses.replace(nc, beta=1), case(), 6, FLAKY)).max() > 1e-3


@pytest.mark.parametrize("steps, refresh, coupling, same", [
    (1, 1, 1.0, True),  # the frozen x is the x of the step
    (3, 4, 0.0, True),  # the ascent direction does not depend on x
    (3, 1, 1.0, False), (1, 2, 1.0, False),
])
def test_local_sgda_plus_is_nc_only_where_it_should_be(steps, refresh, coupling, same):
    settings = {"eta": 0.1, "gamma": 0.2, "steps": steps, "asked": 6}
    plus = run(make("local-sgda+", refresh=refresh, **settings), case(coupling=coupling), 6)
    nc = run(make("cdma-nc", **settings), case(coupling=coupling), 6)
    if same:
        np.testing.assert_allclose(plus, nc, atol=1e-12)
    else:
        assert abs(plus - nc).max() > 1e-3


def test_catalyst_without_proximal_term_and_with_fixed_length_is_one():
    settings = {"eta": 0.1, "steps": 3, "asked": 6}
    catalyst = run(make("catalyst-scaffold-s", theta=0.0, random_steps=False, **settings), case(), 8, FLAKY)
    one = run(make("cdma-one", gamma=0.1, **settings), case(), 8, FLAKY)
    np.testing.assert_allclose(catalyst, one, atol=1e-12)
    pulled = run(make("catalyst-scaffold-s", theta=0.5, random_steps=False, **settings), case(), 8, FLAKY)
    assert abs(pulled - one).max() > 1e-3


def test_fedgda_gt_is_one_of_everyone_with_full_batches():
    """Rows of a client are equal here, so a minibatch is the full batch."""
    tracked = run(make("fedgda-gt", eta=0.1, steps=4), case(noise=0.0), 6)
    one = run(make("cdma-one", eta=0.1, gamma=0.1, steps=4), case(noise=0.0), 6)
    np.testing.assert_allclose(tracked, one, atol=1e-12)


def test_momentum_of_weight_one_and_one_step_is_parallel_sgda():
    momentum = run(make("momentum-local-sgda", eta=0.1, gamma=0.2, steps=1, momentum=1.0), case(noise=0.0), 6)
    parallel = run(make("parallel-sgda", eta=0.1, gamma=0.2), case(noise=0.0), 6)
    np.testing.assert_allclose(momentum, parallel, atol=1e-12)


@pytest.mark.parametrize("name, ahead", [
    ("cdma-one", False), ("cdma-nc", False), ("fedgda-gt", False), ("extra-step-local-sgd", True),
])
def test_identical_clients_take_plain_steps(name, ahead):
    """Full batches and no difference between clients: a round is K steps of descent-ascent or of extragradient."""
    K, eta, rounds = 4, 0.1, 3
    problem, clients = case(heterogeneity=0.0, noise=0.0)
    more = {"gamma": eta} if name.startswith("cdma") else {}
    path = run(make(name, eta=eta, steps=K, **more), (problem, clients), rounds)
    A, B, C, a, c = (part.numpy() for part in coefficients(clients, torch.ones(10), 3, 2))
    x, y = np.ones(3), np.ones(2)
    for t in range(rounds):
        for _ in range(K):
            gx, gy = A @ x + B @ y + a, B.T @ x - C @ y - c
            if ahead:
                xh, yh = x - eta * gx, y + eta * gy
                gx, gy = A @ xh + B @ yh + a, B.T @ xh - C @ yh - c
            x, y = x - eta * gx, y + eta * gy
        np.testing.assert_allclose(path[t], np.concatenate([x, y]), atol=1e-12)


def test_round_lengths_of_catalyst_are_geometric():
    class Die:
        def __init__(self, *numbers):
            self.numbers = iter(numbers)

        def uniform(self):
            return next(self.numbers)

    K, n = 5, 20_000
    method, die = make("catalyst-scaffold-s", steps=K), Die(*(keys.uniform(3, j) for j in range(n)))
    lengths = np.array([method.draw(die) for _ in range(n)])
    deviation = math.sqrt(1 - 1 / K) * K / math.sqrt(n)
    assert lengths.min() == 1 and abs(lengths.mean() - K) < 5 * deviation
    for k in (1, 2, 5):
        share = (1 - 1 / K) ** (k - 1) / K
        assert abs((lengths == k).mean() - share) < 5 * math.sqrt(share / n)
    assert method.draw(Die(0.0)) == 1 and 1 < method.draw(Die(1 - 2.0**-53)) < 200  # the ends of what a die gives
    assert make("catalyst-scaffold-s", steps=1).draw(Die(0.7)) == 1


# Where the methods end.


def saddle_of(clients):
    return torch.cat(solve(coefficients(clients, clients.run.size, 3, 2))).numpy()


def test_fedgda_gt_converges_linearly_and_local_sgda_stops_at_a_floor():
    problem, clients = case(heterogeneity=2.0, noise=0.0)
    best = saddle_of(clients)
    tracked = np.linalg.norm(run(make("fedgda-gt", eta=0.1, steps=5), (problem, clients), 80) - best, axis=1)
    local = np.linalg.norm(run(make("local-sgda", eta=0.1, gamma=0.1, steps=5), (problem, clients), 80) - best, axis=1)
    assert tracked[-1] < 1e-10
    rates = (tracked[15:60:15] / tracked[0:45:15]) ** (1 / 15)
    assert rates.max() < 0.8 and rates.max() - rates.min() < 0.1  # one factor a round
    assert local[-1] > 1e-2 and local[-1] == pytest.approx(local[60], rel=1e-6)


@pytest.mark.parametrize("name", ["cd-mage", "catalyst-scaffold-s", "extra-step-local-sgd", "local-sgda+",
                                  "momentum-local-sgda", "parallel-sgda"])
def test_with_identical_clients_every_method_reaches_the_saddle(name):
    problem, clients = case(heterogeneity=0.0, noise=0.0)
    settings = {"eta": 0.25, "gamma": 0.25, "steps": 3, "momentum": 0.5, "theta": 0.2, "stage_steps": 30, "refresh": 2}
    known = {field.name for field in dataclasses.fields(ALGORITHMS[name].algorithm)}
    path = run(make(name, **{k: v for k, v in settings.items() if k in known}), (problem, clients), 80)
    assert np.linalg.norm(path[-1] - saddle_of(clients)) < 1e-4


class Fenced(Quadratic):
    """x in a box, y in a ball; the free saddle is outside of both."""

    LOW, HIGH, RADIUS = -0.2, 0.15, 0.3

    def first(self):
        return Point(torch.zeros(3), torch.zeros(2))

    def project(self, z):
        return Point(projections.box(z.x, self.LOW, self.HIGH), projections.ball(z.y, self.RADIUS))


def constrained_saddle(clients):
    """By many projected extragradient steps on the whole objective, in NumPy."""
    A, B, C, a, c = (part.numpy() for part in coefficients(clients, clients.run.size, 3, 2))

    def fence(x, y):
        return np.clip(x, Fenced.LOW, Fenced.HIGH), y * min(1, Fenced.RADIUS / max(np.linalg.norm(y), 1e-12))

    def step(z, at, eta=0.1):
        (x, y), (xh, yh) = z, at
        return fence(x - eta * (A @ xh + B @ yh + a), y + eta * (B.T @ xh - C @ yh - c))

    z = fence(np.zeros(3), np.zeros(2))
    for _ in range(1000):
        z = step(z, step(z, z))
    return z


@pytest.mark.parametrize("name, settings", [
    ("cdma-one", {"gamma": 0.25, "steps": 3}), ("fedgda-gt", {"steps": 3}), ("parallel-sgda", {"gamma": 0.25}),
    ("cdma-ada", {"gamma": 0.25, "rho": 0.0, "c_alpha": 0.5, "steps": 3}),
    ("catalyst-scaffold-s", {"theta": 0.3, "stage_steps": 20, "steps": 3}),
])
def test_corrected_methods_reach_the_constrained_saddle_and_never_leave_the_domain(name, settings):
    problem, clients = Fenced(3, 2), case(heterogeneity=2.0)[1]
    x, y = constrained_saddle(clients)
    free = saddle_of(clients)
    assert (np.isclose(x, Fenced.LOW) | np.isclose(x, Fenced.HIGH)).any() and not np.isclose(x, free[:3]).all()
    assert np.linalg.norm(y) == pytest.approx(Fenced.RADIUS)
    path = run(make(name, eta=0.25, **settings), (problem, clients), 120)
    assert path[:, :3].min() >= Fenced.LOW - 1e-12 and path[:, :3].max() <= Fenced.HIGH + 1e-12
    assert np.linalg.norm(path[:, 3:], axis=1).max() <= Fenced.RADIUS + 1e-12
    np.testing.assert_allclose(path[-1], np.concatenate([x, y]), atol=1e-7)


@pytest.mark.parametrize("name", ["cdma-nc", "local-sgda+", "extra-step-local-sgd", "momentum-local-sgda"])
def test_the_others_never_leave_the_domain_either(name):
    problem = Fenced(3, 2)
    known = {field.name for field in dataclasses.fields(ALGORITHMS[name].algorithm)}
    settings = {"eta": 0.3, "gamma": 0.3, "steps": 3, "asked": 4}
    path = run(make(name, **{k: v for k, v in settings.items() if k in known}), (problem, case()[1]), 20, FLAKY)
    assert path[:, :3].min() >= Fenced.LOW - 1e-12 and path[:, :3].max() <= Fenced.HIGH + 1e-12
    assert np.linalg.norm(path[:, 3:], axis=1).max() <= Fenced.RADIUS + 1e-12
    assert np.ptp(path) > 0.1
