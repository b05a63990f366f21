"""DRFA-Prox, DRFA-GA, AFL, q-FedAvg, FedAvg, SCAFFOLD and their amplified forms against plain NumPy transcriptions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedsaddle import testing
from fedsaddle.algorithms import make, regularisers
from fedsaddle.algorithms.regularisers import Pull
from fedsaddle.contracts import Point, SettingError, empty
from fedsaddle.data.clients import clients_from_list
from fedsaddle.participation import Participation, as_participation
from fedsaddle.participation.responses import DropOuts, FirstResponders
from fedsaddle.participation.selection import Cyclic
from fedsaddle.testing import quadratic_case, trial
from transcribe import as_numpy, play, quadratic_gradient, quadratic_loss

torch.set_num_threads(1)
FLAKY = as_participation(DropOuts(0.3), FirstResponders())
N = 10  # clients of every case


def close(point, x, y, atol=1e-9):
    np.testing.assert_allclose(point.x, x, atol=atol)
    np.testing.assert_allclose(point.y, y, atol=atol)


class Fit:
    """Least squares, a loss that is not negative, without y; a constant of each client's own may be added."""

    constants = False

    def first(self):
        return Point(torch.full((2,), 1.0), empty())

    def loss(self, x, y, batch):
        residual = batch.inputs[:, :2] @ x - batch.targets
        extra = batch.inputs[:, 2] if self.constants else 0.0
        return (batch.weight * (residual**2 / 2 + extra)).sum()

    def gradient(self, x, y, batch):
        residual = batch.inputs[:, :2] @ x - batch.targets
        return Point((batch.weight * residual) @ batch.inputs[:, :2], y)


def fit_case(rows=(1, 3, 20, 9, 12, 7, 8, 25, 14, 5), noise=0.5):
    """Ten clients that each want another x; with noise 0 and one row each, every batch is the whole client."""
    random = np.random.default_rng(8)
    parts = []
    for n in rows:
        inputs = random.normal(size=(1, 2)) + noise * random.normal(size=(n, 2))
        wanted = random.normal(size=2) * 2
        parts.append((inputs, inputs @ wanted + noise * random.normal(size=n)))
    return Fit(), clients_from_list(parts)


def fit_loss(x, batch):
    return float(batch.weight @ ((batch.inputs[:, :2] @ x - batch.targets) ** 2 / 2))


def fit_gradient(x, batch):
    return (batch.weight * (batch.inputs[:, :2] @ x - batch.targets)) @ batch.inputs[:, :2]


def servers(method, case, rounds, participation=None, first=None):
    """The server after every round, on the vectorised engine; `first`: a state to start from."""
    start = testing.job(method, case, participation or Participation(), rounds=rounds)
    server, federation, found = first or start.progress.server, start.federation, []
    for number in range(rounds):
        federation.begin(number)
        server = method.round(server, federation)
        federation.commit()
        found.append(server)
    return found


def on_simplex(v):
    """The projection by bisection on its multiplier."""
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - middle, 0)


def weighted(weights, values):
    return sum(weight * value for weight, value in zip(weights, values, strict=True))


# --- DRFA, DRFA-Prox, DRFA-GA, AFL --------------------------------------------------------------------------------


def drawn_weights(ask, lam, everyone):
    """A client drawn k times counts k times; all clients: by lambda, of those that answered."""
    by = lam[ask.clients] if everyone else ask.times
    return by / by.sum()


def local_paths(ask, x, y, eta):
    """The iterates w_i^1, ..., w_i^tau of every client."""
    paths = []
    for data in ask.data:
        xi, yi, path = x, y, []
        for batch in data.minibatches:
            gx, gy = quadratic_gradient(xi, yi, batch)
            xi, yi = xi - eta * gx, yi + eta * gy
            path.append((xi, yi))
        paths.append(path)
    return paths


def mean_at(weights, paths, t):
    return [weighted(weights, [path[t - 1][part] for path in paths]) for part in (0, 1)]


