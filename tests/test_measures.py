"""Measures against brute force, NumPy, SciPy and scikit-learn: partial AUC, AUC by histograms, clients, images."""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner

from fedsaddle.cli import app
from fedsaddle.contracts import Point, Rows, SettingError
from fedsaddle.data.clients import Clients, clients_from_arrays
from fedsaddle.data.clients import Run as RowRun
from fedsaddle.data.sources import SOURCES
from fedsaddle.engine import classifier as classifiers
from fedsaddle.engine.federation import PREPARATION, EngineFederation
from fedsaddle.engine.reference import Reference
from fedsaddle.engine.simulation import Simulation
from fedsaddle.maths import nets
from fedsaddle.metrics import auc, average_precision, fairness, frechet_distance, inception_score, partial_auc
from fedsaddle.metrics import histogram as h
from fedsaddle.metrics.fairness import by_client, summary
from fedsaddle.metrics.images import Moments, combined, judged, moments
from fedsaddle.metrics.primal import primal
from fedsaddle.participation import Participation, as_participation
from fedsaddle.participation.responses import DropOuts
from fedsaddle.participation.selection import Population
from fedsaddle.problems import AUC, Agnostic, Metric, Pairwise, Robust, from_module
from fedsaddle.runs import train

torch.set_num_threads(1)
DATA = os.environ.get("FEDSADDLE_DATA")


# Partial AUC.


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=40), st.floats(0.01, 1))
def test_partial_auc_is_that_of_scikit_learn(rows, max_fpr):
    scores, positive = np.array([float(s) for s, _ in rows]), np.array([p for _, p in rows])
    got = partial_auc(torch.tensor(scores), torch.tensor(positive), max_fpr)
    if positive.all() or not positive.any():
        assert math.isnan(got)
    else:
        assert got == pytest.approx(roc_auc_score(positive, scores, max_fpr=max_fpr), abs=1e-12)


def test_partial_auc_of_a_large_set_and_of_the_whole_curve():
    random = np.random.default_rng(0)
    positive = random.random(50_000) < 0.05
    scores = np.round(random.normal(size=50_000) + positive, 2)
    for max_fpr in (0.001, 0.1, 0.3):
        assert partial_auc(torch.tensor(scores), torch.tensor(positive), max_fpr) == pytest.approx(
            roc_auc_score(positive, scores, max_fpr=max_fpr), abs=1e-12)
    assert partial_auc(torch.tensor(scores), torch.tensor(positive), 1.0) == pytest.approx(
        auc(torch.tensor(scores), torch.tensor(positive)), abs=1e-12)
    assert math.isnan(partial_auc(torch.tensor([math.nan, 1.0]), torch.tensor([True, False]), 0.5))
    with pytest.raises(SettingError, match="max_fpr = 0"):
        partial_auc(torch.zeros(2), torch.tensor([True, False]), 0)


# The AUC by histograms.


@dataclass(frozen=True)
class Given:
    """A problem whose scores are its inputs."""

    headline = "auc"

    def first(self):
        return Point(torch.zeros(1), torch.zeros(0))

    def loss(self, x, y, batch):
        return (batch.weight * batch.inputs[:, 0]).sum()

    def scores(self, x, batch):
        return batch.inputs[:, 0]


def federation_of(clients, problem, engine="simulation", participation=None, weights=None, dtype=torch.float32):
    clients = clients.to("cpu", dtype)
    made = Reference(problem, clients, 4, dtype) if engine == "reference" else Simulation(problem, clients, 4, dtype)
    weights = torch.full((clients.count,), 1 / clients.count).double() if weights is None else weights
    population = Population(clients.count, clients.run.size, weights)
    federation = EngineFederation(made, participation or Participation(), population, 0)
    federation.begin(0 if participation else PREPARATION)
    return federation


