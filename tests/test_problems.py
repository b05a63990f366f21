"""Losses against loops in plain NumPy, constants of the objective, measures and alarms."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.func import grad, vmap

from fedsaddle.contracts import Batch, Data, Draw, Point, Rows, SettingError
from fedsaddle.data.clients import Clients, Run, clients_from_arrays, clients_from_list
from fedsaddle.data.synthetic import quadratic_clients
from fedsaddle.maths import trees
from fedsaddle.models import MLP, LeNet5, Linear, build
from fedsaddle.problems import AUC, PROBLEMS, Quadratic
from fedsaddle.problems.quadratic import coefficients, gap, saddle, value

torch.set_num_threads(1)


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def batch_of(inputs, targets):
    return Batch(inputs, targets, torch.full((len(targets),), 1 / len(targets), dtype=inputs.dtype))


class Fake:
    """A federation that asks every client one by one with its full batch and averages with the given weights."""

    def __init__(self, clients, weights):
        self.clients, self.weights, self.asks = clients, weights, 0

    def everyone(self):
        return "everyone"

    def average(self, work, message, cohort, batches):
        assert (cohort, batches) == ("everyone", Draw(full=True, inputs=False))
        self.asks += 1
        replies = []
        for start, size in zip(*(part.tolist() for part in self.clients.run), strict=True):
            rows = slice(start, start + size)
            full = batch_of(self.clients.inputs[rows], self.clients.targets[rows])
            replies.append(work(None, message, (), Data((), full))[0])
        total = float(self.weights.sum())
        mean = trees.map_leaves(lambda *r: sum(w * v for w, v in zip(self.weights.tolist(), r, strict=True)) / total,
                                *replies)
        return SimpleNamespace(mean=mean)


# AUC

def auc_problem(score="sigmoid", p=0.3, features=4):
    outputs = 3 if score == "softmax" else 1
    return AUC(build(MLP((5,)), (features,), outputs, seed=1).double(), score=score, p=p)


def point(problem):
    first = problem.first()
    return Point(first.x + 0.1 * numbers(len(first.x), seed=7), first.y + 0.4)


def scores_by_hand(problem, x, inputs):
    """The net written out, its weights cut from x in the module's order."""
    x, rest, parts = x.numpy(), 0, []
    for p in problem.net.parameters():
        parts.append(x[rest : rest + p.numel()].reshape(p.shape))
        rest += p.numel()
    w1, b1, w2, b2 = parts
    output = np.maximum(inputs.numpy() @ w1.T + b1, 0) @ w2.T + b2
    if problem.score == "softmax":
        return np.exp(output[:, 1]) / np.exp(output).sum(1)
    return 1 / (1 + np.exp(-output[:, 0])) if problem.score == "sigmoid" else output[:, 0]


def loss_by_hand(problem, z, batch):
    h, p, total = scores_by_hand(problem, z.x, batch.inputs), problem.p, 0.0
    a, b, alpha = float(z.x[-2]), float(z.x[-1]), float(z.y[0])
    for r, weight in enumerate(batch.weight.tolist()):
        term = -p * (1 - p) * alpha**2
        if float(batch.targets[r]) > 0:
            term += (1 - p) * (h[r] - a) ** 2 - 2 * (1 + alpha) * (1 - p) * h[r]
        else:
            term += p * (h[r] - b) ** 2 + 2 * (1 + alpha) * p * h[r]
        total += weight * term
    return total


def test_the_registry_knows_the_problems():
    assert PROBLEMS["auc"] is AUC
    assert PROBLEMS["quadratic"] is Quadratic


@pytest.mark.parametrize("score", ["sigmoid", "linear", "softmax"])
@pytest.mark.parametrize("targets", [
    torch.tensor([1, 0, 0, 1, 0]), torch.zeros(5), torch.ones(5), torch.tensor([-1.0, 1.0, -1.0, 2.0, 0.0]),
    torch.tensor([True, False, True, True, False]),
], ids=["mixed", "negatives only", "positives only", "signs", "booleans"])
def test_auc_loss_is_the_papers_form_row_by_row(score, targets):
    problem = auc_problem(score)
    z, batch = point(problem), batch_of(numbers(5, 4), targets)
    assert float(problem.loss(*z, batch)) == pytest.approx(loss_by_hand(problem, z, batch), rel=1e-12)