def drfa_game(rounds=6, **settings):
    """Algorithm 1 up to v: yields per round the recorded server and (lambda, v, w^(s+1), mean iterates)."""
    eta, tau = 0.05, 4
    name = "drfa-prox" if "regulariser" in settings else "drfa"
    method = make(name, eta=eta, steps=tau, asked=5, **settings)
    game = play(method, quadratic_case(), rounds, FLAKY)
    (x, y), lam = game.first.z, game.first.mixture
    for played in game.rounds:
        if played.skipped:
            continue
        train, judge = played.asks
        weights = drawn_weights(train, lam, method.everyone)
        paths = local_paths(train, x, y, eta)
        snapshot = mean_at(weights, paths, played.dice[0])
        v = np.zeros(N)
        for i, data in zip(judge.clients, judge.data, strict=True):
            v[i] = N / len(judge.clients) * quadratic_loss(*snapshot, data.minibatches[0])
        x, y = mean_at(weights, paths, tau)
        iterates = [np.mean([mean_at(weights, paths, t)[part] for t in range(1, tau + 1)], 0) for part in (0, 1)]
        close(played.server.z, x, y)
        yield played.server, lam, v, iterates, tau
        lam = played.server.mixture


PRIOR = np.arange(1, N + 1) / np.arange(1, N + 1).sum()
DISTANCES = {
    "squared": lambda u: ((u - PRIOR) ** 2).sum() / 2,
    "kl": lambda u: (np.maximum(u, 1e-300) * np.log(np.maximum(u, 1e-300) / PRIOR)).sum(),
    "norm": lambda u: (np.abs(u - PRIOR) ** 1.5).sum() ** (1 / 1.5),
    "transport": lambda u: np.abs(np.cumsum(u - PRIOR)).sum() / N,  # on a line, clients 1 / N apart
}


@pytest.mark.parametrize("regulariser", DISTANCES)
def test_drfa_prox_is_its_pseudo_code(regulariser):
    """Algorithm 2: lambda is where tau g(u) - |lambda + gamma tau v - u|^2 / (2 gamma) is largest, says scipy."""
    gamma, strength, random = 0.02, 0.7, np.random.default_rng(0)
    game = drfa_game(gamma=gamma, regulariser=regulariser, strength=strength, prior=tuple(PRIOR.tolist()), norm=1.5,
                     metric="line")
    done, moved = 0, 0.0
    for server, lam, v, _, tau in game:
        def loss(u, lam=lam, v=v, tau=tau):
            return tau * strength * DISTANCES[regulariser](u) + ((lam + gamma * tau * v - u) ** 2).sum() / (2 * gamma)

        ours, done = server.mixture, done + 1
        assert ours.min() >= 0 and abs(ours.sum() - 1) < 1e-12
        starts = [PRIOR, np.full(N, 1 / N), *random.dirichlet(np.ones(N), 2)]
        found = [minimize(loss, start, method="SLSQP", bounds=[(0, 1)] * N, options={"ftol": 1e-14, "maxiter": 300},
                          constraints={"type": "eq", "fun": lambda u: u.sum() - 1}).x for start in starts]
        best = min((np.clip(u, 0, 1) / np.clip(u, 0, 1).sum() for u in found), key=loss)
        assert loss(ours) <= loss(best) + 1e-9
        np.testing.assert_allclose(ours, best, atol=2e-3)  # scipy's part: the objective is not smooth
        moved = max(moved, np.abs(ours - on_simplex(lam + gamma * tau * v)).max())
    assert done >= 3 and moved > 0.02  # the regulariser has its say


@pytest.mark.parametrize("everyone", [False, True])
def test_drfas_average_is_that_of_the_recorded_iterates(everyone):
    """w^ = mean over all local iterates, lambda^ = mean of lambda^(0), ..., lambda^(S-1)."""
    gamma = 0.02
    zs, lams = [], []
    for server, lam, v, iterates, tau in drfa_game(gamma=gamma, everyone=everyone, output="average"):
        np.testing.assert_allclose(server.mixture, on_simplex(lam + tau * gamma * v), atol=1e-9)
        zs, lams = [*zs, iterates], [*lams, lam]
        close(server.average.z, *(np.mean([z[part] for z in zs], 0) for part in (0, 1)))
        np.testing.assert_allclose(server.average.mixture, np.mean(lams, 0), atol=1e-12)
        assert make("drfa", output="average").solution(server) is server.average.z
    assert len(zs) >= 3


