"""Pairwise losses and contrastive metric learning against double loops and finite differences."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from fedsaddle.contracts import Batch, Pair, Point, Rows, Scores, SettingError
from fedsaddle.data.clients import clients_from_list
from fedsaddle.engine.oracle import ProblemOracle
from fedsaddle.problems import PROBLEMS, Metric, Pairwise
from fedsaddle.problems.psi import SURROGATES

M, S, TAU, Q = 0.7, 1.6, 2.5, 1.5
BY_HAND = {  # Table 10 of cyclic-auc, in plain Python
    "square": lambda t: (M - t) ** 2,
    "squared-hinge": lambda t: max(0.0, M - t) ** 2,
    "logistic": lambda t: math.log(1 + math.exp(-S * t)),
    "sigmoid": lambda t: 1 / (1 + math.exp(S * t)),
    "barrier-hinge": lambda t: max(M - TAU * (M + t), TAU * (t - M), M - t),
    "q-norm-hinge": lambda t: max(0.0, M - t) ** Q,
}
GRID = (-2.3, -0.9, -0.31, 0.0, 0.42, 0.8, 1.9)


def linear(inputs, outputs=1):
    torch.manual_seed(3)
    return nn.Linear(inputs, outputs).double()


def pairwise(surrogate="sigmoid", **more):
    more = {"score": "linear", "shares": (1.0, 1.0), **more}
    return Pairwise(linear(3), surrogate, margin=M, scale=S, tau=TAU, q=Q, **more)


def batch(rows, width=3, seed=0, targets=None, weight=None):
    inputs = np.random.Generator(np.random.Philox(seed)).normal(size=(rows, width))
    weight = np.full(rows, 1 / rows) if weight is None else weight
    targets = np.zeros(rows) if targets is None else targets
    return Batch(*(torch.as_tensor(part) for part in (inputs, targets, weight)))


def pair(positives=4, negatives=5, **more):
    return Pair(batch(positives, seed=1, **more), batch(negatives, seed=2, **more))


def absent(rows=4, seed=5):
    """What a client without a class gets: rows of someone else that weigh nothing."""
    return batch(rows, seed=seed, weight=np.zeros(rows))


def test_every_surrogate_is_tested():
    assert set(BY_HAND) == set(SURROGATES)


@pytest.mark.parametrize("surrogate", BY_HAND)
def test_surrogates_are_those_of_the_table(surrogate):
    psi = pairwise(surrogate).pair_loss
    for a, b in itertools.product(GRID, GRID):
        got = psi(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))
        assert float(got) == pytest.approx(BY_HAND[surrogate](a - b), abs=1e-12)


@pytest.mark.parametrize("surrogate", BY_HAND)
def test_partial_derivatives_of_the_surrogates(surrogate):
    """Against central differences of the hand-written table, away from the kinks."""
    step = 1e-6
    for a, b in ((0.3, -0.2), (-0.5, 0.61), (1.4, 0.1), (0.2, 0.3), (-2.0, 0.4)):
        at = torch.tensor([a, b], dtype=torch.float64, requires_grad=True)
        pairwise(surrogate).pair_loss(at[0], at[1]).backward()
        slope = (BY_HAND[surrogate](a - b + step) - BY_HAND[surrogate](a - b - step)) / (2 * step)
        assert at.grad.tolist() == pytest.approx([slope, -slope], abs=1e-6)


@pytest.mark.parametrize("surrogate", ["logistic", "sigmoid"])
def test_surrogates_do_not_overflow(surrogate):
    t = torch.tensor([-1e4, 1e4], dtype=torch.float32, requires_grad=True)
    value = Pairwise(linear(1), surrogate, scale=1000.0).pair_loss(t, torch.zeros(2))
    value.sum().backward()
    assert torch.isfinite(value).all() and torch.isfinite(t.grad).all()


def scores_by_hand(problem, rows):
    weight, bias = (p.detach().numpy() for p in problem.net.parameters())
    return rows.inputs.numpy() @ weight[0] + bias[0]


@pytest.mark.parametrize("surrogate", BY_HAND)
def test_loss_is_the_mean_over_the_pairs_of_a_client(surrogate):
    problem, both = pairwise(surrogate), pair()
    a, b = (scores_by_hand(problem, rows) for rows in both)
    expected = np.mean([BY_HAND[surrogate](x - y) for x in a for y in b])
    z = problem.first()
    assert float(problem.loss(*z, both)) == pytest.approx(expected, abs=1e-12)
    assert len(z.y) == 0


def test_padding_and_missing_classes_weigh_nothing():
    """Padded rows change nothing; a client of one class has loss 0 and gradient 0, not NaN."""
    problem, both = pairwise("square"), pair()
    z = problem.first()
    padded = Batch(torch.cat([both[0].inputs, torch.full((2, 3), 9.0)]), torch.zeros(6),
                   torch.cat([both[0].weight, torch.zeros(2)]))
    assert float(problem.loss(*z, Pair(padded, both[1]))) == pytest.approx(float(problem.loss(*z, both)), abs=1e-12)
    for one_class in (Pair(absent(), both[1]), Pair(both[0], absent())):
        assert float(problem.loss(*z, one_class)) == 0.0
        assert not ProblemOracle(problem).gradient(z, one_class).x.any()


def passive(values, weight=None):
    values = torch.as_tensor(np.asarray(values, dtype=float))
    return Scores(values, torch.ones(len(values), dtype=torch.float64) if weight is None else torch.as_tensor(weight))


@pytest.mark.parametrize("surrogate", BY_HAND)
def test_only_the_active_side_is_differentiated(surrogate):
    """G = d1 psi(h(A), old) grad h(A) + d2 psi(old, h(C)) grad h(C), term by term; the new scores come with it."""
    problem, both = pairwise(surrogate, shares=(0.75, 0.5)), pair(3, 3)
    old = passive([0.31, -0.42, 1.1], [2.0, 0.4, 0.6]), passive([-0.2, 0.93, 0.13], [0.5, 1.5, 1.0])
    z = problem.first()
    g, scores = ProblemOracle(problem).active(z, both, old)
    a, b = (scores_by_hand(problem, rows) for rows in both)

    def slope(t, step=1e-6):
        return (BY_HAND[surrogate](t + step) - BY_HAND[surrogate](t - step)) / (2 * step)

    expected = np.zeros(4)
    for r in range(3):
        d1 = slope(a[r] - float(old[1].value[r])) * float(old[1].weight[r]) * 0.5
        d2 = -slope(float(old[0].value[r]) - b[r]) * float(old[0].weight[r]) * 0.75
        expected += (d1 * np.append(both[0].inputs[r], 1) + d2 * np.append(both[1].inputs[r], 1)) / 3
    np.testing.assert_allclose(g.x.numpy(), expected, atol=1e-6)
    assert len(g.y) == 0
    for got, by_hand in zip(scores, (a, b), strict=True):
        np.testing.assert_allclose(got.numpy(), by_hand, atol=1e-12)
    for got, again in zip(scores, ProblemOracle(problem).scores(z, both), strict=True):
        assert torch.equal(got, again)


def test_a_client_of_one_class_steps_along_the_other_term_alone():
    problem, both = pairwise(), pair(4, 4)
    old = passive([0.3, -0.4, 1.1, 0.0]), passive([-0.2, 0.9, 0.1, 0.5])
    oracle, z = ProblemOracle(problem), problem.first()
    whole = oracle.active(z, both, old)[0].x
    positives = oracle.active(z, Pair(both[0], absent()), old)[0].x
    negatives = oracle.active(z, Pair(absent(), both[1]), old)[0].x
    torch.testing.assert_close(positives + negatives, whole, atol=1e-12, rtol=0)
    assert positives.any() and negatives.any()


@pytest.mark.parametrize("surrogate", ["square", "sigmoid", "q-norm-hinge"])
def test_fresh_pools_used_once_give_the_whole_pairwise_gradient(surrogate):
    """Pools of the same model, the mean over all orders in which a client may use them: the gradient of its loss."""
    problem, both = pairwise(surrogate), pair(3, 3)
    oracle, z = ProblemOracle(problem), problem.first()
    first, second = oracle.scores(z, both)
    orders = list(itertools.permutations(range(3)))
    total = torch.zeros_like(z.x)
    for order in orders:
        old = passive(first[list(order)].numpy()), passive(second[list(order)].numpy())
        total += oracle.active(z, both, old)[0].x
    torch.testing.assert_close(total / len(orders), oracle.gradient(z, both).x, atol=1e-12, rtol=0)


def test_the_mean_step_is_the_gradient_of_the_objective_across_clients():
    """Eq. (9) with zeros where a class is missing, clients of unequal weight: by a double loop over the clients."""
    weights = np.array([0.5, 0.3, 0.2])
    clients = [pair(2, 2), Pair(absent(2), batch(2, seed=8)), Pair(batch(2, seed=9), batch(2, seed=10))]
    has = np.array([[float(rows.weight.sum() > 0) for rows in client] for client in clients])
    problem = pairwise("logistic", shares=tuple(weights @ has))
    oracle, z = ProblemOracle(problem), problem.first()

    x = z.x.clone().requires_grad_()
    whole = sum(
        weights[i] * weights[j] * problem.loss(x, z.y, Pair(clients[i][0], clients[j][1]))
        for i, j in itertools.product(range(3), range(3)) if has[i][0] and has[j][1]
    )
    whole.backward()

    pools = []
    for side in (0, 1):
        rows = [(float(score), weights[i]) for i in range(3) if has[i][side]
                for score in oracle.scores(z, clients[i])[side]]
        values, weight = map(np.array, zip(*rows, strict=True))
        pools.append((values, weight / weight.mean()))
    step = torch.zeros_like(z.x)
    for w, client in zip(weights, clients, strict=True):
        # every row meets every score of the other pool: the mean over all draws
        sides = [Batch(*(part.repeat_interleave(len(pools[1 - s][0]), 0) for part in client[s][:3])) for s in (0, 1)]
        for s in (0, 1):
            sides[s] = sides[s]._replace(weight=sides[s].weight / len(pools[1 - s][0]))
        old = [passive(np.tile(pools[s][0], 2), np.tile(pools[s][1], 2)) for s in (0, 1)]
        step += w * oracle.active(z, Pair(*sides), tuple(old))[0].x
    torch.testing.assert_close(step, x.grad, atol=1e-12, rtol=0)
    assert abs(float(step[-1])) < 1e-12  # a - b is blind to the bias, and so is the step


def test_a_loss_of_ones_own():
    problem, both = Pairwise(linear(3), score="linear", psi=lambda a, b: (a * b) ** 2), pair()
    a, b = (scores_by_hand(problem, rows) for rows in both)
    assert float(problem.loss(*problem.first(), both)) == pytest.approx(np.mean(np.outer(a, b) ** 2), abs=1e-12)
    with pytest.raises(SettingError, match=r"problem.psi: gives \(\) for \(4, 5\) pairs"):
        Pairwise(linear(3), psi=lambda a, b: (a - b).mean()).loss(*problem.first(), both)


def test_measures_and_alarms():
    problem = pairwise("logistic")
    rows = batch(60, targets=np.arange(60) % 3 == 0)
    h, positive = scores_by_hand(problem, rows), rows.targets.numpy().astype(bool)
    got = problem.measure(problem.first(), Rows(rows.inputs, rows.targets.long()))
    assert got["auc"] == pytest.approx(roc_auc_score(positive, h))
    pairs = [BY_HAND["logistic"](a - b) for a in h[positive] for b in h[~positive]]
    assert got["objective"] == pytest.approx(np.mean(pairs))
    assert got["score_min"] == pytest.approx(h.min()) and got["score_max"] == pytest.approx(h.max())
    assert problem.alarms(got) == []
    assert "rounding noise" in problem.alarms({**got, "score_min": 0.5, "score_max": 0.5, "score_spread": 0.0})[0]
    assert "diverging" in problem.alarms({**got, "score_max": 1e6})[0]
    assert "no longer finite" in problem.alarms({**got, "score_max": math.nan})[0]


def test_many_rows_are_measured_on_evenly_spaced_ones():
    problem = Pairwise(linear(1), "square", score="linear")
    inputs = torch.arange(30000, dtype=torch.float64)[:, None] / 30000
    got = problem.measure(problem.first(), Rows(inputs, (torch.arange(30000) % 2)))
    a, b = (scores_by_hand(problem, Batch(inputs[side::2], torch.zeros(1), torch.zeros(1))) for side in (1, 0))
    exact = 1 - 2 * (a.mean() - b.mean()) + (a**2).mean() + (b**2).mean() - 2 * a.mean() * b.mean()
    assert got["objective"] == pytest.approx(exact, rel=1e-2)


def test_constants_come_back_after_a_restart():
    problem = pairwise(shares=(0.4, 0.9))
    assert pairwise(shares=None).with_constants(problem.constants()).shares == (0.4, 0.9)
    assert pairwise(shares=None).constants() == {} and pairwise(shares=None).with_constants({}).shares is None
    with pytest.raises(SettingError, match="not known yet"):
        ProblemOracle(pairwise(shares=None)).active(problem.first(), pair(2, 2), (passive([0, 0]), passive([0, 0])))


@pytest.mark.parametrize("make, words", [
    (lambda: Pairwise(linear(3), "hinge"), r"surrogate: unknown 'hinge'; choose one of square"),
    (lambda: Pairwise(linear(3), score="softmax"), r"score: unknown 'softmax'; choose one of sigmoid, linear"),
    (lambda: Pairwise(linear(3, 2)).loss(*Pairwise(linear(3, 2)).first(), pair()), r"gives \(4, 2\) for 4 rows"),
    (lambda: Metric(linear(3, 2), 3).loss(*Metric(linear(3, 2), 3).first(), pair()), r"dimension = 3.*gives \(4, 2\)"),
])
def test_wrong_input_is_named(make, words):
    with pytest.raises(SettingError, match=words):
        make()


def test_problems_are_made_from_settings():
    class Materials:
        net = staticmethod(lambda outputs: linear(3, outputs))

    assert PROBLEMS["pairwise"].pose({"surrogate": "square"}, Materials).net.out_features == 1
    assert PROBLEMS["metric"].pose({"dimension": 5}, Materials).net.out_features == 5


# Metric learning.


def metric_pair():
    return Pair(batch(4, seed=1, targets=np.array([0, 1, 2, 1])), batch(3, seed=2, targets=np.array([1, 0, 2])))


def contrast(e, f, similar, m):
    distance = math.sqrt(sum((a - b) ** 2 for a, b in zip(e, f, strict=True)))
    return distance**2 / 2 if similar else max(0.0, m - distance) ** 2 / 2


def embedded(problem, x, rows):
    d = problem.dimension
    A, b = x[:-d].reshape(d, -1), x[-d:]
    return rows.inputs.numpy() @ A.T + b


def test_metric_loss_is_equation_14_over_the_pairs_of_a_client():
    problem, both = Metric(linear(3, 2), 2, margin=1.5), metric_pair()
    z = problem.first()
    e, f = (embedded(problem, z.x.numpy(), rows) for rows in both)
    expected = np.mean([contrast(e[i], f[j], both[0].targets[i] == both[1].targets[j], 1.5)
                        for i in range(4) for j in range(3)])
    assert float(problem.loss(*z, both)) == pytest.approx(expected, abs=1e-12)


def test_metric_steps_move_the_active_embedding_alone():
    """Finite differences of eq. (14) with the passive embeddings and their classes held."""
    problem, both = Metric(linear(3, 2), 2, margin=1.5), metric_pair()
    both = Pair(Batch(*(part[:3] for part in both[0][:3])), both[1])
    z, oracle = problem.first(), ProblemOracle(problem)
    old = (passive([[0.1, -0.5, 1], [0.7, 0.2, 0], [0.0, 0.3, 2]], [1.5, 0.5, 1.0]),
           passive([[0.4, 0.4, 0], [-0.6, 0.1, 1], [0.2, 0.9, 1]]))

    def loss(x):
        e, f = (embedded(problem, x, rows) for rows in both)
        total = 0.0
        for r in range(3):
            for own, rows, others in ((e[r], both[0], old[1]), (f[r], both[1], old[0])):
                similar = float(rows.targets[r]) == float(others.value[r, -1])
                total += float(rows.weight[r] * others.weight[r]) * contrast(own, others.value[r, :-1], similar, 1.5)
        return total

    g, (first, _) = oracle.active(z, both, old)
    for i in range(len(z.x)):
        nudge = np.zeros(len(z.x))
        nudge[i] = 1e-6
        slope = (loss(z.x.numpy() + nudge) - loss(z.x.numpy() - nudge)) / 2e-6
        assert float(g.x[i]) == pytest.approx(slope, abs=1e-6)
    assert first[:, -1].tolist() == both[0].targets.tolist()  # a row's class travels with its embedding


def test_coinciding_embeddings_have_no_gradient_and_no_nan():
    problem = Metric(nn.Linear(3, 2).double(), 2)
    nn.init.zeros_(problem.net.weight)
    z, both = problem.first(), metric_pair()
    assert float(problem.loss(*z, both)) > 0  # rows of different classes in one place
    assert not ProblemOracle(problem).gradient(z, both).x.any()


def test_metric_measures():
    problem, rows = Metric(linear(3, 2), 2, margin=1.5), batch(9, targets=np.arange(9) % 3)
    z = problem.first()
    e = embedded(problem, z.x.numpy(), rows)
    pairs = list(itertools.combinations(range(9), 2))
    similar = [i % 3 == j % 3 for i, j in pairs]
    apart = [np.linalg.norm(e[i] - e[j]) for i, j in pairs]
    got = problem.measure(z, Rows(rows.inputs, rows.targets))
    assert got["auc"] == pytest.approx(roc_auc_score(similar, [-a for a in apart]))
    assert got["objective"] == pytest.approx(np.mean([contrast(e[i], e[j], i % 3 == j % 3, 1.5) for i, j in pairs]))
    assert got["distance_similar"] == pytest.approx(np.mean([a for a, s in zip(apart, similar, strict=True) if s]))
    assert problem.alarms(got) == []
    assert "fallen together" in problem.alarms({**got, "distance_other": 0.0})[0]


def test_strata_of_all_rows_hold_each_clients_rows_twice():
    clients = clients_from_list([(np.zeros((2, 1)), np.array([0, 1])), (np.ones((3, 1)), np.array([0, 0, 2]))])
    both = clients.stratified(Metric.strata)
    assert [run.size.tolist() for run in both.strata] == [[2, 3], [2, 3]]
    assert torch.equal(both.inputs, clients.inputs) and torch.equal(both.strata[1].start, clients.run.start)
    with pytest.raises(SettingError, match=r"strata = .*must be"):
        clients.stratified(("positives", "rows"))


@pytest.mark.parametrize("make", [pairwise, lambda: Metric(linear(3, 2), 2)])
def test_solutions_carry_the_names_of_the_net(make):
    problem = make()
    named = problem.named(Point(problem.first().x + 1, problem.first().y))
    assert {name: tuple(v.shape) for name, v in named.items()} == \
        {f"net.{name}": tuple(p.shape) for name, p in problem.net.named_parameters()}
    torch.testing.assert_close(named["net.bias"], problem.net.bias.detach() + 1)