def test_padding_and_clients_without_rows_weigh_nothing():
    problem = auc_problem()
    z, real = point(problem), batch_of(numbers(3, 4), torch.tensor([1, 0, 0]))
    padded = Batch(torch.cat([real.inputs, numbers(4, 4, seed=9)]), torch.cat([real.targets, torch.ones(4).long()]),
                   torch.cat([real.weight, torch.zeros(4)]))
    assert float(problem.loss(*z, padded)) == pytest.approx(float(problem.loss(*z, real)), rel=1e-14)
    assert float(problem.loss(*z, real._replace(weight=torch.zeros(3)))) == 0.0


def test_auc_starts_at_the_nets_weights_with_a_b_alpha_zero():
    problem = auc_problem()
    z = problem.first()
    assert torch.equal(z.x[:-2], torch.cat([p.detach().flatten() for p in problem.net.parameters()]))
    assert z.x[-2:].tolist() == [0.0, 0.0]
    assert z.y.tolist() == [0.0]
    z.x[0] += 1  # a copy: the module keeps its weights
    assert float(problem.first().x[0]) == float(z.x[0]) - 1


def test_the_saddle_over_a_b_alpha_is_the_square_loss_of_all_pairs():
    """min over a, b, max over alpha of f, plus p(1-p), is p(1-p) mean (1 - h_pos + h_neg)^2 over pairs, each client's
    rows weighing what its client weighs. This holds only for the p of these weights."""
    clients = unequal()
    problem = AUC(build(Linear(), (4,), 1, seed=1).double(), score="linear")
    for weights in (torch.ones(3), clients.run.size):
        known = problem.prepare(Fake(clients, weights))
        p = known.p
        row_weight = torch.repeat_interleave(weights / weights.sum() / clients.run.size, clients.run.size).double()
        h, positive = known.scores(known.first().x, Batch(*clients.rows, row_weight)).detach(), clients.targets > 0
        w_pos, w_neg, pos, neg = row_weight[positive], row_weight[~positive], h[positive], h[~positive]
        pairs = w_pos[:, None] * w_neg * (1 - pos[:, None] + neg) ** 2
        a, b = (w_pos @ pos) / w_pos.sum(), (w_neg @ neg) / w_neg.sum()
        x = torch.cat([known.first().x[:-2], a[None], b[None]])
        f = known.loss(x, (b - a)[None], Batch(clients.inputs, clients.targets, row_weight))
        assert float(f) + p * (1 - p) == pytest.approx(float(pairs.sum()), rel=1e-6)
        g = grad(known.loss, argnums=(0, 1))(x, (b - a)[None], Batch(clients.inputs, clients.targets, row_weight))
        torch.testing.assert_close(torch.cat([g[0][-2:], g[1]]), torch.zeros(3).double(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("score", ["sigmoid", "softmax"])
def test_gradients_of_many_clients_at_once_are_those_one_by_one(score):
    problem = auc_problem(score)
    z = point(problem)
    x = z.x + 0.1 * numbers(3, len(z.x))
    y = z.y + numbers(3, 1)
    batches = Batch(numbers(3, 6, 4), (numbers(3, 6, seed=2) > 0).long(), torch.full((3, 6), 1 / 6).double())
    batches.targets[2] = 0  # a client of one class
    many = vmap(grad(problem.loss, argnums=(0, 1)))(x, y, batches)
    for i in range(3):
        xi, yi = x[i].clone().requires_grad_(), y[i].clone().requires_grad_()
        one = torch.autograd.grad(problem.loss(xi, yi, trees.map_leaves(lambda v: v[i], batches)), (xi, yi))  # noqa: B023
        torch.testing.assert_close(many[0][i], one[0], atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(many[1][i], one[1], atol=1e-12, rtol=1e-12)


def test_lenet_with_the_published_softmax_score_runs_under_vmap():
    problem = AUC(build(LeNet5(), (1, 28, 28), 10, seed=0), score="softmax", p=0.1)
    z = problem.first()
    batches = Batch(numbers(2, 3, 1, 28, 28).float(), torch.tensor([[1, 0, 0], [0, 0, 0]]), torch.full((2, 3), 1 / 3))
    many = vmap(problem.loss, in_dims=(None, None, 0))(*z, batches)
    torch.testing.assert_close(many[1], problem.loss(*z, trees.map_leaves(lambda v: v[1], batches)))


def unequal():
    """Shares of positives 1/2, 0 and 1/6 at clients of 2, 4 and 6 rows."""
    parts = [(numbers(len(t), 4, seed=i), torch.tensor(t))
             for i, t in enumerate(([1, 0], [0, 0, 0, 0], [0, 0, 0, 1, 0, 0]))]
    return replace(clients_from_list(parts), inputs=torch.cat([x for x, _ in parts]))


def test_p_belongs_to_the_objectives_client_weights():
    clients = unequal()
    problem = auc_problem(p=None)
    assert problem.prepare(Fake(clients, torch.ones(3))).p == pytest.approx((1 / 2 + 0 + 1 / 6) / 3)
    assert problem.prepare(Fake(clients, clients.run.size)).p == pytest.approx(2 / 12)  # the pooled share
    assert problem.p is None


def test_a_given_p_is_not_asked_for_and_constants_come_back():
    federation = Fake(unequal(), torch.ones(3))
    given = auc_problem(p=0.25)
    assert given.prepare(federation).p == 0.25
    assert federation.asks == 0
    learnt = auc_problem(p=None).prepare(federation)
    assert federation.asks == 1
    assert auc_problem(p=None).constants() == {}
    assert auc_problem(p=None).with_constants(learnt.constants()).p == learnt.p


@pytest.mark.parametrize(("label", "missing"), [(0, "positives"), (1, "negatives")])
def test_a_federation_of_one_class_is_refused(label, missing):
    # 47 rows: the weights of a batch, in float32, do not sum to exactly one
    clients = clients_from_arrays(np.zeros((94, 4), np.float32), np.full(94, label), [0] * 47 + [1] * 47)
    with pytest.raises(SettingError, match=missing):
        auc_problem(p=None).prepare(Fake(clients, torch.ones(2)))


def test_p_must_be_known_and_lie_between_zero_and_one():
    problem = auc_problem(p=None)
    with pytest.raises(SettingError, match=r"prepare\(federation\).*or set p"):
        problem.loss(*problem.first(), batch_of(numbers(2, 4), torch.ones(2)))
    for p in (0.0, 1.0, 1.5):
        with pytest.raises(SettingError, match="strictly between 0 and 1"):
            auc_problem(p=p)


@pytest.mark.parametrize(("score", "outputs", "words"), [
    ("sigmoid", 3, "1 output, or set score to softmax"), ("linear", 2, "one output a row"),
    ("softmax", 1, "2 outputs, or set score to sigmoid"),
])
def test_outputs_that_are_no_scores_are_refused(score, outputs, words):
    problem = AUC(build(Linear(), (4,), outputs, seed=0), score=score, p=0.5)
    with pytest.raises(SettingError, match=words):
        problem.loss(*problem.first(), batch_of(torch.zeros(2, 4), torch.ones(2)))


def test_one_number_a_row_may_come_with_or_without_an_axis():
    with_axis = AUC(build(Linear(), (4,), 1, seed=0), p=0.5)
    without = AUC(nn.Sequential(with_axis.net, nn.Flatten(0)), p=0.5)
    batch = batch_of(torch.ones(3, 4), torch.tensor([1, 0, 1]))
    assert torch.equal(with_axis.loss(*with_axis.first(), batch), without.loss(*with_axis.first(), batch))


def test_bad_settings_and_targets_are_refused():
    problem = auc_problem()
    with pytest.raises(SettingError, match="each row one number"):  # [B, 1] would broadcast to B x B
        problem.loss(*problem.first(), batch_of(numbers(2, 4), torch.ones(2, 1)))
    with pytest.raises(SettingError, match=r"tanh.*sigmoid, linear, softmax"):
        AUC(problem.net, score="tanh")
    with pytest.raises(SettingError, match="GroupNorm"):
        AUC(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))


def test_auc_measures_against_scikit_learn_a_loop_and_brute_force():
    problem = auc_problem()
    z, rows = point(problem), Rows(numbers(300, 4), (numbers(300, seed=4) > 0.8).long())
    got = problem.measure(z, rows)
    h, batch = scores_by_hand(problem, z.x, rows.inputs), batch_of(*rows)
    assert got["auc"] == pytest.approx(roc_auc_score(rows.targets, h), abs=1e-12)
    assert got["objective"] == pytest.approx(loss_by_hand(problem, z, batch), rel=1e-10)
    best = minimize(lambda alpha: -float(problem.loss(z.x, torch.tensor(alpha), batch)), [0.0], tol=1e-12)
    assert got["primal"] == pytest.approx(-best.fun, rel=1e-9)
    assert got["primal"] > got["objective"]
    assert [got["score_min"], got["score_max"], got["score_spread"]] == pytest.approx([h.min(), h.max(), h.std()])


def test_measuring_in_slices_forgets_no_row():
    problem = auc_problem()
    z, rows = point(problem), Rows(numbers(8192 + 5, 4), (numbers(8192 + 5, seed=4) > 0).long())
    rows.inputs[-1] *= 50  # the largest and the smallest score sit in the last slice
    rows.inputs[-2] = -rows.inputs[-1]
    h = scores_by_hand(problem, z.x, rows.inputs)
    got = problem.measure(z, rows)
    assert got["auc"] == pytest.approx(roc_auc_score(rows.targets, h), abs=1e-12)
    assert [got["score_min"], got["score_max"]] == pytest.approx([h.min(), h.max()])


def measured(weight, bias, score="linear", others=(0.0, 0.0, 0.0)):
    """others: a, b, alpha."""
    problem = AUC(build(Linear(), (1,), 1, seed=0), score=score, p=0.5)
    rows = Rows(torch.linspace(-1, 1, 21)[:, None], torch.arange(21) % 2)
    measures = problem.measure(Point(torch.tensor([weight, bias, *others[:2]]), torch.tensor(others[2:])), rows)
    return " ".join(problem.alarms(measures))


def test_alarms_tell_saturated_and_diverging_scores():
    assert measured(1.0, 0.0) == ""
    assert measured(1.0, 0.0, "sigmoid") == ""
    assert "saturated" in measured(5.0, 60.0, "sigmoid")  # all exactly 1
    assert "saturated" in measured(5.0, -60.0, "sigmoid")  # all within 1e-23 of 0, AUC still reads 'well'
    assert "saturated" in measured(3e-4, 900.0)  # differences of a few rounding steps
    for bias in (-6.5, 6.5):  # between 0.0006 and 0.004, or as near to 1: no rounding noise yet, but hardly a slope
        assert "all but saturated" in measured(1.0, bias, "sigmoid")
        assert measured(1e-3, bias, "linear") == ""
    assert measured(1.0, -4.0, "sigmoid") == ""
    assert "diverging" in measured(3e4, 0.0)
    for others in ((1e8, 0.0, 0.0), (0.0, -1e8, 0.0), (0.0, 0.0, 1e8)):
        assert "variables beside the scores are diverging" in measured(1.0, 0.0, "sigmoid", others)
    assert measured(1.0, 0.0, "sigmoid", (1e3, -1e3, 1e3)) == ""
    assert "no longer finite" in measured(float("nan"), 0.0)
    assert "no longer finite" in measured(float("inf"), 0.0)


def test_named_gives_the_solution_under_the_modules_names():
    problem = auc_problem()
    z = point(problem)
    named = problem.named(z)
    assert set(named) == {*(f"net.{name}" for name, _ in problem.net.named_parameters()), "a", "b", "alpha"}
    other = build(MLP((5,)), (4,), 1, seed=99).double()
    other.load_state_dict({name[4:]: v for name, v in named.items() if name.startswith("net.")})
    inputs = numbers(3, 4)
    torch.testing.assert_close(torch.sigmoid(other(inputs)).squeeze(1), problem.scores(z.x, Batch(inputs, (), ())))
    assert (named["a"], named["b"], named["alpha"]) == (z.x[-2], z.x[-1], z.y[0])


# the quadratic saddle

M, N = 4, 3


def quadratic_rows(seed=3, rows=(1, 6)):
    clients = quadratic_clients(5, rows, M, N, heterogeneity=1.0, noise=0.7, coupling=1.0, seed=seed)
    return clients.to("cpu", torch.float64)


def by_hand(inputs, targets):
    A, B, C = np.split(inputs.numpy(), [M * M, M * M + M * N])
    return A.reshape(M, M), B.reshape(M, N), C.reshape(N, N), targets.numpy()[:M], targets.numpy()[M:]


def test_quadratic_loss_is_the_mean_of_its_rows():
    clients, x, y = quadratic_rows(), numbers(M), numbers(N, seed=1)
    weight = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)
    batch = Batch(clients.inputs[:4] + 0.1 * numbers(4, M * M + M * N + N * N), clients.targets[:4], weight)
    total = 0.0
    for r in range(4):  # the added numbers make A and C unsymmetric, as a user's may be
        A, B, C, a, c = by_hand(batch.inputs[r], batch.targets[r])
        u, v = x.numpy(), y.numpy()
        total += float(weight[r]) * (u @ A @ u / 2 + u @ B @ v - v @ C @ v / 2 + a @ u - c @ v)
    assert float(Quadratic(M, N).loss(x, y, batch)) == pytest.approx(total, rel=1e-12)


def test_quadratic_gradient_is_that_of_its_loss_also_for_many_clients():
    problem, clients = Quadratic(M, N), quadratic_rows(rows=4)
    batches = Batch(clients.inputs.reshape(5, 4, -1) + 0.1 * numbers(5, 4, M * M + M * N + N * N),
                    clients.targets.reshape(5, 4, -1), torch.full((5, 4), 0.25).double())
    x, y = numbers(5, M), numbers(5, N, seed=1)
    got = vmap(problem.gradient)(x, y, batches)
    for i in range(5):
        one = grad(problem.loss, argnums=(0, 1))(x[i], y[i], trees.map_leaves(lambda v: v[i], batches))  # noqa: B023
        torch.testing.assert_close(got.x[i], one[0], atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(got.y[i], one[1], atol=1e-12, rtol=1e-12)


def test_the_saddle_is_where_the_weighted_gradients_of_all_clients_vanish():
    clients, problem = quadratic_rows(), Quadratic(M, N)
    found = {}
    own = torch.tensor([3.0, 0, 1, 1, 2])
    for name, weights in (("equal", torch.ones(5)), ("size", clients.run.size), ("own", own)):
        z = found[name] = saddle(clients, weights, M, N)
        assert z.x.dtype == torch.float64
        total = 0.0 * z
        for i, (start, size) in enumerate(zip(*(v.tolist() for v in clients.run), strict=True)):
            rows = slice(start, start + size)
            total += float(weights[i]) * problem.gradient(*z, batch_of(clients.inputs[rows], clients.targets[rows]))
        assert float(torch.cat(total).abs().max()) < 1e-12
    assert float((found["equal"].x - found["size"].x).norm()) > 1e-2


def test_clients_that_share_rows_count_each_row_as_often_as_it_is_held():
    clients = quadratic_rows(rows=2)
    shared = Clients(clients.inputs, clients.targets, Run(torch.tensor([0, 1, 4]), torch.tensor([3, 2, 1])))
    copied = clients_from_list([(clients.inputs[rows], clients.targets[rows])
                                for rows in (slice(0, 3), slice(1, 3), slice(4, 5))])
    weights = torch.tensor([1.0, 2.0, 3.0])
    for one, other in zip(saddle(shared, weights, M, N), saddle(copied, weights, M, N), strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


def test_distance_and_gap_measure_the_way_to_the_saddle():
    clients = quadratic_rows()
    mean = coefficients(clients, torch.ones(5), M, N)
    problem, best = Quadratic(M, N, start=0.5, mean=mean), saddle(clients, torch.ones(5), M, N)
    assert problem.first().x.tolist() == [0.5] * M
    assert problem.measure(problem.first(), clients.rows)["distance"] == pytest.approx(1.0)
    at_best = problem.measure(best, clients.rows)
    assert at_best["distance"] == pytest.approx(0.0, abs=1e-14)
    assert at_best["gap"] == pytest.approx(0.0, abs=1e-12)
    half = problem.measure(best + 0.5 * (problem.first() - best), clients.rows)
    assert half["distance"] == pytest.approx(0.5)
    z = Point(numbers(M), numbers(N, seed=1))
    top = -minimize(lambda y: -float(value(mean, z.x, torch.tensor(y))), np.zeros(N), tol=1e-12).fun
    bottom = minimize(lambda x: float(value(mean, torch.tensor(x), z.y)), np.zeros(M), tol=1e-12).fun
    assert float(gap(mean, *z)) == pytest.approx(top - bottom, rel=1e-6)
    assert problem.measure(z, clients.rows)["gap"] == pytest.approx(top - bottom, rel=1e-6)


def test_gradient_descent_ascent_reaches_the_saddle():
    clients = quadratic_rows()
    problem = Quadratic(M, N, mean=coefficients(clients, clients.run.size, M, N))
    z = Point(*(v.double() for v in problem.first()))
    for _ in range(300):
        z = z.step(problem.gradient(*z, batch_of(*clients.rows)), 0.1, 0.1)
    assert problem.measure(z, clients.rows)["distance"] < 1e-9


def test_without_the_whole_objective_only_the_rows_loss_is_measured():
    clients, z = quadratic_rows(), Point(numbers(M), numbers(N, seed=1))
    got = Quadratic(M, N).measure(z, clients.rows)
    assert got == {"objective": pytest.approx(float(Quadratic(M, N).loss(*z, batch_of(*clients.rows))))}


def test_rows_of_other_dimensions_are_refused():
    clients = quadratic_rows()
    with pytest.raises(SettingError, match="dimension_x = 5 and dimension_y = 3 need 49 and 8"):
        Quadratic(5, 3).loss(numbers(5), numbers(3), batch_of(*clients.rows))
