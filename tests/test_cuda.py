"""On a GPU: the same draws, the same results as the reference on the CPU, the same twice, resumed, and as graphs."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from fedsaddle import testing
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.contracts import ALL, Cohort, Point
from fedsaddle.data.sources import SOURCES
from fedsaddle.engine import calibration, classifier
from fedsaddle.engine.programs import bodies
from fedsaddle.engine.programs.tracing import Untraceable
from fedsaddle.engine.training import one_round
from fedsaddle.maths import keys, streams
from fedsaddle.participation import Participation

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")


def test_draws_are_the_same_on_every_device():
    ids, rows = torch.arange(500), torch.arange(500) * 3 + 1
    key = keys.address(1, 2, 3)
    for device in ("cpu", "cuda"):
        stream = streams.fold(key, ids.to(device))
        drawn = streams.slots(stream, rows.to(device), 40).cpu()
        uniform = streams.uniform(stream[:, None], torch.arange(9, device=device)).cpu()
        if device == "cpu":
            expected = drawn, uniform
    assert torch.equal(drawn, expected[0]) and torch.equal(uniform, expected[1])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_cuda_equals_the_reference_on_the_cpu(name):
    for case in ALGORITHMS[name].cases:
        expected = testing.final_state(testing.trial(name), testing.CASES[case](), engine="reference")
        for chunk in (3, None):
            got = testing.final_state(testing.trial(name), testing.CASES[case](), chunk=chunk, device="cuda")
            testing.compare(got, expected, f"{case}, chunk {chunk}, on the GPU", 1e-9)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_same_twice_on_cuda(name):
    case = ALGORITHMS[name].cases[0]
    runs = [testing.final_state(testing.trial(name), testing.CASES[case](), device="cuda") for _ in range(2)]
    testing.compare(*runs, "two equal runs on the GPU", 0.0)


@pytest.mark.parametrize("name", ["codasca", "cdma-ada"])
def test_a_checkpoint_moves_between_devices(name, tmp_path):
    from fedsaddle.config import Run
    from fedsaddle.report.folder import RunFolder
    from fedsaddle.runs import carry_out

    case = testing.auc_case()
    expected = testing.final_state(testing.trial(name), case, Participation())
    folder, seen = RunFolder(tmp_path / "run"), []
    folder.create({})
    run = Run(rounds=testing.ROUNDS, evaluate_every=1)
    start = testing.job(testing.trial(name), case, Participation(), device="cuda")
    carry_out(start, run, folder, seen.append, stop=lambda: len(seen) >= 5)
    resumed = testing.job(testing.trial(name), case, Participation(), checkpoints=folder.checkpoints)
    assert resumed.progress.round == 5
    testing.compare(testing.finished(resumed), expected, "begun on the GPU, ended on the CPU", 1e-9)


@pytest.mark.parametrize("count", [1, 7, 40])
def test_draws_with_a_settled_reach_are_those_of_the_host(count):
    rows = torch.tensor([0, 1, 3, 7, 39, 40, 41, 56, 57, 320, 321, 1000, 100_000] * 20)
    stream = streams.fold(keys.address(1, 2, 3), torch.arange(len(rows)))
    got = streams.slots(stream.cuda(), rows.cuda(), count, far=streams.reach(rows, count))
    assert torch.equal(got.cpu(), streams.slots(stream, rows, count))


# Graphs.


def as_graphs(name, case="auc", execution="traced", participation=None, chunk=3, rounds=testing.ROUNDS, **settings):
    """A job whose works are captured."""
    return testing.job(testing.trial(name, **settings), testing.CASES[case](), participation or Participation(),
                       execution=execution, device="cuda", chunk=chunk, rounds=rounds)


def after(job, rounds, watch=lambda: None):
    """The server after so many rounds more, without an evaluation."""
    progress = job.progress
    for _ in range(rounds):
        server, _ = one_round(job.algorithm, job.federation, progress)
        progress = progress._replace(server=server, round=progress.round + 1)
        watch()
    return job._replace(progress=progress)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_traced_on_cuda_equals_the_reference_on_the_cpu(name):
    for case in ALGORITHMS[name].cases:
        testing.check_traced(testing.trial(name), testing.CASES[case](), device="cuda")


@pytest.mark.parametrize("name", ["cdma-one", "codasca"])
def test_compiled_on_cuda_equals_the_reference_on_the_cpu(name):
    pytest.importorskip("triton", reason="compiled programs need triton on a GPU")
    testing.check_traced(testing.trial(name), testing.auc_case(), execution="compiled", device="cuda")


@pytest.mark.parametrize("execution", ["traced", "compiled"])
@pytest.mark.parametrize("name", ["cdma-ada", "codasca", "drfa", "extra-step-local-sgd"])
def test_steps_that_are_captured_one_by_one_equal_the_reference_on_the_cpu(name, execution, monkeypatch):
    """As those of works of hundreds of steps are."""
    if execution == "compiled":
        pytest.importorskip("triton", reason="compiled programs need triton on a GPU")
    monkeypatch.setattr(bodies, "LONG", 1)
    testing.check_traced(testing.trial(name), testing.CASES[ALGORITHMS[name].cases[0]](), execution=execution,
                         device="cuda")


@pytest.mark.parametrize("name", ["codasca", "cdma-ada", "drfa", "cycp-pairwise"])
def test_traced_runs_are_the_same_twice_on_cuda(name):
    if name not in ALGORITHMS:
        pytest.skip(f"there is no {name}")
    case = ALGORITHMS[name].cases[0]
    runs = [testing.finished(as_graphs(name, case, participation=testing.FLAKY)) for _ in range(2)]
    testing.compare(*runs, "two equal runs from graphs", 0.0)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "codasca", "cdma-ada"])
def test_graphs_are_captured_once(name):
    """Every client is asked, so shapes stay; whatever changes from round to round is copied into the same graphs."""
    job, counts = as_graphs(name, asked=10, chunk=None), []
    job = after(job, 8, lambda: counts.append(len(job.federation.engine.captured)))
    assert counts[0] > 0 and counts[1:] == counts[1:2] * 7
    expected = testing.job(testing.trial(name, asked=10), testing.auc_case(), Participation(), engine="reference")
    testing.compare(job.progress.server, after(expected, 8).progress.server, "the same graphs again and again", 1e-9)


class Ask(NamedTuple):
    z: Point
    eta: object


class Rows(NamedTuple):
    mean: torch.Tensor
    loss: torch.Tensor


def goes_to_the_host(oracle, ask, client, data):
    """Traceable, but no graph can hold a copy that the host waits for."""
    g = oracle.gradient(ask.z, data.minibatches[0])
    return ask.z.step(Point(g.x.cpu().to(g.x.device), g.y), ask.eta, ask.eta), client


def looks_at_all_rows(oracle, ask, client, data):
    batch = data.full
    return Rows((batch.weight[:, None] * batch.inputs).sum(0), oracle.loss(ask.z, batch) * ask.eta), client


def test_a_work_that_cannot_be_captured_is_computed_eagerly_and_told():
    job = as_graphs("fedavg")
    job.federation.begin(0)
    z, everyone = job.progress.server.z, job.federation.everyone()
    got = [job.federation.average(goes_to_the_host, Ask(z, 0.1 + k), everyone, 2).mean for k in range(2)]
    host = testing.job(testing.trial("fedavg"), testing.auc_case(), Participation(), engine="reference")
    host.federation.begin(0)
    z = host.progress.server.z
    for k, one in enumerate(got):
        expected = host.federation.average(goes_to_the_host, Ask(z, 0.1 + k), everyone, 2).mean
        testing.compare(one, expected, "what fell back", 1e-9)
    found = job.federation.engine.calibration.report["goes_to_the_host, 2 minibatches"]
    assert found["kind"] == "eager" and found["why"].startswith("traced does not work: it cannot be captured")
    rest = testing.finished(as_graphs("fedavg"))  # nothing is left broken behind it
    testing.compare(rest, testing.finished(as_graphs("fedavg", execution="eager")), "captured afterwards", 1e-9)


@pytest.mark.parametrize("chunk", [1, 3, None])
def test_results_of_one_graph_do_not_overwrite_each_other(chunk):
    """Collected rows of all chunks are those of their clients, though every chunk is a replay of few graphs."""
    job, clients = as_graphs("fedavg", chunk=chunk), testing.auc_case()[1]
    ids = torch.tensor([7, 0, 4, 9, 2, 1, 8])
    cohort = Cohort(ids, torch.ones(7, dtype=torch.int64), torch.ones(7).double())
    job.federation.begin(0)
    ask = Ask(job.progress.server.z, torch.arange(7.0, dtype=torch.float64, device="cuda"))
    got = job.federation.average(looks_at_all_rows, ask, cohort, ALL, personal=("eta",), collect=("mean", "loss")).each
    own = [clients.inputs[s : s + n].double().mean(0) for s, n in
           zip(clients.run.start[ids].tolist(), clients.run.size[ids].tolist(), strict=True)]
    testing.compare(got.mean, torch.stack(own), "means of all rows", 1e-12)
    assert float(got.loss[0]) == 0 and bool((got.loss[1:] != 0).all())


@pytest.mark.parametrize("name", ["fedavg", "cdma-nc", "cdma-ada"])
def test_the_host_does_not_wait_for_a_round(name):
    """Once graphs are captured a round is only queued; torch raises where the host would wait."""
    job = after(as_graphs(name, asked=10, chunk=None), 3)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        job = after(job, 2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = testing.job(testing.trial(name, asked=10), testing.auc_case(), Participation(), engine="reference")
    testing.compare(job.progress.server, after(expected, 5).progress.server, "five rounds", 1e-9)


def test_auto_tries_graphs_on_cuda(monkeypatch):
    monkeypatch.setattr(calibration, "WORTH_TRACING", 0.0)
    monkeypatch.setattr(calibration, "WORTH_COMPILING", float("inf"))
    for name in ("codasca", "cdma-one"):
        job = as_graphs(name, execution="auto", participation=testing.FLAKY)
        expected = testing.final_state(testing.trial(name), testing.auc_case(), engine="reference")
        testing.compare(testing.finished(job), expected, f"{name}, auto on the GPU", 1e-9)
        for work, found in job.federation.engine.calibration.report.items():
            assert {"eager 3", "traced 3"} <= found.get("seconds", {}).keys(), work


def test_a_classifier_trained_by_replays_is_the_one_trained_batch_by_batch(monkeypatch):
    data, replays = SOURCES["digits"]().load(0), []

    class Counted(classifier.Captured):
        def __call__(self, *values):
            replays.append(len(values[0]))
            return super().__call__(*values)

    def refused(*given):
        raise Untraceable("not in this test")

    def weights():
        trained = classifier.train_classifier(data, "digits", "mlp", {"hidden": [16]}, epochs=3, batch_size=100,
                                              device="cuda")
        return torch.nn.utils.parameters_to_vector(trained.net.parameters())

    monkeypatch.setattr(classifier, "Captured", Counted)
    replayed = weights()
    whole = len(data.train.targets) // 100
    assert replays == [100] * 3 * whole and len(data.train.targets) % 100  # the last batch of a pass is shorter
    monkeypatch.setattr(classifier, "Captured", refused)
    torch.testing.assert_close(replayed, weights(), rtol=1e-3, atol=1e-4)