def asked(scores, positive, clients, **how):
    """The AUC of these scores, dealt to so many clients in blocks of their order."""
    dtype = scores.dtype
    size = torch.bincount(torch.arange(len(scores)) * clients // len(scores))
    table = Clients(scores[:, None], positive.long(), RowRun(size.cumsum(0) - size, size))
    federation = federation_of(table, Given(), dtype=dtype)
    return h.histogram_auc(federation, h.problem_score, Point(torch.zeros(1, dtype=dtype), torch.zeros(0)), **how)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(width=32, allow_nan=False), st.booleans()), min_size=4, max_size=60),
       st.integers(1, 4), st.integers(1, 3), st.integers(8, 20))
def test_the_exact_auc_is_always_inside_the_interval(rows, clients, asks, bins):
    scores, positive = torch.tensor([s for s, _ in rows]), torch.tensor([p for _, p in rows])
    got, exact = asked(scores, positive, clients, bins=bins, asks=asks), auc(scores, positive)
    if math.isnan(exact):
        assert math.isnan(got.value) and math.isnan(got.low)
    else:
        assert got.low <= exact <= got.high and got.low <= got.value <= got.high
        assert (got.positives, got.negatives) == (int(positive.sum()), int((~positive).sum()))
        assert got.clients == clients


SATURATIONS = {
    "as they are": lambda d: d,
    "sigmoid": scipy.special.expit,
    "sigmoid, most exactly 0 or 1": lambda d: scipy.special.expit(40 * d),
    "within 1e-4 of 1": lambda d: 1 - 1e-5 * np.exp(-np.clip(d, -2, 20)),
    "within 1e-4 of one half": lambda d: 0.5 + 1e-5 * d,
    "huge": lambda d: 1e8 * d,
    "tiny": lambda d: 1e-20 * d,
    "rounded": lambda d: np.round(d, 1),
}


def ranked(inputs, targets):
    """Scores of a logistic regression on these rows, and which are positive; rows sorted by label, as the papers do."""
    inputs = np.asarray(inputs, dtype=np.float64).reshape(len(inputs), -1)
    inputs = (inputs - inputs.mean(0)) / (inputs.std(0) + 1e-9)
    order = np.argsort(targets, kind="stable")
    fitted = LogisticRegression(max_iter=100, C=0.1).fit(inputs[order], targets[order])
    return fitted.decision_function(inputs[order]), torch.from_numpy(targets[order] > 0)


def check_all_saturations(inputs, targets):
    scores, positive = ranked(inputs, targets)
    for name, change in SATURATIONS.items():
        values = torch.from_numpy(change(scores).astype(np.float32))
        got, exact = asked(values, positive, 40, bins=64), auc(values, positive)
        assert abs(got.value - exact) <= 1e-3, name
        assert got.low <= exact <= got.high, name
        assert got.high - got.low <= 0.02, name


@pytest.mark.parametrize(("name", "positive"), [("breast-cancer", 1), ("digits", 8)])
def test_64_bins_are_within_a_thousandth_on_embedded_data_and_saturated_scores(name, positive):
    data = SOURCES[name]().load(0).train
    check_all_saturations(data.inputs.numpy(), (data.targets == positive).long().numpy())


@pytest.mark.skipif(not DATA, reason="FEDSADDLE_DATA is not set")
@pytest.mark.parametrize("name", ["mammography", "campaign", "mnist"])
def test_64_bins_are_within_a_thousandth_on_real_data_and_saturated_scores(name):
    with np.load(Path(DATA) / f"{name}.npz") as file:
        inputs, targets = (file["x_test"][:, ::3, ::3], file["y_test"] == 0) if name == "mnist" else \
            (file["X"], file["y"])
    check_all_saturations(inputs, targets.astype(np.int64))


def test_double_precision_and_any_engine_give_the_same():
    random = np.random.default_rng(1)
    positive = torch.from_numpy(random.random(500) < 0.3)
    scores = torch.from_numpy(1 - 1e-9 * np.exp(random.normal(size=500) - positive.numpy()))
    clients = clients_from_arrays(scores[:, None], positive.long(), random.integers(0, 7, 500))
    z = Point(torch.zeros(1).double(), torch.zeros(0))
    got = [h.histogram_auc(federation_of(clients, Given(), engine, dtype=torch.float64), h.problem_score, z)
           for engine in ("simulation", "reference")]
    assert got[0] == got[1]
    assert got[0].low <= auc(scores, positive) <= got[0].high and got[0].high - got[0].low < 0.05