def test_gamma_may_decay_by_the_round_in_drfa_and_in_afl():
    """gamma_s = gamma decay^s, as in the authors' code; skipped rounds do not count."""
    gamma, decay = 0.05, 0.5
    for s, (server, lam, v, _, tau) in enumerate(drfa_game(gamma=gamma, decay=decay)):
        np.testing.assert_allclose(server.mixture, on_simplex(lam + tau * gamma * decay**s * v), atol=1e-9)
    assert s >= 2
    game = play(make("afl", eta=0.0001, gamma=gamma, decay=decay), quadratic_case(), 6)
    lam, (x, y) = np.full(N, 1 / N), game.first.z
    for s, played in enumerate(game.rounds):
        F = np.array([quadratic_loss(x, y, data.minibatches[0]) for data in played.asks[0].data])
        lam = on_simplex(lam + gamma * decay**s * F)
        np.testing.assert_allclose(played.server.mixture, lam, atol=1e-9)
        x, y = played.server.z


@pytest.mark.parametrize("regulariser, everyone", [("squared", False), ("kl", False), ("none", True)])
def test_drfa_ga_is_its_pseudo_code(regulariser, everyone):
    """Algorithm 3, drop-outs included: losses of the start model on all data, no factor tau; averages of the end."""
    eta, gamma, tau, m, strength, skip = 0.05, 0.03, 3, 5, 0.4, 2
    method = make("drfa-ga", eta=eta, gamma=gamma, steps=tau, asked=m, everyone=everyone, regulariser=regulariser,
                  strength=strength, prior=tuple(PRIOR.tolist()), output="average", average_from=skip)
    game = play(method, quadratic_case(), 6, FLAKY)
    (x, y), lam, zs, lams = game.first.z, PRIOR, [], []
    for played in game.rounds:
        if played.skipped:
            continue
        train, judge = played.asks
        weights = drawn_weights(train, lam, everyone)
        paths = local_paths(train, x, y, eta)
        f = np.zeros(N)
        for i, data in zip(judge.clients, judge.data, strict=True):
            f[i] = N / len(judge.clients) * quadratic_loss(x, y, data.full)
        slope = {"none": 0 * lam, "squared": -strength * (lam - PRIOR),
                 "kl": -strength * (np.log(np.maximum(lam, 1e-12) / PRIOR) + 1)}[regulariser]
        lams.append(lam)
        lam = on_simplex(lam + gamma * (f + slope))
        zs.append([np.mean([mean_at(weights, paths, t)[part] for t in range(1, tau + 1)], 0) for part in (0, 1)])
        x, y = mean_at(weights, paths, tau)
        close(played.server.z, x, y)
        np.testing.assert_allclose(played.server.mixture, lam, atol=1e-9)
        last = zs[skip:] or zs[-1:]
        close(played.server.average.z, *(np.mean([z[part] for z in last], 0) for part in (0, 1)))
        np.testing.assert_allclose(played.server.average.mixture, np.mean(lams, 0), atol=1e-12)
    assert len(zs) > skip + 1


def test_afl_is_its_pseudo_code():
    """g_w = sum lambda_i grad F_i over those that answered, lambda <- P(lambda + gamma F), F at the start model."""
    eta, gamma = 0.05, 0.05
    game = play(make("afl", eta=eta, gamma=gamma, output="average"), quadratic_case(), 6, FLAKY)
    (x, y), lam, xs = game.first.z, np.full(N, 1 / N), []
    for played in game.rounds:
        (ask,) = played.asks
        weights = lam[ask.clients] / lam[ask.clients].sum()
        F, gradients = np.zeros(N), []
        for i, data in zip(ask.clients, ask.data, strict=True):
            F[i] = N / len(ask.clients) * quadratic_loss(x, y, data.minibatches[0])
            gradients.append(quadratic_gradient(x, y, data.minibatches[0]))
        x, y = (x - eta * weighted(weights, [g[0] for g in gradients]),
                y + eta * weighted(weights, [g[1] for g in gradients]))
        lam = on_simplex(lam + gamma * F)
        xs.append(x)
        close(played.server.z, x, y)
        np.testing.assert_allclose(played.server.mixture, lam, atol=1e-9)
        np.testing.assert_allclose(played.server.average.z.x, np.mean(xs, 0), atol=1e-9)


