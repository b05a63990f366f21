"""The kinds of problem of the papers: each loss against a loop in plain NumPy or a closed form, measures against
ascent by hand, and simulation against reference on unequal clients with drop-outs."""

import os
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import wasserstein_distance
from torch import nn
from torch.func import grad
from typer.testing import CliRunner

from fedsaddle import recipes, testing, train
from fedsaddle.assemble import deal, job_from_settings, pose
from fedsaddle.cli import app
from fedsaddle.config import read, settle
from fedsaddle.contracts import Batch, Point, Rows, SettingError
from fedsaddle.data.clients import clients_from_list
from fedsaddle.engine.simulation import Simulation
from fedsaddle.metrics.primal import SLICE, Pooled, climb, primal
from fedsaddle.metrics.sliced import sliced_wasserstein
from fedsaddle.problems import AUC, GAN, PROBLEMS, Agnostic, Pairwise, Quadratic, Robust
from fedsaddle.problems.quadratic import coefficients
from fedsaddle.runs import carry_out

SIZES = (2, 3, 20, 9, 31, 7, 8, 25, 14, 5)


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def batch_of(inputs, targets, *more):
    return Batch(inputs, targets, torch.full((len(targets),), 1 / len(targets), dtype=torch.float64), *more)


def seeded(make):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def linear(inputs, outputs):
    return seeded(lambda: nn.Linear(inputs, outputs)).double()


def near(problem):
    """A point near the start, with every variable moved."""
    first = problem.first()
    return Point(*(part.double() + 0.3 * numbers(len(part), seed=7 + i) for i, part in enumerate(first)))


def unequal(kind):
    """Ten clients of 2 to 31 rows, some of one class only; targets by `kind`: 2 or 3 classes, or sequences."""
    random = np.random.Generator(np.random.Philox(3))
    parts = []
    for i, n in enumerate(SIZES):
        targets = np.full(n, i % 2) if i in (1, 3, 6) else random.integers(0, kind, n)
        parts.append((random.normal(size=(n, 4)) + targets[:, None], targets))
    return clients_from_list(parts)


# AUC with a margin

def margin_problem(p=0.3, margin=1.0, form="margin"):
    return AUC(linear(4, 1), score="linear", form=form, margin=margin, p=p)


@pytest.mark.parametrize("targets", [[1, 0, 0, 1, 0], [0] * 5, [1] * 5], ids=["mixed", "negatives", "positives"])
def test_margin_loss_row_by_row(targets):
    problem, p, m = margin_problem(margin=0.7), 0.3, 0.7
    z, batch = near(problem), batch_of(numbers(5, 4), torch.tensor(targets))
    h = (batch.inputs.numpy() @ z.x[:4].numpy()) + float(z.x[4])
    a, b, alpha = float(z.x[-2]), float(z.x[-1]), float(z.y[0])
    total = 0.0
    for score, target in zip(h, targets, strict=True):
        total += 2 * alpha * p * (1 - p) * m - p * (1 - p) * alpha**2
        total += (1 - p) * (score - a) ** 2 - 2 * alpha * (1 - p) * score if target else \
            p * (score - b) ** 2 + 2 * alpha * p * score
    assert float(problem.loss(*z, batch)) == pytest.approx(total / 5, rel=1e-12)


@pytest.mark.parametrize("margin", [0.05, 1.0, 4.0])
def test_the_saddle_of_the_margin_form_is_its_closed_form(margin):
    """min over a, b, max over alpha >= 0: p(1-p) (both variances + max(0, m - difference of the means)^2)."""
    inputs, targets = numbers(40, 4), torch.arange(40) % 4 == 0
    problem = margin_problem(p=0.25, margin=margin)
    x = near(problem).x
    h = problem.scores(x, batch_of(inputs, targets))
    pos, neg = h[targets].numpy(), h[~targets].numpy()
    closed = 0.25 * 0.75 * (pos.var() + neg.var() + max(0.0, margin - pos.mean() + neg.mean()) ** 2)

    def top(ab):
        point = torch.cat([x[:-2], torch.tensor(ab)])
        alpha = problem.best_response(Point(point, torch.zeros(1).double()), Rows(inputs, targets.long()))
        return float(problem.loss(point, alpha, batch_of(inputs, targets.long())))

    found = minimize(top, np.zeros(2), tol=1e-12)
    assert found.fun == pytest.approx(closed, rel=1e-8)
    assert found.x == pytest.approx([pos.mean(), neg.mean()], abs=1e-5)