def small_case():
    random = np.random.default_rng(2)
    positive = random.random(300) < 0.3
    inputs = torch.from_numpy(random.normal(size=(300, 3)) + positive[:, None]).float()
    owner = np.minimum(random.integers(0, 12, 300), random.integers(0, 12, 300))  # unequal clients
    return clients_from_arrays(inputs, positive.astype(np.int64), owner)


def linear(inputs, outputs=1):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Linear(inputs, outputs)


def test_a_row_counts_once_whatever_its_client_weighs_and_pairs_of_strata_are_counted_alike():
    clients = small_case()
    pairwise, minimax = Pairwise(linear(3), shares=(1.0, 1.0)), AUC(linear(3), p=0.3)
    exact = auc(minimax.scores(minimax.first().x, clients).detach(), clients.targets > 0)
    by_size = clients.run.size.double() / clients.run.size.sum()
    for problem, table, weights in ((minimax, clients, None), (minimax, clients, by_size),
                                    (pairwise, clients.stratified(), by_size)):
        got = h.histogram_auc(federation_of(table, problem, weights=weights), h.problem_score, problem.first())
        assert got.low <= exact <= got.high
        assert got.value == pytest.approx(exact, abs=1e-3)
        assert got.positives + got.negatives == 300


def test_every_ask_is_counted_as_bins_of_two_classes():
    federation = federation_of(small_case(), AUC(linear(3), p=0.3))
    got = h.histogram_auc(federation, h.problem_score, AUC(linear(3), p=0.3).first(), bins=32, asks=3)
    assert got.asks == len(federation.asks) == 3
    assert federation.traffic.floats_up == 3 * 12 * (2 * 32 + 1)
    assert federation.traffic.floats_down == 3 * 12 * (31 + 4 + 2 + 1)  # thresholds, and z = (w, a, b; alpha)


def test_with_drop_outs_it_is_the_auc_of_those_that_answered_last():
    clients, problem = small_case(), AUC(linear(3), p=0.3)
    federation = federation_of(clients, problem, participation=as_participation(DropOuts(0.4)))
    seen, plain = [], federation.average

    def watched(*args, **more):
        seen.append(plain(*args, **more))
        return seen[-1]

    federation.average = watched
    got = h.histogram_auc(federation, h.problem_score, problem.first())
    assert len({tuple(each.ids.tolist()) for each in seen}) > 1 and got.clients == seen[-1].answered < 12
    owner = torch.repeat_interleave(torch.arange(12), clients.run.size)
    rows = torch.isin(owner, seen[-1].ids)
    exact = auc(problem.scores(problem.first().x, clients).detach()[rows], clients.targets[rows] > 0)
    assert got.low <= exact <= got.high


def test_broken_scores_missing_classes_and_large_counts():
    half = torch.tensor([True, False] * 10)
    scores = torch.arange(20.0)
    assert math.isnan(asked(torch.where(scores == 3, math.nan, scores), half, 4).value)
    assert math.isnan(asked(scores, torch.ones(20, dtype=torch.bool), 4).low)
    perfect = asked(torch.where(half, 1.0, 0.0), half, 4)
    assert (perfect.low, perfect.value, perfect.high, perfect.asks) == (1.0, 1.0, 1.0, 1)
    known = [h.Known(0, 0, 0), h.Known(5, 10, 30), h.Known(9, 20, 40)]
    exact, rounded = h.interval(known), h.interval(known, slack=1e-3)
    assert exact.low == (10 * 30) / 800 and exact.high == (10 * 30 + 10 * 30 + 10 * 10) / 800
    assert (rounded.low, rounded.high) == (exact.low - 1e-3, exact.high + 1e-3)


