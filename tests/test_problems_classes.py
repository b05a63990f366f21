"""AUC with the classes drawn apart: the same saddle where there is one client, that of the pairwise form where there
are several, and rare positives learnt."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedsaddle import train
from fedsaddle.contracts import Batch, Pair, Point, Rows, SettingError
from fedsaddle.problems import AUC

SIZES = ((3, 9), (0, 6), (4, 0), (1, 20), (7, 2))  # positives and negatives of each client


def linear(inputs):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Linear(inputs, 1).double()


def parts(sizes=SIZES, seed=2):
    random = np.random.Generator(np.random.Philox(seed))
    found = []
    for positives, negatives in sizes:
        targets = random.permutation(np.repeat([1, 0], [positives, negatives]))
        found.append((random.normal(size=(len(targets), 4)) + 0.4 * targets[:, None], targets))
    return found


def full(inputs, targets):
    """What a client is given when a work asks for all of its rows, the classes apart."""
    sides = []
    for chosen in (targets == 1, targets == 0):
        rows = inputs[chosen] if chosen.any() else np.zeros((1, 4))
        weight = np.full(len(rows), 1 / len(rows) if chosen.any() else 0.0)
        sides.append(Batch(torch.as_tensor(rows), torch.zeros(len(rows)), torch.as_tensor(weight)))
    return Pair(*sides)


def whole(inputs, targets):
    weight = np.full(len(targets), 1 / len(targets))
    return Batch(*(torch.as_tensor(part) for part in (inputs, targets, weight)))


def moved(problem):
    z = problem.first()
    return Point(z.x.double() + torch.linspace(-0.3, 0.4, len(z.x)).double(), z.y.double() + 0.6)


@pytest.mark.parametrize("form", ["square", "margin"])
@pytest.mark.parametrize("score", ["linear", "sigmoid"])
def test_of_one_client_it_is_the_loss_of_rows_over_p_times_1_minus_p(form, score):
    inputs, targets = parts(((5, 20),))[0]
    rows = AUC(linear(4), score=score, form=form, margin=0.7, p=0.2)
    classes = AUC(linear(4), score=score, form=form, margin=0.7, draws="classes", shares=(1.0, 1.0))
    z = moved(rows)
    found = float(classes.loss(*z, full(inputs, targets)))
    assert found == pytest.approx(float(rows.loss(*z, whole(inputs, targets))) / 0.16, rel=1e-12)
    pooled = Rows(torch.as_tensor(inputs), torch.as_tensor(targets))
    plain, apart = rows.measure(z, pooled), classes.measure(z, pooled)
    assert apart["objective"] == pytest.approx(found, rel=1e-12)
    assert apart["primal"] == pytest.approx(plain["primal"] / 0.16, rel=1e-12)
    assert apart["auc"] == plain["auc"]
    torch.testing.assert_close(classes.best_response(z, pooled), rows.best_response(z, pooled))


def test_of_many_clients_its_saddle_is_the_square_of_all_pairs_of_clients():
    """min over a, b and max over alpha of sum_i w_i f_i, plus 1, is the mean over clients i with positives and j with
    negatives, by their weights, of the mean of (1 - h + h')^2 over i's positives and j's negatives."""
    weight, total, pairs = np.array([0.3, 0.1, 0.25, 0.15, 0.2]), 0.0, 0.0
    has = np.array(SIZES) > 0
    shares = (float(weight @ has[:, 0]), float(weight @ has[:, 1]))
    problem = AUC(linear(4), score="linear", draws="classes", shares=shares)
    x = problem.first().x.double()
    h = [inputs @ x[:4].numpy() + float(x[4]) for inputs, _ in parts()]
    pos = [scores[targets == 1] for scores, (_, targets) in zip(h, parts(), strict=True)]
    neg = [scores[targets == 0] for scores, (_, targets) in zip(h, parts(), strict=True)]
    a = sum(w * p.mean() for w, p in zip(weight, pos, strict=True) if len(p)) / shares[0]
    b = sum(w * n.mean() for w, n in zip(weight, neg, strict=True) if len(n)) / shares[1]
    x[-2:] = torch.tensor([a, b])
    x.requires_grad_()
    alpha = torch.tensor([b - a]).double().requires_grad_()
    for w, (inputs, targets) in zip(weight, parts(), strict=True):
        total = total + w * problem.loss(x, alpha, full(inputs, targets))
    for wi, p in zip(weight, pos, strict=True):
        for wj, n in zip(weight, neg, strict=True):
            if len(p) and len(n):
                pairs += wi * wj / shares[0] / shares[1] * ((1 - p[:, None] + n) ** 2).mean()
    assert float(total.detach()) + 1 == pytest.approx(pairs, rel=1e-12)
    slope = torch.autograd.grad(total, (x, alpha))
    torch.testing.assert_close(torch.cat([slope[0][-2:], slope[1]]), torch.zeros(3).double(), atol=1e-12, rtol=0)


def test_a_run_asks_the_clients_which_classes_they_have():
    result = train("cdma-one", AUC(linear(4).float(), draws="classes"), parts(), rounds=2)
    assert result.problem.shares == pytest.approx((4 / 5, 4 / 5))
    kept = result.problem.constants()
    again = replace(result.problem, shares=None).with_constants(kept)
    assert again.shares == result.problem.shares


@pytest.mark.parametrize("method", ["cdma-one", "coda+", "codasca", "cycp-minimax"])
def test_rare_positives_are_learnt_sooner(method):
    """Four in a thousand, most clients without any: minibatches of eight rows hardly ever have one."""
    sizes = [(4, 246) if i % 4 == 0 else (0, 250) for i in range(16)]
    held_out = parts(((300, 300),), seed=9)[0]

    def auc(**more):
        result = train(method, AUC(linear(4).float(), **more), parts(sizes), test=held_out, rounds=20, batch_size=8)
        return result.measures["test"]["auc"]

    ranked = float(auc(draws="classes"))
    assert ranked > 0.66  # 0.714 = Phi(0.4 sqrt(4) / sqrt(2)) is the best that there is
    assert ranked > auc() + 0.02


def test_without_one_class_there_is_no_auc():
    with pytest.raises(SettingError, match=r"no client has any positives"):
        train("cdma-one", AUC(linear(4).float(), draws="classes"), parts(((0, 5), (0, 7))), rounds=1)


def test_what_does_not_go_together_is_refused():
    with pytest.raises(SettingError, match=r"problem.p: 0.1.*leave p out"):
        AUC(linear(4), draws="classes", p=0.1)
    with pytest.raises(SettingError, match=r"problem.draws: unknown draws 'apart'; choose rows or classes"):
        AUC(linear(4), draws="apart")
    with pytest.raises(SettingError, match=r"run.per_client.*AUC is one of pairs or of classes"):
        train("cdma-one", AUC(linear(4).float(), draws="classes"), parts(), rounds=1, per_client=True)
    with pytest.raises(SettingError, match=r"problem.shares: .*not known yet"):
        AUC(linear(4), draws="classes").loss(*moved(AUC(linear(4), draws="classes")), full(*parts()[0]))