def test_afl_with_draws_is_drfa_with_one_step():
    afl = servers(make("afl", eta=0.05, gamma=0.03, asked=4), quadratic_case(), 5)
    drfa = servers(make("drfa", eta=0.05, gamma=0.03, asked=4, steps=1), quadratic_case(), 5)
    testing.compare([s[:2] for s in afl][-1], [s[:2] for s in drfa][-1], "AFL against DRFA", 0.0)


def test_drfa_with_one_step_and_everyone_is_afl():
    """Where every batch is the whole client: with the losses of the start model (GA) it is AFL; DRFA takes those of
    the new model, so each half of its round is a half of AFL's."""
    case = fit_case((1,) * N, noise=0.0)
    same = {"eta": 0.05, "gamma": 0.02}
    afl = make("afl", **same)
    ga = servers(make("drfa-ga", **same, steps=1, everyone=True, regulariser="none"), case, 8)
    testing.compare(servers(afl, case, 8)[-1], ga[-1], "GA against AFL", 1e-12)
    before = testing.job(afl, case, Participation()).progress.server
    for after in servers(make("drfa", **same, steps=1, everyone=True), case, 8):
        (model,) = servers(afl, case, 1, first=before)
        (weights,) = servers(afl, case, 1, first=before._replace(z=after.z))
        testing.compare((after.z, after.mixture), (model.z, weights.mixture), "DRFA against AFL", 1e-12)
        before = after


@pytest.mark.parametrize("regulariser", DISTANCES)
def test_prox_without_strength_is_drfa(regulariser):
    same = {"eta": 0.05, "gamma": 0.02, "steps": 3, "asked": 4}
    prox = make("drfa-prox", **same, regulariser=regulariser, strength=0.0)
    testing.compare(testing.final_state(prox, quadratic_case()),
                    testing.final_state(make("drfa", **same), quadratic_case()), "Prox against DRFA", 0.0)


def test_tau_v_is_an_unbiased_sum_of_losses():
    """E[tau v] = sum over the period of (f_1, ..., f_N) (eq. 3), over snapshots and subsets: within 4 standard errors.

    The clients have the same gradients, so that the period is the same whoever trains, and constants of their own.
    """
    tau, gamma, eta, m, clients = 4, 1e-4, 0.2, 3, 5
    problem = Fit()
    problem.constants = True
    rows = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    parts = [(rows + np.array([0, 0, 0.3 * i]), np.zeros(2)) for i in range(clients)]
    method = make("drfa", eta=eta, gamma=gamma, steps=tau, asked=m)
    start = testing.job(method, (problem, clients_from_list(parts)), Participation())
    changes = []
    for number in range(250):
        start.federation.begin(number)
        after = method.round(start.progress.server, start.federation)
        changes.append((after.mixture - start.progress.server.mixture).numpy() / gamma)
    x, total = np.ones(2), np.zeros(clients)
    for _ in range(tau):  # a batch of four rows holds each of the two rows twice
        x = x - eta * x / 2
        total += (x @ x) / 4 + 0.3 * np.arange(clients)
    error = np.std(changes, 0) / np.sqrt(len(changes))
    assert error.max() < 0.08 * np.ptp(total)
    # inside the simplex the projection takes the mean of v away, nothing else
    assert (np.abs(np.mean(changes, 0) - (total - total.mean())) < 4 * error).all()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=12), st.sampled_from(["none", *DISTANCES]),
       st.floats(0, 10) | st.just(5e-324), st.sampled_from([torch.float32, torch.float64]))