def test_millions_of_rows_in_float32():
    scores, positive = torch.randn(4000, generator=torch.Generator().manual_seed(0)), torch.arange(4000) % 3 == 0
    scores = torch.where(positive, scores + 1, scores)
    shared = RowRun(torch.zeros(999, dtype=torch.int64), torch.full((999,), 4000))  # all clients have the same rows
    federation = federation_of(Clients(scores[:, None], positive.long(), shared), Given())
    got, exact = h.histogram_auc(federation, h.problem_score, Given().first(), bins=16), auc(scores, positive)
    assert got.low <= exact <= got.high and got.high - got.low < 0.05 and abs(got.value - exact) < 1e-3
    assert got.positives + got.negatives == pytest.approx(999 * 4000, abs=20)


def test_problems_without_a_score_a_row_are_refused():
    clients = small_case()
    for problem, table in ((from_module(linear(3), lambda net, y, batch: net(batch.inputs)[:, 0]), clients),
                           (Metric(linear(3, 2), dimension=2), clients.stratified(("rows", "rows")))):
        with pytest.raises(SettingError, match="no score a row"):
            h.histogram_auc(federation_of(table, problem), h.problem_score, problem.first())
    with pytest.raises(SettingError, match="at least 8 bins"):
        h.histogram_auc(federation_of(clients, Given()), h.problem_score, Given().first(), bins=4)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1))
def test_keys_are_the_places_of_numbers_in_their_order(values):
    for dtype in (torch.float32, torch.float64):
        numbers = torch.tensor(values, dtype=dtype)
        keys = h.key_of(numbers)
        assert torch.equal(h.numbers(keys, dtype), numbers)
        for a, b in zip(values, keys, strict=True):
            for c, d in zip(values, keys, strict=True):
                assert (a < c) == (b < d) and (a == c) == (b == d)
    up = torch.nextafter(torch.tensor(values), torch.tensor(math.inf))
    assert all(b == a + 1 or math.isinf(v) for v, a, b in
               zip(values, h.key_of(torch.tensor(values)), h.key_of(up), strict=True))


# Over clients.


def test_every_clients_loss_and_accuracy_by_a_plain_loop():
    clients = small_case()
    problem = Robust(linear(3, 2), (3,), penalty=0.1)
    z = problem.first()
    got = by_client(problem, z, clients)
    for i, (start, size) in enumerate(zip(*clients.run, strict=True)):
        rows = slice(int(start), int(start + size))
        outputs, targets = problem.net(clients.inputs[rows]).detach(), clients.targets[rows]
        assert float(got["accuracy"][i]) == pytest.approx(float((outputs.argmax(1) == targets).double().mean()))
        assert float(got["loss"][i]) == pytest.approx(float(nn.functional.cross_entropy(outputs, targets)), rel=1e-5)


def test_a_problem_that_says_nothing_of_rows_is_measured_by_their_losses():
    clients = small_case()
    problem = AUC(linear(3), p=0.3)
    z = Point(problem.first().x + 0.1, problem.first().y + 0.2)
    losses = by_client(problem, z, clients)["loss"]
    federation = federation_of(clients, problem)
    asked_for = federation.collect(lambda oracle, m, c, data: (m._replace(x=oracle.loss(m, data.full)), c), z,
                                   federation.everyone(), h.ALL)
    torch.testing.assert_close(losses, asked_for.each.x.double(), rtol=1e-5, atol=1e-6)


def test_clients_may_share_rows():
    runs = RowRun(torch.tensor([0, 2, 0]), torch.tensor([4, 3, 6]))
    table = Clients(torch.arange(6.0)[:, None], torch.zeros(6), runs)
    assert by_client(Given(), Given().first(), table)["loss"].tolist() == [1.5, 3.0, 2.5]


def test_worst_worst_tenth_mean_and_spread():
    values = torch.arange(25.0)[torch.randperm(25, generator=torch.Generator().manual_seed(0))]
    up, down = summary(values, higher=True), summary(values, higher=False)
    assert (up["worst"], down["worst"]) == (0.0, 24.0)
    assert (up["worst_tenth"], down["worst_tenth"]) == (1.0, 23.0)  # three of 25
    assert up["mean"] == down["mean"] == 12.0
    assert up["spread"] == pytest.approx(np.std(np.arange(25)))
    assert summary(values[:1], True)["worst_tenth"] == float(values[0])
    names = fairness(Robust(linear(3, 2), (3,)), Robust(linear(3, 2), (3,)).first(), small_case())
    assert set(names) == {f"{m}_{p}" for m in ("loss", "accuracy") for p in ("worst", "worst_tenth", "mean", "spread")}
    assert names["accuracy_worst"] <= names["accuracy_worst_tenth"] <= names["accuracy_mean"]
    assert names["loss_worst"] >= names["loss_worst_tenth"] >= names["loss_mean"]