def test_classes_further_apart_than_the_margin_are_left_alone():
    """Then alpha* = 0 and the loss is only the spread within the classes; the square form still pulls."""
    inputs = torch.cat([torch.full((5, 1), 3.0), torch.full((5, 1), -3.0)]).double()
    targets, x = torch.tensor([1] * 5 + [0] * 5), torch.tensor([1.0, 0.0, 3.0, -3.0]).double()
    for form, alpha, value in (("margin", 0.0, 0.0), ("square", -6.0, 0.25 * 25 - 0.25)):
        problem = AUC(linear(1, 1), score="linear", form=form, p=0.5)
        got = problem.best_response(Point(x, torch.zeros(1).double()), Rows(inputs, targets))
        assert float(got) == alpha
        assert float(problem.loss(x, got, batch_of(inputs, targets))) == pytest.approx(value)


def test_margin_one_without_the_constraint_is_the_square_form():
    square, margin = margin_problem(form="square"), margin_problem()
    z, batch = near(square), batch_of(numbers(9, 4), (numbers(9, seed=2) > 0).long())
    got, other = margin.loss(z.x, z.y + 1, batch), square.loss(*z, batch)
    assert float(got) == pytest.approx(float(other) + 0.3 * 0.7, rel=1e-12)


def test_alpha_is_projected_in_the_margin_form_alone():
    z = Point(torch.tensor([-1.0, 2.0]), torch.tensor([-0.5]))
    assert margin_problem().project(z).y.tolist() == [0.0] and margin_problem().project(z).x.tolist() == [-1.0, 2.0]
    assert margin_problem(form="square").project(z).y.tolist() == [-0.5]
    with pytest.raises(SettingError, match="square or margin"):
        margin_problem(form="hinge")


def test_primal_of_a_measure_is_the_maximum_over_alpha():
    rows = Rows(numbers(30, 4), (numbers(30, seed=3) > 0.8).long())
    for form, bounds in (("square", [(None, None)]), ("margin", [(0, None)])):
        problem = margin_problem(form=form)
        z = near(problem)
        best = minimize(lambda y: -float(problem.loss(z.x, torch.tensor(y), batch_of(*rows))), [0.1],  # noqa: B023
                        bounds=bounds, tol=1e-14)
        assert problem.measure(z, rows)["primal"] == pytest.approx(-best.fun, rel=1e-8)


def test_the_margin_form_trains_and_alpha_stays_positive():
    result = train("cdma-one", AUC(linear(4, 1).float(), form="margin", margin=0.5), unequal(2), rounds=12)
    assert result.measures["train"]["auc"] > 0.9 and float(result.point.y[0]) >= 0


def test_a_softmax_net_has_the_outputs_of_the_settings():
    settings = settle({"algorithm": "cdma-nc", "model": {"name": "mlp", "hidden": [3]}, "data": {"positive": 0},
                       "problem": {"name": "auc", "score": "softmax", "outputs": 10}})
    problem = pose(settings, deal(settings))
    assert problem.net(torch.zeros(1, 1, 8, 8)).shape == (1, 10)


# one perturbation for all inputs

def robust_problem(**settings):
    return Robust(linear(4, 3), (4,), **settings)


def logits_by_hand(x, inputs):
    return inputs.numpy() @ x[:12].reshape(3, 4).numpy().T + x[12:].numpy()