def test_lambda_stays_on_the_simplex(losses, regulariser, strength, dtype):
    """Whatever the losses, for several steps, in both precisions."""
    v = torch.tensor(losses, dtype=dtype)
    weights = prior = torch.full_like(v, 1 / len(v))
    for step in (0.01, 0.3, 5.0):
        pull = Pull(regulariser, strength, prior, 1.5, "line")
        slope = regularisers.gradient(weights, pull)
        assert bool(torch.isfinite(slope).all())
        weights = regularisers.ascend(weights + step * v, step, pull)
        assert weights.dtype == dtype and float(weights.min()) >= 0 and abs(float(weights.sum()) - 1) < 1e-6


@pytest.mark.parametrize("name", ["afl", "drfa", "drfa-ga"])
def test_the_robust_methods_reach_the_minimax_solution(name):
    """Clients that want a point each: at best the worst loss is a quarter of their ball's squared radius."""
    wanted = np.array([[0.0, 0.0], [0.3, 0.4], [-0.2, 0.1], [0.1, -0.3], [3.0, 0.5]])
    case = (Fit(), clients_from_list([(np.eye(2), point) for point in wanted]))  # batches are whole clients

    def losses(x):
        return ((x - wanted) ** 2).sum(1) / 4

    best = minimize(lambda xs: xs[2], [0.0, 0.0, 10.0], method="SLSQP", options={"ftol": 1e-12},
                    constraints={"type": "ineq", "fun": lambda xs: xs[2] - losses(xs[:2])})
    fedavg = servers(make("fedavg", eta=0.2, steps=2), case, 60)[-1].z.x.numpy()
    assert losses(fedavg).max() > 1.5 * best.fun
    more = {"afl": {}, "drfa": {"steps": 1, "everyone": True},
            "drfa-ga": {"steps": 1, "everyone": True, "regulariser": "none"}}[name]
    x = servers(make(name, eta=0.4, gamma=0.1, **more), case, 200)[-1].z.x.numpy()
    np.testing.assert_allclose(x, best.x[:2], atol=1e-3)
    assert losses(x).max() < 1.002 * best.fun


@pytest.mark.parametrize("name, more, copies", [
    ("drfa", {"output": "average", "everyone": True}, 3),
    ("drfa-prox", {"output": "average", "regulariser": "transport", "metric": "line"}, 3),
    ("drfa-prox", {"regulariser": "norm", "norm": 1.5}, 2),
    ("drfa-ga", {"output": "average", "regulariser": "kl", "average_from": 3}, 2),
    ("afl", {"output": "average"}, 1),
])
def test_options_pass_the_battery(name, more, copies):
    """The average costs a copy where it is asked for, and nothing in AFL, whose server knows all iterates."""
    testing.check_uploads(trial(name, **{**more, "asked": None}), quadratic_case(), copies, 1)
    for check in (testing.check_engines_agree, testing.check_resumes):
        check(trial(name, **more), quadratic_case())


def test_afl_with_draws_passes_the_battery():
    for check in (testing.check_engines_agree, testing.check_resumes, testing.check_participations):
        check(trial("afl", asked=4), quadratic_case())


@pytest.mark.parametrize("settings, words", [
    ({"prior": (0.5, 0.5)}, ["prior", "2 numbers", "10 clients"]),
    ({"prior": (-1.0,) + (1.0,) * 9}, ["prior", "negative"]),
    ({"regulariser": "transport", "metric": "nowhere.csv"}, ["metric", "nowhere.csv", "discrete"]),
])
def test_wrong_regularisers_are_explained(settings, words):
    with pytest.raises(SettingError) as error:
        testing.job(make("drfa-prox", **settings), quadratic_case(), Participation())
    assert all(word in str(error.value) for word in words)