def measured(**run):
    clients = small_case()
    return train("cdma-one", AUC(linear(3)), clients, rounds=4, evaluate_every=2, evaluate_on=("train",), **run)


def test_a_run_records_them_and_is_the_same_run():
    plain, with_all = measured(), measured(per_client=True, histogram_bins=64)
    assert torch.equal(plain.point.x, with_all.point.x) and plain.traffic == with_all.traffic
    assert "clients" not in plain.measures
    clients = with_all.measures["clients"]
    assert clients["auc_low"] <= with_all.measures["train"]["auc"] <= clients["auc_high"]
    assert clients["floats_up"] > 0 and clients["loss_worst"] >= clients["loss_mean"]


@pytest.mark.parametrize(("problem", "run", "words"), [
    (Pairwise(linear(3)), {"per_client": True}, "run.per_client = true.*pairs"),
    (Robust(linear(3, 2), (3,)), {"histogram_bins": 64}, "run.histogram_bins = 64.*ranks rows"),
    (AUC(linear(3)), {"histogram_bins": 4}, "run.histogram_bins = 4.*at least 8"),
    (AUC(linear(3)), {"image_samples": 10}, "run.image_samples = 10.*makes no images"),
])
def test_what_cannot_be_measured_is_refused_before_the_first_round(problem, run, words):
    seen = []
    with pytest.raises(SettingError, match=words):
        train("parallel-sgda", problem, small_case(), rounds=2, watch=seen.append, **run)
    assert not seen


# The host does not wait for every slice.


class Waits(TorchDispatchMode):
    """Counts the operations for which the host must wait until the device is done; the last, `tolist`, is not seen."""

    OPERATIONS = ("_local_scalar_dense", "nonzero", "masked_select", "unique")

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        masks = [part for part in arguments[1:2] if function is torch.ops.aten.index.Tensor
                 for part in part if part is not None and part.dtype == torch.bool]
        self.count += any(name in str(function) for name in self.OPERATIONS) or bool(masks)
        return function(*arguments, **(options or {}))


def waits(measure):
    with Waits() as seen:
        measure()
    return seen.count


def test_a_measure_waits_for_the_device_once_however_many_slices_it_has():
    random = torch.Generator().manual_seed(0)
    scores, positive = torch.randn(500, generator=random).round(decimals=1), torch.rand(500, generator=random) < 0.3
    assert waits(lambda: float(scores.sum())) == waits(lambda: scores[positive]) == 1  # what is counted is there
    assert waits(lambda: (auc(scores, positive), partial_auc(scores, positive, 0.2))) == 0
    assert waits(lambda: average_precision(scores, positive)) == 0
    inputs = torch.randn(9000, 3, generator=random)
    clients = Clients(inputs, (inputs[:, 0] > 0).long(), RowRun(torch.arange(900) * 10, torch.full((900,), 10)))
    for problem in (Robust(linear(3, 2), (3,), penalty=0.1), AUC(linear(3), p=0.3)):
        z = problem.first()
        assert waits(lambda problem=problem, z=z: fairness(problem, z, clients)) == 0
        assert waits(lambda problem=problem, z=z: primal(problem, z, clients.rows, steps=0)) == 0
    assert waits(lambda: judged(lambda images: (images, images.softmax(1)), inputs.split(250))) == 0


# Images.


def probabilities(rows, classes, seed=0):
    raw = np.random.default_rng(seed).gamma(0.3, size=(rows, classes)) + 1e-12
    return raw / raw.sum(1, keepdims=True)