def softmax(logits):
    e = np.exp(logits - logits.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_robust_loss_is_cross_entropy_of_shifted_inputs_less_the_penalty():
    problem = robust_problem(penalty=0.4)
    z, inputs, targets = near(problem), numbers(6, 4), torch.tensor([0, 2, 1, 1, 0, 2])
    weight = torch.tensor([0.3, 0.2, 0.1, 0.2, 0.2, 0.0]).double()  # the last row is padding
    share = softmax(logits_by_hand(z.x, inputs + z.y))
    mean = sum(float(w) * -np.log(share[r, targets[r]]) for r, w in enumerate(weight))
    got = float(problem.loss(*z, Batch(inputs, targets, weight)))
    assert got == pytest.approx(mean - 0.2 * float(z.y @ z.y), rel=1e-12)


@pytest.mark.parametrize("settings", [{"penalty": 0.5, "size": 0.7}, {"penalty": 0.0, "radius": 0.8, "steps": 7}])
def test_robust_measures_are_ascent_by_hand_from_zero_and_from_y(settings):
    problem, inputs, targets = robust_problem(**settings), numbers(50, 4), torch.arange(50) % 3
    z = problem.project(near(problem))
    W, penalty, radius = z.x[:12].reshape(3, 4).numpy(), settings["penalty"], settings.get("radius", np.inf)
    got = problem.measure(z, Rows(inputs, targets))
    for start, name in ((np.zeros(4), ""), (z.y.numpy(), "_from_y")):
        y = start
        for _ in range(problem.steps):
            share = softmax(logits_by_hand(z.x, inputs + torch.tensor(y)))
            slope = ((share - np.eye(3)[targets]) @ W).mean(0) - penalty * y
            y = y + problem.size * slope
            y = y * min(1.0, radius / np.linalg.norm(y))
        logits = logits_by_hand(z.x, inputs + torch.tensor(y))
        loss = -np.log(softmax(logits)[np.arange(50), targets]).mean()
        assert got[f"robust_loss{name}"] == pytest.approx(loss, rel=1e-9)
        assert got[f"robust_objective{name}"] == pytest.approx(loss - penalty / 2 * y @ y, rel=1e-9)
        assert got[f"robust_accuracy{name}"] == pytest.approx((logits.argmax(1) == targets.numpy()).mean())
    plain = logits_by_hand(z.x, inputs)
    assert got["accuracy"] == pytest.approx((plain.argmax(1) == targets.numpy()).mean())
    assert got["loss"] == pytest.approx(-np.log(softmax(plain)[np.arange(50), targets]).mean(), rel=1e-9)
    assert got["robust_loss"] > got["loss"]


@pytest.mark.parametrize(("length", "start"), [(3.1, "_from_y"), (3.2, "")])  # 3.1^2 < 10 < 3.2^2
def test_the_published_robust_loss_starts_at_a_small_y_and_else_at_zero(length, start):
    problem, rows = robust_problem(penalty=0.05, steps=2, size=0.1), Rows(numbers(50, 4), torch.arange(50) % 3)
    x, y = near(problem)
    got = problem.measure(Point(x, y * (length / y.norm())), rows)
    assert got["robust_loss_published"] == got[f"robust_objective{start}"]
    assert got["robust_objective"] != got["robust_objective_from_y"]


def test_a_perturbation_must_be_held_and_fit():
    with pytest.raises(SettingError, match=r"penalty above 0, or a\s+radius"):
        robust_problem(penalty=0.0)
    with pytest.raises(SettingError, match=r"problem.shape = \(4,\).*\(5,\)"):
        robust_problem().loss(*robust_problem().first(), batch_of(numbers(2, 5), torch.tensor([0, 1])))
    far = Point(torch.zeros(15), torch.full((4,), 3.0))
    assert float(robust_problem(radius=2.0).project(far).y.norm()) == pytest.approx(2.0)
    assert robust_problem().project(far) is far


# a generator against a discriminator

def tiny_gan(norm=False, **settings):
    def layers(i, o, last):
        middle = [nn.BatchNorm1d(5, track_running_stats=False)] if norm else []
        return nn.Sequential(nn.Linear(i, 5), *middle, nn.Tanh(), nn.Linear(5, o), *last)

    generator, discriminator = seeded(lambda: (layers(3, 4, [nn.Tanh()]), layers(4, 1, [])))
    return GAN(generator.double(), discriminator.double(), noise=3, **settings)


def net_by_hand(flat, sizes, inputs):
    (i, h, o), at, parts = sizes, 0, []
    for shape in ((h, i), (h,), (o, h), (o,)):
        parts.append(flat[at : at + int(np.prod(shape))].numpy().reshape(shape))
        at += int(np.prod(shape))
    return np.tanh(inputs @ parts[0].T + parts[1]) @ parts[2].T + parts[3]


def test_gan_loss_is_the_minimax_form_row_by_row():
    problem, uniform = tiny_gan(), torch.rand(6, 3, generator=torch.Generator().manual_seed(1)).double()
    z, inputs = near(problem), numbers(6, 4)
    weight = torch.tensor([0.5, 0.2, 0.2, 0.1, 0.0, 0.0]).double()
    made = np.tanh(net_by_hand(z.x, (3, 5, 4), 2 * uniform.numpy() - 1))  # noise on [-1, 1]
    real, fake = (1 / (1 + np.exp(-net_by_hand(z.y, (4, 5, 1), rows)[:, 0])) for rows in (inputs.numpy(), made))
    by_hand = sum(float(w) * (np.log(real[r]) + np.log(1 - fake[r])) for r, w in enumerate(weight))
    batch = Batch(inputs, torch.zeros(6).long(), weight, uniform)
    assert float(problem.loss(*z, batch)) == pytest.approx(by_hand, rel=1e-12)


def test_the_generator_descends_what_the_setting_says_and_the_discriminator_ascends_f():
    uniform, inputs = torch.rand(6, 3, generator=torch.Generator().manual_seed(1)).double(), numbers(6, 4)
    saturating, other = tiny_gan(), tiny_gan(generator_loss="non-saturating")
    z, batch = near(saturating), batch_of(inputs, torch.zeros(6).long(), uniform)
    x, y = grad(saturating.loss, argnums=(0, 1))(*z, batch)
    one, two = saturating.gradient(*z, batch), other.gradient(*z, batch)
    torch.testing.assert_close(one, Point(x, y))
    torch.testing.assert_close(two.y, y)
    def deceit(x):
        """-log D(G(noise)), by hand."""
        made = np.tanh(net_by_hand(x, (3, 5, 4), 2 * uniform.numpy() - 1))
        logits = net_by_hand(z.y, (4, 5, 1), made)[:, 0]
        return float(batch.weight.numpy() @ np.log1p(np.exp(-logits)))

    step = 1e-6 * numbers(len(z.x), seed=5)
    change = (deceit(z.x + step) - deceit(z.x - step)) / 2
    assert float(two.x @ step) == pytest.approx(change, rel=1e-5)
    assert float((two.x - x).norm()) > 1e-3 * float(x.norm())


def test_both_terms_of_a_correction_see_the_same_noise():
    """CDMA-ONE with one step moves along the mean gradient: only where the two gradients of its step cancel."""
    case = (tiny_gan(generator_loss="non-saturating"), unequal(2))
    everyone = {"asked": None, "eta": 0.05, "gamma": 0.03}
    one = testing.final_state(testing.make("cdma-one", steps=1, **everyone), case, testing.Participation(), rounds=4)
    other = testing.final_state(testing.make("parallel-sgda", **everyone), case, testing.Participation(), rounds=4)
    testing.compare(one.server.z, other.server.z, "one corrected step and a plain one", 1e-12)


def test_gan_measures_and_samples():
    problem, rows = tiny_gan(), Rows(numbers(300, 4), torch.zeros(300).long())
    z = near(problem)
    got = problem.measure(z, rows)
    assert got["objective"] == pytest.approx(float(Pooled(problem, rows, torch.float64).value(*z)), rel=1e-12)
    assert got["discriminator_loss"] == -got["objective"]
    assert 0 < got["fake"] < 1 and 0 < got["real"] < 1
    samples = problem.samples(z, 40, seed=3)
    assert samples.shape == (40, 4) and bool((samples.abs() <= 1).all())
    assert torch.equal(samples, problem.samples(z, 40, seed=3))
    assert not torch.equal(samples, problem.samples(z, 40, seed=4))
    assert "without fail" in problem.alarms({**got, "real": 0.9999, "fake": 1e-5})[0]
    assert problem.alarms(got) == []
    assert "diverged" in problem.alarms({**got, "objective": float("nan")})[0]


def test_sliced_wasserstein_is_the_mean_over_directions_of_the_distance_of_projections():
    one, other = numbers(50, 3), 2 * numbers(50, 3, seed=1) + 1
    from fedsaddle.metrics import sliced

    directions = sliced._directions(3, 16, 0)
    torch.testing.assert_close(directions.norm(dim=0), torch.ones(16).double())
    assert float(sliced._directions(3, 4000, 0).mean(1).norm()) < 0.05
    by_scipy = [wasserstein_distance(one @ d, other @ d) for d in directions.T]
    assert sliced_wasserstein(one, other, 16) == pytest.approx(np.mean(by_scipy), rel=1e-9)
    assert sliced_wasserstein(one, one[torch.randperm(50)]) == pytest.approx(0.0, abs=1e-12)


def test_a_gan_needs_two_nets_that_fit():
    settings = settle({"algorithm": "cdma-nc", "problem": "gan", "model": "mlp", "data": "digits"})
    with pytest.raises(SettingError, match="dcgan28"):
        pose(settings, deal(settings))
    problem = tiny_gan()
    wide = batch_of(numbers(2, 5), torch.zeros(2).long(), torch.rand(2, 3).double())
    with pytest.raises(SettingError, match="choose a generator"):
        problem._made(problem.first().x, wide)


def test_a_gan_comes_closer_to_its_data():
    rows = 0.1 * numbers(200, 4).float() + torch.tensor([0.7, -0.6, 0.5, 0.0])
    problem = tiny_gan(generator_loss="non-saturating")
    problem = replace(problem, generator=problem.generator.float(), discriminator=problem.discriminator.float())
    result = train(testing.make("cdma-one", eta=0.3, gamma=0.3, steps=4), problem,
                   (rows, torch.zeros(200).long(), torch.arange(200) % 10), rounds=20, evaluate_every=10)
    distances = [r["measures"]["train"]["sliced_wasserstein"] for r in result.records if "measures" in r]
    before = problem.measure(problem.first(), Rows(rows, torch.zeros(200)))["sliced_wasserstein"]
    assert distances[-1] < before / 2


# classes, and next characters

def test_agnostic_loss_of_classes_and_of_sequences():
    problem, targets = Agnostic(linear(4, 3)), torch.tensor([0, 2, 1])
    z, inputs, weight = near(problem), numbers(3, 4), torch.tensor([0.6, 0.4, 0.0]).double()
    share = softmax(logits_by_hand(z.x, inputs))
    by_hand = sum(float(w) * -np.log(share[r, targets[r]]) for r, w in enumerate(weight))
    assert float(problem.loss(*z, Batch(inputs, targets, weight))) == pytest.approx(by_hand, rel=1e-12)

    characters = torch.tensor([[0, 2, 1], [1, 1, 0], [2, 0, 0]])
    places = numbers(3, 3, 4, seed=4)  # rows, places, features
    total = 0.0
    for r in range(3):
        share = softmax(logits_by_hand(z.x, places[r]))
        total += float(weight[r]) * np.mean([-np.log(share[t, characters[r, t]]) for t in range(3)])
    assert float(problem.loss(*z, Batch(places, characters, weight))) == pytest.approx(total, rel=1e-12)
    hits = [[softmax(logits_by_hand(z.x, places[r]))[t].argmax() == characters[r, t] for t in range(3)]
            for r in range(3)]
    got = problem.measure(z, Rows(places, characters))
    assert got["accuracy"] == pytest.approx(np.mean(hits))
    assert problem.by_row(z, Rows(places, characters))["accuracy"].tolist() == pytest.approx(np.mean(hits, 1))
    assert got["loss"] == pytest.approx(float(problem.loss(*z, batch_of(places, characters))), rel=1e-12)


def test_targets_that_are_no_classes_are_refused():
    problem = Agnostic(linear(4, 3))
    with pytest.raises(SettingError, match="int64"):
        problem.loss(*problem.first(), batch_of(numbers(2, 4), torch.tensor([0.0, 1.0])))
    with pytest.raises(SettingError, match=r"shape \(2, 2\) does not fit"):
        problem.loss(*problem.first(), batch_of(numbers(2, 4), torch.zeros(2, 2).long()))
    settings = settle({"algorithm": "drfa", "problem": "agnostic", "model": "linear", "data": "quadratic"})
    with pytest.raises(SettingError, match="data set has none"):
        pose(settings, deal(settings))


# simulation equals reference on each kind

class Places(nn.Module):
    """Features of a row as a short sequence of two places."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 3)

    def forward(self, inputs):
        return self.head(inputs.reshape(len(inputs), 2, 2))


def sequences():
    clients = unequal(3)
    return replace(clients, targets=torch.stack([clients.targets, 2 - clients.targets], 1))


KINDS = {
    "auc, margin": lambda: (AUC(linear(4, 1), form="margin", margin=0.5), unequal(2)),
    "auc, classes": lambda: (AUC(linear(4, 1), draws="classes"), unequal(2)),
    "robust, penalty": lambda: (robust_problem(steps=1), unequal(3)),
    "robust, ball": lambda: (robust_problem(penalty=0.0, radius=0.05, steps=1), unequal(3)),
    "gan": lambda: (tiny_gan(), unequal(2)),
    "gan, batch norm": lambda: (tiny_gan(norm=True, generator_loss="non-saturating"), unequal(2)),
    "agnostic": lambda: (Agnostic(linear(4, 3)), unequal(3)),
    "agnostic, sequences": lambda: (Agnostic(seeded(Places).double()), sequences()),
}


def agree(algorithm, case):
    """With drop-outs, whatever the chunk."""
    reference = testing.final_state(algorithm, case, engine="reference", rounds=4)
    for chunk in (1, 3, None):
        testing.compare(testing.final_state(algorithm, case, chunk=chunk, rounds=4), reference, f"chunk {chunk}", 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_engines_agree(kind):
    name = "drfa" if "agnostic" in kind else "cdma-ada"  # ALL, minibatches and corrections; or draws and losses
    agree(testing.trial(name), KINDS[kind]())


def test_padding_would_be_seen_by_batch_statistics(monkeypatch):
    """The check above has teeth: with clients of unequal sizes in one chunk the engines differ."""
    monkeypatch.setattr("fedsaddle.engine.simulation.mixes_rows", lambda problem: False)
    with pytest.raises(AssertionError, match="differs"):
        agree(testing.trial("cdma-ada"), KINDS["gan, batch norm"]())


def test_equal_clients_share_a_chunk_where_rows_interact():
    problem = tiny_gan(norm=True)
    clients = clients_from_list([(numbers(n, 4, seed=n), torch.zeros(n).long()) for n in (3, 5, 3, 3, 5)])
    start = testing.job(testing.make("parallel-sgda", asked=None), (problem, clients), testing.Participation())
    engine, seen = start.federation.engine, []
    assert isinstance(engine, Simulation) and engine.unpadded
    plain = engine._replies
    engine._replies = lambda ask, part, *rest: (seen.append(part.tolist()), plain(ask, part, *rest))[1]
    testing.finished(start._replace(plan=start.plan._replace(rounds=1)))
    assert seen == [[0, 2, 3], [1, 4]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_on_cuda(kind):
    method = testing.trial("drfa" if "agnostic" in kind else "cdma-ada")
    expected = testing.final_state(method, KINDS[kind](), engine="reference", rounds=4)
    testing.compare(testing.final_state(method, KINDS[kind](), device="cuda", rounds=4), expected, kind, 1e-9)
    problem, clients = KINDS[kind]()
    result = train(method, problem, clients, rounds=1, device="cuda", dtype="float64", progress=True)
    assert all(np.isfinite(value) for value in result.measures["train"].values())


# the recipes of these kinds

UNJUDGED = {"run.image_samples": 0}  # a classifier is not at hand
RECIPES = {  # name: one of its methods, assignments that make it cheap, its measure, whether that is better when lower
    "cdma/robust-mnist": ("CDMA-ADA", {"problem.steps": 1, "run.rounds": 8}, "robust_loss", True),
    "cdma/robust-fashion": ("CDMA-ADA", {"problem.steps": 1, "run.rounds": 8}, "robust_loss", True),
    "cdma/gan-mnist": ("CDMA-NC", {"asked": 1, "gamma": 0.05, "run.rounds": 1, **UNJUDGED},
                       "discriminator_loss", True),
    "cdma/gan-fashion": ("CDMA-NC", {"asked": 1, "gamma": 0.05, "run.rounds": 1, **UNJUDGED},
                         "discriminator_loss", True),
    "drfa/fashion": ("DRFA-all", {"run.rounds": 10}, "accuracy", False),
    "drfa/adult-gender": ("DRFA", {"run.rounds": 10}, "accuracy", False),
    "drfa/adult-race": ("DRFA", {"run.rounds": 10}, "accuracy", False),
    "drfa/shakespeare": ("DRFA", {"asked": 2, "run.rounds": 1}, "accuracy", False),
    "cyclic-auc/mammography": ("CyCP-Pairwise", {"run.rounds": 40}, "auc", False),
}


def recipe(name, label="", **assignments):
    tables = read(recipes.path(name))
    texts = [f"algorithms.{label}.{key}={value}" if "." not in key else f"{key}={value}"
             for key, value in assignments.items()]
    return settle(tables, texts if label else ())


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_right_and_say_what_they_are_for(name):
    settings = recipe(name)
    assert len(settings.algorithms) >= 4 and 20 < len(recipes.about(name)) <= 120
    measure = settings.run.headline or PROBLEMS[settings.problem.name].headline
    assert measure in ("robust_loss", "sliced_wasserstein", "accuracy_worst", "auc")


@pytest.mark.skipif(not os.environ.get("FEDSADDLE_DATA"), reason="set FEDSADDLE_DATA to the folder of the data sets")
@pytest.mark.parametrize("name", RECIPES)
def test_recipes_start_and_their_measure_improves(name, monkeypatch):
    monkeypatch.setattr("fedsaddle.problems.gan.SEEN", 256)
    label, cheap, measure, lower = RECIPES[name]
    off = {"run.evaluate_every": 100, "run.per_client": "false", "data.hold_out": 0}
    settings = recipe(name, label, **{**off, **cheap})
    job = job_from_settings(settings, label)
    before = job.evaluate(job.algorithm.solution(job.progress.server))[0]["test"][measure]
    result = carry_out(job, settings.run)
    change = result.measures["test"][measure] - before
    assert (-change if lower else change) > 0


def test_one_method_of_several_and_the_measure_to_show(tmp_path):
    few = ["--set", "run.rounds=1", "--set", "run.per_client=true", "--set", "run.headline=loss_worst"]
    done = CliRunner().invoke(app, ["run", "digits-auc", *few, "--only", "CDMA-NC", "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert [path.name for path in (tmp_path / "run").iterdir() if path.is_dir()] == ["CDMA-NC"]
    assert "loss_worst" in done.output
    wrong = CliRunner().invoke(app, ["run", "digits-auc", "--only", "CDMA-N", "--out", str(tmp_path / "other")])
    assert "did you mean 'CDMA-NC'" in str(wrong.exception) and not (tmp_path / "other").exists()


# progress that means something

def test_primal_of_a_quadratic_by_ascent_is_its_closed_form():
    clients = testing.quadratic_case()[1].to("cpu", torch.float64)
    weights = clients.run.size.double()
    with_mean = Quadratic(3, 2, mean=coefficients(clients, weights, 3, 2))
    z = Point(numbers(3), numbers(2, seed=1))
    closed = with_mean.measure(z, clients.rows)
    found = primal(Quadratic(3, 2), z, clients.rows, steps=200)
    assert found.value == pytest.approx(closed["primal"], rel=1e-9)
    assert found.gradient == pytest.approx(closed["primal_gradient"], rel=1e-5)
    few = [primal(Quadratic(3, 2), z, clients.rows, steps=n).value for n in (1, 2, 4, 8)]
    assert few == sorted(few) and few[-1] <= closed["primal"] + 1e-12  # from below
    direction = numbers(3, seed=9)
    ahead, behind = (with_mean.measure(Point(z.x + s * 1e-5 * direction, z.y), clients.rows)["primal"] for s in (1, -1))
    gradient = Pooled(Quadratic(3, 2), clients.rows, torch.float64).gradient(z.x, found.y)[1]
    assert (ahead - behind) / 2e-5 == pytest.approx(float(gradient @ direction), rel=1e-4)


def test_primal_with_a_closed_form_without_y_and_in_slices():
    rows = Rows(numbers(SLICE + 30, 4), (numbers(SLICE + 30, seed=3) > 0.5).long())
    problem = margin_problem()
    z = near(problem)
    found = primal(problem, z, rows)
    assert found.value == pytest.approx(problem.measure(z, rows)["primal"], rel=1e-9)
    whole = grad(problem.loss)(z.x, found.y, batch_of(*rows))
    assert found.gradient == pytest.approx(float(whole.norm()), rel=1e-9)
    plain = Agnostic(linear(4, 2))
    w = near(plain)
    loss = float(plain.loss(*w, batch_of(*rows)))
    assert primal(plain, w, rows) == (pytest.approx(loss), pytest.approx(float(
        grad(plain.loss)(*w, batch_of(*rows)).norm())), w.y)


def test_a_climb_respects_the_domain_and_never_falls():
    def slope(y):  # steep: a step of 1 overshoots by far
        return -500 * ((y - 2) ** 2).sum(), -1000 * (y - 2)

    inside = climb(slope, torch.zeros(2).double(), 30, 1.0, lambda y: y.clamp(max=1.5))
    torch.testing.assert_close(inside, torch.full((2,), 1.5).double())
    free = climb(slope, torch.zeros(2).double(), 30, 1.0, lambda y: y)
    torch.testing.assert_close(free, torch.full((2,), 2.0).double(), atol=1e-6, rtol=0)
    at_top = climb(slope, torch.full((2,), 2.0).double(), 30, 1.0, lambda y: y)
    assert at_top.tolist() == [2.0, 2.0]


def test_a_run_measures_progress_when_asked():
    case = KINDS["robust, penalty"]()
    problem = Robust(case[0].net.float(), (4,), penalty=0.5, size=0.5)
    plain = train("cdma-one", problem, case[1], rounds=2)
    assert "primal" not in plain.measures["train"]
    asked = train("cdma-one", problem, case[1], rounds=2, progress=True, progress_steps=40)
    got = asked.measures["train"]
    assert got["primal"] >= got["robust_objective"] - 1e-5 and got["primal"] >= got["objective"]
    assert got["primal_gradient"] > 0
    pairs = train("rs-pairwise", Pairwise(linear(4, 1).float()), unequal(2), rounds=1, progress=True)
    assert "primal" not in pairs.measures["train"]


@dataclass(frozen=True)
class Steep:
    """f(x, y) = x y - y^2 / 2, so Phi(x) = x^2 / 2 however y behaves."""

    def first(self):
        return Point(torch.ones(1), torch.full((1,), 5.0))

    def loss(self, x, y, batch):
        return (batch.weight * (x[0] * y[0] - y[0] ** 2 / 2)).sum()


def test_the_primal_value_falls_where_the_loss_says_nothing():
    data = [(torch.zeros(3, 1), torch.zeros(3))] * 4
    result = train(testing.make("cdma-one", eta=0.1, gamma=0.3, steps=1), Steep(), data, rounds=60, evaluate_every=1,
                   progress=True)
    measures = [r["measures"]["train"] for r in result.records]
    loss, phi = ([m[name] for m in measures] for name in ("loss", "primal"))
    assert loss[-1] > loss[0]
    assert phi[-1] < 1e-3 * phi[0]
    assert phi[-1] == pytest.approx(float(result.point.x[0]) ** 2 / 2, rel=1e-3, abs=1e-12)