def test_a_metric_may_come_from_a_file(tmp_path):
    same = {"asked": 4, "steps": 2, "regulariser": "transport", "strength": 0.5}
    line, file = np.abs(np.subtract.outer(np.arange(N), np.arange(N))) / N, tmp_path / "metric.csv"
    np.savetxt(file, line, delimiter=",")
    of_file = testing.final_state(make("drfa-prox", **same, metric=str(file)), quadratic_case())
    built_in = testing.final_state(make("drfa-prox", **same, metric="line"), quadratic_case())
    testing.compare(of_file, built_in, "the file against the line", 1e-12)
    discrete = testing.final_state(make("drfa-prox", **same), quadratic_case())
    assert float((discrete.server.mixture - of_file.server.mixture).abs().max()) > 1e-4
    np.savetxt(file, 1 - np.eye(N), delimiter=",")
    of_file = testing.final_state(make("drfa-prox", **same, metric=str(file)), quadratic_case())
    testing.compare(of_file, discrete, "the file against the discrete metric", 1e-9)
    for table in (line[:5], line - 1, line + np.eye(N)):
        np.savetxt(file, table, delimiter=",")
        with pytest.raises(SettingError, match="needs 10 rows of 10"):
            testing.job(make("drfa-prox", **same, metric=str(file)), quadratic_case(), Participation())


# --- q-FedAvg -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", [0.2, 2.0])
def test_q_fedavg_is_its_pseudo_code(q):
    eta, K = 0.05, 3
    game = play(make("q-fedavg", eta=eta, q=q, steps=K, asked=6), fit_case(), 5, FLAKY)
    x, L, done = game.first.z.x, 1 / eta, 0
    for played in game.rounds:
        if played.skipped:
            continue
        (ask,) = played.asks
        change, h = np.zeros_like(x), 0.0
        for weight, data in zip(ask.weight, ask.data, strict=True):
            F, xi = fit_loss(x, data.full), x
            assert len(data.minibatches) == K
            for batch in data.minibatches:
                xi = xi - eta * fit_gradient(xi, batch)
            D = L * (x - xi)
            change, h = change + weight * F**q * D, h + weight * (q * F ** (q - 1) * (D @ D) + L * F**q)
        x, done = x - change / h, done + 1
        np.testing.assert_allclose(played.server.z.x, x, atol=1e-9)
    assert done >= 3


def test_q_0_is_fedavg():
    same = {"eta": 0.05, "steps": 3, "asked": 6}
    for case in (quadratic_case(), fit_case()):
        fair = testing.final_state(make("q-fedavg", q=0.0, **same), case)
        testing.compare(fair.server.z, testing.final_state(make("fedavg", **same), case).server.z, "q = 0", 1e-12)


@pytest.mark.parametrize("q", [0.0, 0.2, 1.0, 40.0])
def test_q_fedavg_stands_still_where_every_loss_is_zero(q):
    """F^(q-1) has a pole there for q < 1, and sum Delta / sum h is 0 / 0 for q > 1."""
    parts = [(np.eye(2) * (i + 1), np.ones(2) * (i + 1)) for i in range(3)]  # x = (1, 1), the start, fits everything
    last = servers(make("q-fedavg", q=q, steps=2), (Fit(), clients_from_list(parts)), 3)[-1]
    np.testing.assert_allclose(last.z.x, [1.0, 1.0], atol=1e-12)


def test_a_larger_q_helps_the_worst_client():
    case = fit_case((6,) * N, noise=0.0)
    clients = case[1]
    worst = []
    for q in (0.0, 1.0, 5.0):
        x = servers(make("q-fedavg", q=q, eta=0.05, steps=2), case, 80)[-1].z.x
        worst.append(float((((clients.inputs @ x - clients.targets) ** 2) / 2).reshape(N, 6).mean(1).max()))
    assert worst[0] > 1.1 * worst[1] > 1.1**2 * worst[2]


# --- FedAvg, SCAFFOLD, and their amplified forms ------------------------------------------------------------------


class Corrected(NamedTuple):
    """A client's round in NumPy: where it ended, and its raw gradients."""

    x: np.ndarray
    y: np.ndarray
    gx: list
    gy: list