def test_inception_score_is_the_exponential_of_the_mean_divergence():
    p = probabilities(60, 5)

    def direct(part):
        return math.exp(np.mean([sum(a * math.log(a / m) for a, m in zip(row, part.mean(0), strict=True))
                                 for row in part]))

    mean, deviation = inception_score(torch.from_numpy(p), splits=3)
    parts = [direct(p[i : i + 20]) for i in (0, 20, 40)]
    assert mean == pytest.approx(np.mean(parts), rel=1e-10) and deviation == pytest.approx(np.std(parts), rel=1e-8)
    assert inception_score(torch.eye(7).repeat(3, 1), 1)[0] == pytest.approx(7)  # sure of each class, all alike often
    assert inception_score(torch.full((9, 4), 0.25), 1)[0] == pytest.approx(1)
    with pytest.raises(SettingError, match="20 splits of 9"):
        inception_score(torch.full((9, 4), 0.25), 20)


@pytest.mark.parametrize("rows", [200, 6])  # six rows: singular covariances
def test_fid_is_that_of_scipys_matrix_root(rows):
    random = np.random.default_rng(3)
    one, other = random.normal(size=(rows, 8)) @ random.normal(size=(8, 8)), random.normal(size=(rows, 8)) + 0.5
    c1, c2 = np.cov(one, rowvar=False), np.cov(other, rowvar=False)
    root = scipy.linalg.sqrtm(c1 @ c2 + (0 if rows > 8 else 1e-14) * np.eye(8)).real
    direct = ((one.mean(0) - other.mean(0)) ** 2).sum() + np.trace(c1 + c2 - 2 * root)
    first, second = (moments(torch.from_numpy(part)) for part in (one, other))
    assert frechet_distance(first, second) == pytest.approx(direct, rel=1e-8 if rows > 8 else 1e-4)
    assert frechet_distance(first, first) == pytest.approx(0, abs=1e-6)


def test_fid_of_shifted_and_scaled_features_by_hand():
    eye = torch.eye(3, dtype=torch.float64)
    one, other = Moments(9, torch.zeros(3).double(), eye), Moments(9, torch.full((3,), 2.0).double(), 4 * eye)
    assert frechet_distance(one, other) == pytest.approx(3 * 2**2 + 3 * (2 - 1) ** 2)


def test_moments_of_parts_are_those_of_the_whole():
    features = torch.from_numpy(np.random.default_rng(4).normal(5, 2, size=(50, 4)))
    parts = [moments(part) for part in features.split([1, 30, 19])]
    got = combined(combined(parts[0], parts[1]), parts[2])
    assert got.rows == 50
    np.testing.assert_allclose(got.mean, features.mean(0), rtol=1e-12)
    np.testing.assert_allclose(got.covariance, np.cov(features.numpy(), rowvar=False), rtol=1e-10)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The file of a small classifier, as the command writes it."""
    path = tmp_path_factory.mktemp("classifiers") / "digits.safetensors"
    done = CliRunner().invoke(app, ["classifier", "digits", "--model", "mlp", "--set", "model.hidden=[32]", "--epochs",
                                    "40", "--device", "cpu", "--out", str(path)])
    assert done.exit_code == 0, done.output
    return path


def test_a_classifier_is_trained_kept_and_judges(trained):
    found = classifiers.load(trained)
    data = SOURCES["digits"]().load(0)
    assert found.about["data"] == "digits" and found.about["settings"] == {"hidden": [32]}
    assert found.about["accuracy"] == classifiers.accuracy(found, data.test) > 0.9
    features, classes = found.judge(data.test.inputs)
    assert features.shape[1] == 32 and classes.shape[1] == 10
    np.testing.assert_allclose(found.real.mean, found.judge(data.train.inputs)[0].detach().double().mean(0), rtol=1e-5)

    seen = {name: judged(found.judge, images.split(100)) for name, images in {
        "real": data.test.inputs, "one digit": data.test.inputs[data.test.targets == 4],
        "noise": torch.rand(450, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1}.items()}
    score = {name: inception_score(each.probabilities, 1)[0] for name, each in seen.items()}
    fid = {name: frechet_distance(each.moments, found.real) for name, each in seen.items()}
    assert score["real"] > 6 and score["one digit"] < 2 and score["noise"] < score["real"]
    assert found.about["score"] == pytest.approx(inception_score(seen["real"].probabilities, 10)[0], rel=1e-6)
    assert fid["real"] < fid["one digit"] and fid["real"] < fid["noise"]


def test_a_classifier_that_is_missing_damaged_or_of_another_shape_is_refused(trained, tmp_path, monkeypatch):
    with pytest.raises(SettingError, match="fedsaddle classifier DATA"):
        classifiers.load(tmp_path / "none.safetensors")
    monkeypatch.setenv("FEDSADDLE_CACHE", str(tmp_path))
    with pytest.raises(SettingError, match=r"`fedsaddle classifier mnist`.*--model lenet5"):  # the command to give
        classifiers.load(classifiers.usual_path("mnist"))
    (tmp_path / "cut.safetensors").write_bytes(trained.read_bytes()[:500])
    with pytest.raises(SettingError, match="cannot be read"):
        classifiers.load(tmp_path / "cut.safetensors")
    with pytest.raises(SettingError, match=r"\(1, 8, 8\).*\(1, 28, 28\)"):
        classifiers.load(trained).judge(torch.zeros(2, 1, 28, 28))
    for wrong in (["classifier", "quadratic"], ["classifier", "digits", "--model", "gru"]):
        assert isinstance(CliRunner().invoke(app, wrong).exception, SettingError)


OWN_GAN = """
from torch import nn
class Nets(nn.Module):
    def __init__(self):
        super().__init__()
        self.noise = 4
        self.generator = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Unflatten(1, (1, 8, 8)))
        self.discriminator = nn.Sequential(nn.Flatten(), nn.Linear(64, 1))
"""


def test_a_run_measures_its_images_and_so_does_the_command_afterwards(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_gan.py").write_text(OWN_GAN, encoding="utf-8")
    (tmp_path / "run.toml").write_text(f"""
        problem = "gan"
        model = "own_gan:Nets"
        algorithm = {{name = "parallel-sgda", asked = 4}}
        data = {{name = "digits", clients = 20}}
        run = {{rounds = 2, image_samples = 40, classifier = '{trained}'}}
    """, encoding="utf-8")
    done = CliRunner().invoke(app, ["run", "run.toml", "--out", "out"])
    assert done.exit_code == 0, done.output
    last = json.loads((tmp_path / "out" / "records.jsonl").read_text().splitlines()[-1])["measures"]["images"]
    assert 1 <= last["inception_score"] <= 10 and last["fid"] > 0
    shown = CliRunner().invoke(app, ["images", "out", "--samples", "40", "--classifier", str(trained)])
    assert f"fid: {last['fid']:.4f}" in shown.output, shown.output


@pytest.mark.parametrize("kind", ["auc", "pairwise", "agnostic", "robust", "clients"])
@pytest.mark.parametrize("norm", [None, "batch"])
def test_images_are_convolved_few_at_a_time_unless_they_touch_each_other(kind, norm):
    torch.manual_seed(2)
    two = kind in ("agnostic", "robust", "clients")
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3, affine=False, track_running_stats=False) if norm else nn.Identity(),
        nn.ReLU(), nn.Flatten(), nn.Linear(48, 2 if two else 1)).double()
    problem = {"auc": lambda: AUC(net, p=0.3), "pairwise": lambda: Pairwise(net, shares=(1.0, 1.0)),
               "robust": lambda: Robust(net, (1, 6, 6), steps=2)}.get(kind, lambda: Agnostic(net))()
    rows = Rows(torch.randn(120, 1, 6, 6).double(), (torch.arange(120) % 3 == 0).long())
    clients = Clients(*rows, RowRun(torch.tensor([0, 70]), torch.tensor([70, 50])))

    def looked():
        z = problem.first()
        found = by_client(problem, z, clients) if kind == "clients" else problem.measure(z, rows)
        return {name: pytest.approx(torch.as_tensor(value).tolist(), rel=1e-9) for name, value in found.items()}

    seen = []
    handle = net[0].register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    few = looked()
    handle.remove()
    assert max(seen) == (120 if norm else nets.IMAGES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nets, "IMAGES", 1000)
        assert {name: each.expected for name, each in looked().items()} == few