def local(data, x, y, eta, shift=(0.0, 0.0)):
    gxs, gys = [], []
    for batch in data.minibatches:
        gx, gy = quadratic_gradient(x, y, batch)
        gxs, gys = [*gxs, gx], [*gys, gy]
        x, y = x - eta * (gx + shift[0]), y + eta * (gy + shift[1])
    return Corrected(x, y, gxs, gys)


UNRELIABLE = as_participation(Cyclic(3), DropOuts(0.75))


@pytest.mark.parametrize("name, g, period, participation", [
    ("fedavg", 1.0, 1, FLAKY), ("cycp-fedavg", 1.0, 1, UNRELIABLE),
    ("amplified-fedavg", 1.6, None, UNRELIABLE), ("amplified-fedavg", 1.6, 2, FLAKY),
])
def test_fedavg_is_its_pseudo_code(name, g, period, participation):
    """Periods by the clock: their end amplifies even where its round is skipped."""
    eta, K, rounds = 0.05, 3, 14
    settings = {} if g == 1 else {"amplification": g, "period": period}
    game = play(make(name, eta=eta, steps=K, asked=3, **settings), quadratic_case(), rounds, participation)
    (x, y), P = game.first.z, period or 3
    hold, ends_skipped = (x, y), 0
    for number, played in enumerate(game.rounds):
        if not played.skipped:
            (ask,) = played.asks
            if participation is UNRELIABLE:
                assert all(i * 3 // N == number % 3 for i in ask.clients)
            found = [local(data, x, y, eta) for data in ask.data]
            x, y = weighted(ask.weight, [f.x for f in found]), weighted(ask.weight, [f.y for f in found])
        if (number + 1) % P == 0:
            x, y = hold[0] + g * (x - hold[0]), hold[1] + g * (y - hold[1])
            hold, ends_skipped = (x, y), ends_skipped + played.skipped
        if not played.skipped:  # a skipped round changes nothing: the server amplifies when somebody answers again
            close(played.server.z, x, y)
    if participation is UNRELIABLE:
        assert ends_skipped  # the case that this test is about


def test_scaffold_is_its_pseudo_code():
    """Option II, drop-outs included; c stays the mean of all c_i."""
    eta_l, eta_g, K = 0.05, 1.3, 3
    game = play(make("scaffold", eta=eta_l, eta_global=eta_g, steps=K, asked=6), quadratic_case(), 7, FLAKY)
    (x, y), c, own = game.first.z, (0.0, 0.0), {i: (0.0, 0.0) for i in range(N)}
    shares, done = {}, 0
    for played in game.rounds:
        if played.skipped:
            continue
        (ask,) = played.asks
        start, new_x, new_y, new_c = (x, y), 0.0, 0.0, c
        for i, weight, share, data in zip(ask.clients, ask.weight, ask.share, ask.data, strict=True):
            shares[i], ci = share, own[i]
            end = local(data, *start, eta_l, (c[0] - ci[0], c[1] - ci[1]))
            own[i] = (ci[0] - c[0] + (start[0] - end.x) / (K * eta_l), ci[1] - c[1] + (end.y - start[1]) / (K * eta_l))
            new_c = (new_c[0] + share * (own[i][0] - ci[0]), new_c[1] + share * (own[i][1] - ci[1]))
            new_x, new_y = new_x + weight * (end.x - start[0]), new_y + weight * (end.y - start[1])
        x, y, c, done = x + eta_g * new_x, y + eta_g * new_y, new_c, done + 1
        close(played.server.z, x, y)
        close(played.server.c, *c)
    assert done >= 4
    for part in (0, 1):
        kept = sum(share * game.clients[i].c[part] for i, share in shares.items())
        np.testing.assert_allclose(game.rounds[-1].server.c[part], kept, atol=1e-12)


@pytest.mark.parametrize("period, participation", [(None, UNRELIABLE), (4, FLAKY)])
def test_amplified_scaffold_is_its_pseudo_code(period, participation):
    """With everybody's sums at hand at a period's end: amplify, c_i <- mean of raw gradients, c <- mean of c_i."""
    eta, K, g, rounds = 0.05, 2, 1.4, 18
    game = play(make("amplified-scaffold", eta=eta, steps=K, asked=3, amplification=g, period=period),
                quadratic_case(), rounds, participation)
    (x, y), P = game.first.z, period or 3
    sizes = quadratic_case()[1].run.size.double().numpy()
    w = sizes / sizes.sum()
    hold, c, own = (x, y), (0.0, 0.0), {i: (0 * x, 0 * y) for i in range(N)}
    raw = {i: ([], []) for i in range(N)}
    twice, ends_skipped = False, 0
    for number, played in enumerate(game.rounds):
        if not played.skipped:
            (ask,) = played.asks
            np.testing.assert_allclose(ask.share, w[ask.clients])
            ends = []
            for i, data in zip(ask.clients, ask.data, strict=True):
                end = local(data, x, y, eta, (c[0] - own[i][0], c[1] - own[i][1]))
                twice = twice or bool(raw[i][0])
                raw[i] = (raw[i][0] + end.gx, raw[i][1] + end.gy)
                ends.append(end)
            x, y = weighted(ask.weight, [e.x for e in ends]), weighted(ask.weight, [e.y for e in ends])
        if (number + 1) % P == 0:
            x, y = hold[0] + g * (x - hold[0]), hold[1] + g * (y - hold[1])
            hold, ends_skipped = (x, y), ends_skipped + played.skipped
            own = {i: tuple(np.mean(part, 0) for part in raw[i]) if raw[i][0] else own[i] for i in range(N)}
            raw = {i: ([], []) for i in range(N)}
            c = tuple(sum(w[i] * own[i][part] for i in range(N)) for part in (0, 1))
        if not played.skipped:
            close(played.server.z, x, y)
            close(played.server.c, *c)
    assert ends_skipped if participation is UNRELIABLE else twice  # a client asked twice in a period


def test_amplification_1_and_periods_of_one_round_change_nothing():
    same, case = {"eta": 0.05, "steps": 3, "asked": 5}, quadratic_case()
    plain = testing.final_state(make("fedavg", **same), case).server
    amplified = testing.final_state(make("amplified-fedavg", amplification=1.0, period=3, **same), case).server
    testing.compare(amplified.z, plain.z, "Amplified FedAvg with g = 1", 0.0)
    for g in (1.0, 1.5):
        plain = testing.final_state(make("scaffold", eta_global=g, **same), case).server
        amplified = testing.final_state(make("amplified-scaffold", amplification=g, period=1, **same), case).server
        testing.compare((amplified.z, amplified.c), (plain.z, plain.c), "Amplified SCAFFOLD with P = 1", 1e-12)


@pytest.mark.parametrize("name", ["scaffold", "fedavg"])
def test_one_client_and_one_step_is_sgd(name):
    problem, clients = quadratic_case()
    one = clients_from_list([(clients.inputs[:9].numpy(), clients.targets[:9].numpy())])
    game = play(make(name, eta=0.1, steps=1), (problem, one), 6)
    x, y = game.first.z
    for played in game.rounds:
        gx, gy = quadratic_gradient(x, y, played.asks[0].data[0].minibatches[0])
        x, y = x - 0.1 * gx, y + 0.1 * gy
        close(played.server.z, x, y)


def test_scaffold_has_no_drift_where_fedavg_has():
    """Full batches, unequal clients, many local steps: SCAFFOLD ends in the solution, FedAvg beside it."""
    random = np.random.default_rng(5)
    parts = [(random.normal(size=(2, 2)), random.normal(size=2) * 3) for _ in range(4)]
    case = (Fit(), clients_from_list(parts))
    inputs, targets = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
    solution = np.linalg.lstsq(inputs, targets, rcond=None)[0]
    off = {}
    for name in ("scaffold", "fedavg"):
        last = servers(make(name, eta=0.1, steps=5), case, 90)[-1]
        off[name] = np.abs(as_numpy(last.z.x) - solution).max()
    assert off["scaffold"] < 1e-6
    assert off["fedavg"] > 0.01
