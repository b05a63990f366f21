"""How clients are computed never changes what comes out: traced, compiled, in chunks, by several processes, resumed."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.distributed as dist

from fedsaddle import testing
from fedsaddle.assemble import assemble
from fedsaddle.config import Run
from fedsaddle.contracts import ALL, Cohort, Draw, Point
from fedsaddle.engine import calibration, crew, simulation, team, training
from fedsaddle.engine.calibration import Calibration
from fedsaddle.engine.programs import convolutions, segments, spreading, tracing
from fedsaddle.engine.programs.compiling import compiled_function
from fedsaddle.engine.programs.products import write_out_small_products
from fedsaddle.engine.programs.spreading import spread
from fedsaddle.engine.programs.tracing import Opaque, simplify, trace
from fedsaddle.engine.ranks import PartnerLost, Ranks
from fedsaddle.engine.training import one_round
from fedsaddle.maths.trees import leaves
from fedsaddle.participation import Participation
from fedsaddle.report.folder import RunFolder
from fedsaddle.runs import carry_out

torch.set_num_threads(1)
LINUX = pytest.mark.skipif(not crew.possible(), reason="workers are forked on Linux alone")
COMPILER = pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler, which compiled programs need on a CPU")


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Processes that wait for each other in vain fail instead of standing still."""
    monkeypatch.setattr(crew, "PATIENCE", timedelta(seconds=60))


def start(method, case="auc", checkpoints=None, participation=None, **run):
    """A job, and its settings: eager and alone where nothing else is said."""
    how = Run(**{"rounds": 8, "batch_size": 4, "dtype": "float64", "seed": 5, "evaluate_every": 100, "workers": 1,
                 "execution": "eager", "weights": "size", **run})
    problem, clients = testing.CASES[case]()
    return assemble(method, problem, clients, None, participation or Participation(), how, checkpoints), how


def report(job):
    return job.federation.engine.calibration.report


def new_folder(path, **known):
    folder = RunFolder(path)
    folder.create({})
    if known:
        folder.keep_calibration(known)
    return folder


# Programs.


@pytest.mark.parametrize("name", ["cdma-nc", "codasca"])
def test_any_number_of_steps_is_the_same_few_functions(name):
    counts = []
    for steps in (3, 40):
        method = testing.trial(name, steps=steps, asked=None)
        ends = [start(method, "quadratic", rounds=1, execution=way)[0] for way in ("eager", "traced")]
        testing.compare(*(testing.finished(job) for job in ends), f"{steps} steps, traced", 1e-12)
        counts.append(len(ends[1].federation.engine.bodies.functions["traced"]))
    assert counts[0] == counts[1] <= 4


def test_however_many_steps_a_work_has_its_gradients_are_computed_as_often_while_it_is_traced(monkeypatch):
    plain, calls, counts = Opaque.__init__, [], []

    def counting(self, function, kind):
        plain(self, lambda *values: calls.append(0) or function(*values), kind)

    monkeypatch.setattr(Opaque, "__init__", counting)
    for steps in (3, 40):
        calls.clear()
        job, _ = start(testing.trial("cdma-nc", steps=steps, asked=None), rounds=1, execution="traced")
        one_round(job.algorithm, job.federation, job.progress)
        counts.append(len(calls))
    assert counts[0] == counts[1] > 0


def test_what_is_computed_twice_is_computed_once_but_never_what_is_drawn():
    """Two losses of one net, say, have its outputs in common."""

    def function(x):
        return [x.tanh().sum(), 2 * x.tanh(), torch.rand_like(x), torch.rand_like(x)]

    x = torch.randn(3)
    module = trace(function, [x])
    assert operations(module, "tanh") == operations(module, "rand_like") == 2
    simplify(module)
    assert (operations(module, "tanh"), operations(module, "rand_like")) == (1, 2)
    total, twice, one, other = module(x)
    assert torch.equal(twice, 2 * x.tanh()) and torch.equal(total, x.tanh().sum()) and not torch.equal(one, other)


def test_programs_hold_no_values():
    """A method with a random number of steps makes a program for every number: tensors must not come with each."""
    job, _ = start(testing.trial("catalyst-scaffold-s", asked=3), rounds=40, execution="traced")
    bodies, size, held, made = job.federation.engine.bodies, job.progress.server.z.x.numel(), [], []
    for count in (4, 14):
        walk = training.rounds(job.algorithm, job.federation, job.progress, job.plan, None)
        next(itertools.islice(walk, count - 1, None))
        gc.collect()
        held.append(sum(type(one) is torch.Tensor and one.numel() == size for one in gc.get_objects()))
        made.append(len(bodies.made))
    assert made[1] > made[0] + 3 and held[1] < held[0] + 3


def test_of_a_convolution_only_the_gradients_that_are_used_are_computed():
    """A net whose way back is asked once by its weights and once by its inputs, as a GAN's discriminator."""

    def function(x, w):
        _, back = torch.func.vjp(torch.nn.functional.conv2d, x, w)
        above = torch.ones(2, 3, 4, 4)
        return [back(above)[1], back(2 * above)[0]]

    x, w = torch.randn(2, 1, 6, 6), torch.randn(3, 1, 3, 3)
    module = trace(function, [x, w])
    before = module(x, w)
    simplify(module)
    masks = [node.args[-1][:2] for node in module.graph.nodes if "convolution_backward" in str(node.target)]
    assert masks == [[False, True], [True, False]]
    assert all(torch.equal(one, other) for one, other in zip(module(x, w), before, strict=True))


def written_alone(x):
    return [(2 * x).reciprocal_()]


def written_with_its_type(x):
    return [(2 * x).gt_(0)]


def written_beside_a_view(x):
    y = 2 * x
    return [y.view(-1), y.reciprocal_()]


def written_through_a_view(x):
    y = 2 * x
    return [y.view(-1).reciprocal_(), y]


@pytest.mark.parametrize("function, recordings", [
    (written_alone, 1), (written_with_its_type, 2), (written_beside_a_view, 2), (written_through_a_view, 2)])
def test_what_is_written_in_place_is_traced_as_it_happens(function, recordings, monkeypatch):
    calls, plain = [], tracing._recorded
    monkeypatch.setattr(tracing, "_recorded", lambda *given: calls.append(0) or plain(*given))
    x = torch.randn(2, 3)
    module = trace(function, [x])
    for found, expected in zip(module(x), function(x), strict=True):
        assert found.dtype == expected.dtype and torch.equal(found, expected)
    assert len(calls) == recordings and not any("_." in str(node.target) for node in module.graph.nodes)


def operations(module, name):
    return sum(f"aten.{name}." in str(node.target) for node in module.graph.nodes)


def test_gradients_that_do_not_need_each_other_share_a_segment(monkeypatch):
    cuts, plain = [], segments.cut_at_gradients

    def watched(graph):
        cuts.append(plain(graph))
        return cuts[-1]

    monkeypatch.setattr(segments, "cut_at_gradients", watched)
    job, _ = start(testing.trial("cdma-one", steps=4, asked=None), "quadratic", rounds=1, execution="traced")
    testing.finished(job)
    gradients = [[sum(isinstance(node.target, Opaque) for node in one.nodes) for one in cut.segments] for cut in cuts]
    assert sorted(gradients) == [[2], [2, 2, 2, 2]]  # phase 1 at z and the previous z; each local step at z and go.z


def test_what_is_one_tensor_in_the_first_round_may_be_two_later():
    """CDMA's Look has z twice in round 0; the program made for it serves later rounds."""
    method = testing.trial("cdma-ada", asked=None)
    job, _ = start(method, execution="traced")
    engine, progress, made = job.federation.engine, job.progress, []
    for _ in range(5):
        server, _ = one_round(method, job.federation, progress)
        progress = progress._replace(server=server, round=progress.round + 1)
        made.append(len(engine.bodies.made))
    assert len(set(made)) == 1
    expected, _ = start(method, rounds=5, engine="reference")
    testing.compare(progress.server, testing.finished(expected).server, "traced in round 0", 1e-10)


class Ask(NamedTuple):
    z: Point
    eta: object


def scaled_by(scale):
    def closure(oracle, ask, client, data):
        return ask.z.step(oracle.gradient(ask.z, data.minibatches[0]), scale * ask.eta, ask.eta), client

    return closure


class Unfrozen:
    scale = 2.0

    def method(self, oracle, ask, client, data):
        return ask.z.step(oracle.gradient(ask.z, data.minibatches[0]), self.scale * ask.eta, ask.eta), client


def changes_its_batch(oracle, ask, client, data):
    batch = data.minibatches[0]
    batch.inputs.mul_(2.0)
    return ask.z.step(oracle.gradient(ask.z, batch), ask.eta, ask.eta), client


def reads_a_number(oracle, ask, client, data):
    eta = ask.eta.item()
    return ask.z.step(oracle.gradient(ask.z, data.minibatches[1]), eta, eta), client


def changes_its_own(oracle, ask, client, data):
    g = oracle.gradient(ask.z, data.minibatches[0])
    x = g.x.clone()
    x.mul_(ask.eta).add_(1.0)
    return Point(x, g.y), client


def answers(work, batches=2, **run):
    """Of two asks of one work in a row, with other values."""
    job, _ = start(testing.trial("fedavg"), chunk=4, **run)
    job.federation.begin(0)
    z, everyone = job.progress.server.z, job.federation.everyone()
    return [job.federation.average(work, Ask(z + z * k, 0.1 + k), everyone, batches).mean for k in range(2)], job


@pytest.mark.parametrize("work, reason", [
    (scaled_by(3.0), "neither a plain function nor a method of a frozen dataclass"),
    (Unfrozen().method, "neither a plain function nor a method of a frozen dataclass"),
    (changes_its_batch, "changes a tensor in place"),
    (reads_a_number, "_local_scalar_dense"),
], ids=["closure", "unfrozen", "in place", "item"])
def test_a_work_that_no_trace_can_hold_is_computed_eagerly_and_told(work, reason):
    expected, _ = answers(work, engine="reference")
    got, job = answers(work, execution="traced")
    testing.compare(tuple(got), tuple(expected), "what fell back", 1e-12)
    (found,) = (one for name, one in report(job).items() if name.startswith(work.__qualname__))
    assert found["kind"] == "eager" and found["why"].startswith("traced does not work: ") and reason in found["why"]
    assert not job.federation.engine.bodies.functions.get("traced")


def without_a_gradient(oracle, ask, client, data):
    x = (data.minibatches[0].weight[:, None] * data.minibatches[0].inputs).sum(0)
    x.mul_(ask.eta).add_(1.0)
    return Point(x, x), client


def test_a_work_may_change_its_own_tensors_in_place():
    for work in (changes_its_own, without_a_gradient):
        expected, _ = answers(work, engine="reference")
        got, job = answers(work, execution="traced")
        testing.compare(tuple(got), tuple(expected), work.__name__, 1e-12)
    assert report(job)["without_a_gradient, 2 minibatches"]["kind"] == "traced"


@pytest.mark.parametrize("execution", ["eager", "traced"])
def test_a_short_last_chunk_is_summed_and_written_once(execution):
    method = testing.trial("codasca", asked=5)
    job, _ = start(method, rounds=3, execution=execution, chunk=4)
    written, states, plain = [], job.federation.engine.states, job.federation.engine.states.write

    def write(ids, new):
        written.append(ids.tolist())
        assert all(len(leaf) == len(ids) for leaf in leaves(new))
        plain(ids, new)

    states.write = write
    got = testing.finished(job)
    assert [len(ids) for ids in written] == [4, 1] * 3
    assert all(len({*one, *other}) == 5 for one, other in zip(written[::2], written[1::2], strict=True))
    expected = testing.finished(start(method, rounds=3, engine="reference")[0])
    testing.compare(got, expected, "five clients in chunks of four", 1e-12)


class Rows(NamedTuple):
    mean: torch.Tensor
    loss: torch.Tensor
    total: torch.Tensor


def looks_at_all_rows(oracle, ask, client, data):
    batch = data.full
    mean = (batch.weight[:, None] * batch.inputs).sum(0)
    return Rows(mean, oracle.loss(ask.z, batch) * ask.eta, mean), client


@pytest.mark.parametrize("execution", ["eager", "traced"])
@pytest.mark.parametrize("chunk", [1, 3, 4, None])
def test_collected_fields_are_in_the_order_asked_in_however_unequal_clients(chunk, execution):
    """Clients of 1 to 60 rows are computed by size; their means are those of NumPy, in the order of the cohort."""
    job, _ = start(testing.trial("fedavg"), execution=execution, chunk=chunk)
    clients, z = testing.auc_case()[1], job.progress.server.z
    ids = torch.tensor([7, 0, 4, 9, 2, 1, 8])
    cohort = Cohort(ids, torch.ones(7, dtype=torch.int64), torch.arange(1.0, 8.0).double())
    job.federation.begin(0)
    got = job.federation.average(looks_at_all_rows, Ask(z, torch.arange(7.0).double()), cohort, ALL,
                                 personal=("eta",), collect=("mean", "loss"))
    own = np.stack([clients.inputs[s : s + n].double().numpy().mean(0) for s, n in
                    zip(clients.run.start[ids].tolist(), clients.run.size[ids].tolist(), strict=True)])
    testing.compare(got.each.mean, own, "means of all rows", 1e-12)
    testing.compare(got.mean.total, np.arange(1, 8) / 28 @ own, "their mean by weight", 1e-12)
    assert got.each.loss[0] == 0 and bool((got.each.loss[1:] != 0).all())  # personal rows stay with their clients
    assert got.ids.tolist() == ids.tolist()


def test_minibatches_and_all_rows_in_one_ask():
    def both(execution, **more):
        job, _ = start(testing.trial("fedavg"), execution=execution, **more)
        job.federation.begin(0)
        ask = Ask(job.progress.server.z, 0.1)
        return job.federation.average(steps_on_both, ask, job.federation.cohort(7), Draw(2, full=True)).mean

    testing.compare(both("traced", chunk=3), both("eager", engine="reference"), "two kinds of batches", 1e-12)


def steps_on_both(oracle, ask, client, data):
    z = ask.z
    for batch in (*data.minibatches, data.full):
        z = z.step(oracle.gradient(z, batch), ask.eta, ask.eta)
    return z, client


def test_spreading_keeps_values():
    random = torch.Generator().manual_seed(0)
    a, b, c, d = (torch.randn(3, n, generator=random, dtype=torch.float64) for n in (2, 5, 4, 3))
    row, whole, column = torch.randn(7, generator=random), torch.randn(3, 7, generator=random), torch.randn(3, 1)

    def steps(a, b, c, d, row, whole, column, eta):
        g, other = torch.cat([a, b], 1), torch.cat([c, d], -1)  # cut at 2 and at 4
        z = whole - eta * g + row
        z = torch.add(z, other, alpha=0.5) / column
        return -z * 3.0, z - g, torch.cat([a, b]) if a.shape == b.shape else g, other

    values = [a, b, c, d, row.double(), whole.double(), column.double(), torch.tensor(0.3, dtype=torch.float64)]
    module = trace(steps, values)
    expected = module(*values)
    spread(module)
    assert all(torch.equal(one, other) for one, other in zip(module(*values), expected, strict=True))
    spreading.fill_up_concatenations(module)
    assert all(torch.equal(one, other) for one, other in zip(module(*values), expected, strict=True))
    joined = [node for node in module.graph.nodes if node.target is torch.ops.aten.cat.default]
    assert joined and all(len(node.args[0]) > spreading.JOINED for node in joined)
    for one, other in zip(steps(*values), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    for node in module.graph.nodes:
        if node.target in spreading.ELEMENTWISE:
            assert torch.ops.aten.cat.default not in [one.target for one in node.all_input_nodes]


def test_spreading_leaves_other_concatenations_alone():
    def stacked(a, b):
        return (torch.cat([a, b]) * 2, torch.cat([a[None], b[None]], 1) * 2)

    values = [torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)]
    module = trace(stacked, values)
    spread(module)
    assert all(torch.equal(one, other) for one, other in zip(module(*values), stacked(*values), strict=True))


@pytest.mark.parametrize(("rows", "inner", "columns", "out"), [
    (200, 10, 784, True), (10, 784, 10, True), (10, 784, 200, False), (1, 3, 1, True), (64, 17, 64, False)])
def test_small_products_are_written_out(rows, inner, columns, out):
    random = torch.Generator().manual_seed(0)
    values = [torch.randn(3, rows, inner, generator=random, dtype=torch.float64),
              torch.randn(3, columns, inner, generator=random, dtype=torch.float64).transpose(1, 2)]
    module = trace(lambda a, b: [torch.bmm(a, b) + 1], values)
    write_out_small_products(module)
    torch.testing.assert_close(module(*values)[0], torch.bmm(*values) + 1, rtol=1e-12, atol=1e-12)
    assert (torch.ops.aten.bmm.default in [node.target for node in module.graph.nodes]) != out


@COMPILER
def test_compiled_equals_the_reference():
    method = testing.trial("cdma-nc", steps=3, asked=5)
    job, _ = start(method, rounds=3, execution="compiled", chunk=4)
    got = testing.finished(job)
    testing.compare(got, testing.finished(start(method, rounds=3, engine="reference")[0]), "compiled", 1e-9)
    assert [one["kind"] for one in report(job).values()] == ["compiled"] * len(report(job))
    assert len(job.federation.engine.bodies.functions["compiled"]) <= 3


@COMPILER
@pytest.mark.parametrize(("numbers", "looked_up"), [(10, 1), (100_000, 0)])
def test_what_was_compiled_once_is_found_again_unless_it_holds_much_data(numbers, looked_up, monkeypatch, tmp_path):
    from torch._dynamo.utils import counters

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    rows = torch.arange(float(numbers))

    def gathered(places: torch.Tensor, scale: torch.Tensor) -> list[torch.Tensor]:
        return [rows[places] * scale + 1]

    given = [torch.tensor([3, 1]), torch.tensor([2.0, 5.0])]
    found = []
    for _ in range(2):
        before = dict(counters["inductor"])
        run = compiled_function(gathered, given)
        found.append([counters["inductor"][f"fxgraph_cache_{what}"] - before.get(f"fxgraph_cache_{what}", 0)
                      for what in ("miss", "hit")])
        assert torch.equal(run(*given)[0], torch.tensor([7.0, 6.0]))
    assert found == [[looked_up, 0], [0, looked_up]]
    rows += 1  # other data are another function
    assert torch.equal(compiled_function(gathered, given)(*given)[0], torch.tensor([9.0, 11.0]))


def test_what_does_not_compile_is_computed_eagerly_and_told(monkeypatch):
    from torch._inductor import compile_fx

    def broken(*arguments):
        raise FileNotFoundError("no compiler here")

    monkeypatch.setattr(compile_fx, "compile_fx_inner", broken)
    method = testing.trial("cdma-nc", asked=5)
    job, _ = start(method, rounds=2, execution="compiled", chunk=10)  # of all ten, in the preparation: no padding
    eager, _ = start(method, rounds=2, chunk=10)
    testing.compare(testing.finished(job), testing.finished(eager), "not compiled", 0.0)
    found = report(job)["CDMA.local_steps, 3 minibatches"]
    assert found["kind"] == "eager" and "compiled does not work: it does not compile: FileNotFoundError" in found["why"]


# Calibration.

WORK = "CDMA.local_steps, 3 minibatches"


def test_auto_tries_the_ways_and_tells_their_seconds(monkeypatch, tmp_path):
    monkeypatch.setattr(calibration, "WORTH_TRACING", 0.0)
    monkeypatch.setattr(calibration, "WORTH_COMPILING", float("inf"))
    monkeypatch.setattr(calibration, "WORTH", 0.0)  # however long a preparation takes
    monkeypatch.setattr(calibration, "CHUNKS", {"cpu": (4,)})
    method = testing.trial("cdma-one", asked=None)
    job, how = start(method, "quadratic", rounds=4, execution="auto")
    got = carry_out(job, how, folder := new_folder(tmp_path / "run"))
    expected = carry_out(*start(method, "quadratic", rounds=4))
    testing.compare((got.server, got.traffic), (expected.server, expected.traffic), "auto against eager", 1e-9)
    for name in (WORK, "CDMA.collect_gradient, 0 minibatches and all rows"):
        found = report(job)[name]
        assert list(found["seconds"]) == ["eager 4096", "traced 4096", "traced 4"]  # as many as memory allows
        assert all(seconds > 0 for seconds in found["seconds"].values())
        assert f"{found['kind']} {found['chunk']}" == min(found["seconds"], key=found["seconds"].get)
        assert found["why"] == "quickest of those tried" and found["clients"] == 10
    assert folder.calibration() == {"processes": 1, "works": report(job)}


@pytest.mark.parametrize("many", [512, 4], ids=["after two answers", "at once"])
def test_trying_keeps_no_state(many, monkeypatch):
    """Ways are tried on real asks of stateful clients; their new states are thrown away."""
    monkeypatch.setattr(calibration, "MANY", many)
    monkeypatch.setattr(calibration, "WORTH_TRACING", 0.0)
    monkeypatch.setattr(calibration, "WORTH_COMPILING", float("inf"))
    method = testing.trial("codasca", asked=6)
    got, expected = (testing.finished(start(method, execution=way, chunk=4)[0]) for way in ("auto", "eager"))
    testing.compare(got, expected, "auto against eager", 1e-9)


class Timed:
    """A computer whose answers take as long as `cost` says, by its own clock."""

    device = torch.device("cpu")

    def __init__(self, cost, chunk, operations=10, ranks=None):
        self.cost, self.chunk, self.length, self.ranks, self.now = cost, chunk, operations, ranks or Ranks(), 0.0

    def automatic(self, ask):
        return self.chunk

    def operations(self, ask):
        return self.length

    def compute(self, ask, share, way, keep=True):
        assert not keep
        self.now += self.cost(share, way)


def tried_by(computer, monkeypatch, clients, rounds, eager=None):
    """The way that is chosen, and the seconds of all that were tried. eager: of an answer given before."""
    monkeypatch.setattr(calibration, "time", SimpleNamespace(perf_counter=lambda: computer.now))
    ask = SimpleNamespace(work=looks_at_all_rows, draw=ALL, ids=torch.arange(clients))
    ways, name = Calibration(), calibration.name_of(ask)
    ways.rounds, ways.seconds = rounds, {} if eager is None else {name: eager}
    return ways.way(computer, ask, ask.ids), ways.report[name]["seconds"]


def test_of_very_many_clients_a_sample_tells(monkeypatch):
    """Answering 20,000 clients eagerly, only to time it, would take longer than the whole run needs."""
    computed = []

    def cost(share, way):
        computed.append(len(share))
        return len(share) * {"eager": 0.01, "traced": 0.004, "compiled": 0.002}[way.kind] * (2 - 1 / way.chunk)

    way, found = tried_by(Timed(cost, 32, operations=100), monkeypatch, 20_000, rounds=2)
    assert way == ("compiled", 1) and set(computed) == {64}
    assert found["eager 32"] == pytest.approx(20_000 * 0.01 * (2 - 1 / 32)) and found["compiled 1"] == pytest.approx(40)


def test_of_clients_with_very_much_to_do_one_tells(monkeypatch):
    """512 local steps: an answer takes 36 s eagerly, and would be given eight times only to find out."""
    computed = []

    def cost(share, way):
        computed.append(len(share))
        return len(share) * {"eager": 2.25, "traced": 1.0, "compiled": 0.375}[way.kind]

    way, found = tried_by(Timed(cost, 1, operations=100), monkeypatch, 16, rounds=10, eager=36.0)
    assert way == ("compiled", 1) and set(computed) == {1}
    assert found == {"eager 1": 36.0, "traced 1": 16.0, "compiled 1": 6.0}


@pytest.mark.parametrize(("seconds", "answers"), [(0.5, 2), (6.0, 1)])
def test_a_long_answer_needs_no_second_one_to_be_timed(seconds, answers):
    ways, computer = Calibration(), Timed(None, 1)
    ask = SimpleNamespace(work=looks_at_all_rows, draw=ALL, ids=torch.arange(4))
    for _ in range(answers):
        assert ways.way(computer, ask, ask.ids) is None
        ways.tell(computer, ask, seconds)
    assert ways.way(computer, ask, ask.ids) is not None  # no rounds are to come: nothing is tried


@pytest.mark.parametrize("operations, rounds, tried", [
    (500, 100, ["eager 8", "traced 8", "traced 4", "traced 1", "compiled 8"]),  # 20 s of compiling, 80 s to come
    (500, 70, ["eager 8", "traced 8", "traced 4", "traced 1"]),
    (5000, 700, ["eager 8", "traced 8", "traced 4", "traced 1"]),  # a recurrent net: minutes
    (50, 100, ["eager 8", "traced 8", "traced 4", "traced 1", "compiled 8", "compiled 4", "compiled 1"]),
])
def test_compiling_is_tried_where_the_length_of_the_code_leaves_a_gain(operations, rounds, tried, monkeypatch):
    """Eager 1 s, traced 0.8 s, compiled 0.4 s an answer; compiling takes 0.04 s for an operation."""
    prepared = set()

    def cost(share, way):
        first = way not in prepared
        prepared.add(way)
        return {"eager": 1.0, "traced": 0.8, "compiled": 0.4}[way.kind] + \
            (0.04 * operations if first and way.kind == "compiled" else 0)

    _, found = tried_by(Timed(cost, 8, operations), monkeypatch, 8, rounds, eager=1.0)
    assert list(found) == tried


def test_chunks_are_of_equal_size_where_not_all_fit(monkeypatch):
    """A short last chunk would be filled up: with 85 at once, 100 clients would cost as much as 170."""
    job, _ = start(testing.trial("fedavg"))
    engine = job.federation.engine
    ask = SimpleNamespace(draw=Draw(3), message=job.progress.server.z, ids=torch.arange(100))
    monkeypatch.setattr(simulation, "CHUNK_CLIENTS", 85)
    assert engine.automatic(ask) == 50
    ask.ids = torch.arange(85)
    assert engine.automatic(ask) == 85
    ask.ids = torch.arange(3)
    assert engine.automatic(ask) == 85
    ask.ids = torch.arange(1000)
    assert engine.automatic(ask) == 84  # twelve


@pytest.mark.parametrize("rows, clients, fits", [
    (32, 10, True), (32, 1023, True), (32, 1024, False), (1, 65536, False)])
def test_convolutions_of_more_places_than_32_bits_count_are_left_to_the_library(rows, clients, fits):
    side, channels = (32, 64) if rows == 32 else (4, 1)
    assert convolutions.fits([rows, clients, channels, side, side, channels, side, side, 3, 3, 1, 1]) == fits


@pytest.mark.parametrize("kind, device, clients, computed", [
    ("traced", "cpu", 5, 5), ("traced", "cpu", 9, 10), ("traced", "cpu", 10, 10), ("traced", "cpu", 16, 16),
    ("traced", "cpu", 100, 112), ("traced", "cpu", 300, 200), ("compiled", "cpu", 5, 6), ("compiled", "cpu", 9, 12),
    ("compiled", "cpu", 16, 16), ("compiled", "cpu", 3, 3), ("traced", "cuda", 5, 6), ("traced", "cuda", 9, 12)])
def test_few_are_computed_for_nothing(kind, device, clients, computed):
    """Numbers of clients near each other share a program; 5 of them cost no more than 6."""
    everyone = torch.arange(clients)
    chunk = simulation._padded(everyone[:200], calibration.Way(kind, 200), clients, device)
    assert len(chunk) == computed and chunk[: min(clients, 200)].tolist() == everyone[:200].tolist()


def test_smaller_chunks_are_not_tried_once_they_are_plainly_slower(monkeypatch):
    computer = Timed(lambda share, way: len(share) * {50: 0.01, 16: 0.011, 4: 0.02, 1: 0.001}[way.chunk], 50, 1000)
    _, found = tried_by(computer, monkeypatch, 100, rounds=50, eager=1.0)
    assert list(found) == ["eager 50", "traced 50", "traced 16", "traced 4"]


def test_the_length_of_traced_code_does_not_depend_on_the_number_of_steps():
    lengths = {}
    for name in ("cdma-one", "fedavg"):
        for steps in (2, 7):
            job, how = start(testing.trial(name, steps=steps), rounds=1, execution="traced")
            carry_out(job, how)
            lengths[name, steps] = max(body.operations for body in job.federation.engine.bodies.made.values())
    assert lengths["fedavg", 2] == lengths["fedavg", 7] > 10
    assert lengths["cdma-one", 2] == lengths["cdma-one", 7] > lengths["fedavg", 2]


def test_a_way_that_does_not_work_is_told_and_not_chosen(monkeypatch):
    monkeypatch.setattr(calibration, "WORTH_TRACING", 0.0)
    monkeypatch.setattr(calibration, "WORTH_COMPILING", float("inf"))
    work = scaled_by(3.0)
    job, _ = start(testing.trial("fedavg"), execution="auto")
    job.federation.begin(0)
    z, everyone = job.progress.server.z, job.federation.everyone()
    for _ in range(3):  # one warms up, one is timed, one tries
        job.federation.average(work, Ask(z, 0.1), everyone, 2)
    found = report(job)[f"{work.__qualname__}, 2 minibatches"]
    assert found["kind"] == "eager" and found["seconds"]["traced"].startswith("does not work: it is neither a plain")


def test_a_short_run_tries_nothing():
    job, how = start(testing.trial("cdma-one"), rounds=3, execution="auto")
    carry_out(job, how)
    assert report(job)[WORK] == {"kind": "eager", "chunk": 4096, "why": "too little to do to try others", "clients": 4,
                                 "seconds": {}}
    assert not job.federation.engine.bodies.made


@pytest.mark.parametrize("execution, chunk", [("eager", 3), ("traced", 3), ("traced", None)])
def test_settings_are_obeyed(execution, chunk):
    job, how = start(testing.trial("cdma-one", asked=None), "quadratic", rounds=2, execution=execution, chunk=chunk)
    carry_out(job, how)
    assert len(report(job)) == 2  # phases
    for found in report(job).values():
        assert found == {"kind": execution, "chunk": chunk or 4096, "why": "as the settings say"}
    assert bool(job.federation.engine.bodies.made) == (execution == "traced")


def test_a_chunk_that_is_set_is_tried_alone(monkeypatch):
    monkeypatch.setattr(calibration, "WORTH_TRACING", 0.0)
    monkeypatch.setattr(calibration, "WORTH_COMPILING", float("inf"))
    job, how = start(testing.trial("cdma-nc", asked=None), "quadratic", execution="auto", chunk=3)
    carry_out(job, how)
    assert list(report(job)[WORK]["seconds"]) == ["eager 3", "traced 3"]


def stopped_and_resumed(method, run, path, known=None, between=lambda folder: None, **resumed):
    """A run stopped after half its rounds, and what going on with it gives; the job of the second half."""
    job, how = start(method, **run)
    folder, seen = new_folder(path, **(known or {})), []
    carry_out(job, how, folder, seen.append, stop=lambda: len(seen) >= how.rounds // 2)
    between(folder)
    job, how = start(method, checkpoints=folder.checkpoints, **{**run, **resumed})
    assert job.progress.round == how.rounds // 2
    return carry_out(job, how, folder), job


def test_a_resumed_run_takes_up_what_was_found(tmp_path):
    def edit(folder):
        found = folder.calibration()
        assert found["works"][WORK]["kind"] == "eager"
        found["works"][WORK] |= {"kind": "traced", "chunk": 2, "why": "somebody says so"}
        folder.keep_calibration(found)

    method = testing.trial("cdma-one")
    got, job = stopped_and_resumed(method, {"execution": "auto", "rounds": 8}, tmp_path / "run", between=edit)
    kinds = {(key[0], key[1][0].__name__, key[4]) for key in job.federation.engine.bodies.made}
    assert kinds == {("traced", "local_steps", 2)}
    assert json.loads((tmp_path / "run" / "calibration.json").read_text())["works"][WORK]["why"] == "somebody says so"
    testing.compare(got.server, carry_out(*start(method, rounds=8)).server, "another way in the second half", 1e-10)


def test_a_resumed_run_is_the_same_to_the_last_bit_in_the_same_ways(tmp_path):
    known = {"processes": 1, "works": {
        WORK: {"kind": "traced", "chunk": 3, "why": "quickest of those tried"},
    }}
    run, method = {"execution": "auto", "case": "quadratic", "rounds": 6}, testing.trial("cdma-nc", asked=8)
    job, how = start(method, **run)
    expected = carry_out(job, how, new_folder(tmp_path / "whole", **known))
    assert {key[0] for key in job.federation.engine.bodies.made} == {"traced"}
    got, _ = stopped_and_resumed(method, run, tmp_path / "half", known)
    testing.compare(got.server, expected.server, "resumed with the same ways", 0.0)
    testing.compare_records(got.records, expected.records)


@pytest.mark.parametrize("damage", [
    b"", b'{"processes": 1, "works": {"CDMA.lo', b"[1, 2]", b"\xff\xfe", b'{"works": {"a": {"kind": "magic"}}}',
    b'{"works": [1]}',
    b'{"works": {"a": 3}}',
    b'{"works": {"a": {"kind": "eager", "chunk": 3}}}',
    b'{"works": {"%s": {"kind": "eager", "chunk": 0, "why": ""}}}' % WORK.encode(),
    b'{"works": {}, "processes": "many"}',
])
def test_a_damaged_calibration_is_ignored(damage, tmp_path):
    method, run = testing.trial("cdma-one"), {"execution": "auto", "workers": None, "rounds": 2}
    got, job = stopped_and_resumed(method, run, tmp_path / "run",
                                   between=lambda folder: (folder.path / "calibration.json").write_bytes(damage))
    assert got.complete and report(job).get(WORK, {"kind": "eager"})["kind"] == "eager"


class Clocks(threading.local):
    now = 0.0


def test_processes_with_unequal_shares_choose_alike(monkeypatch):
    """Two processes as threads, with clocks of their own; each must take part in every exchange of the other."""
    clocks, meeting, numbers = Clocks(), threading.Barrier(2, timeout=20), [0.0, 0.0]
    monkeypatch.setattr(calibration, "time", SimpleNamespace(perf_counter=lambda: clocks.now))

    class Two(Ranks):
        def largest(self, number):
            numbers[self.rank] = number
            meeting.wait()
            found = max(numbers)
            meeting.wait()
            return found

    def cost(share, way):
        seconds = len(share) * (0.0015 if way.kind == "eager" else 0.001 / way.chunk)
        clocks.now += seconds
        return seconds

    ask = SimpleNamespace(work=looks_at_all_rows, draw=ALL, ids=torch.arange(300))
    found = [None, None]

    def one(rank, clients):
        ways = Calibration()
        ways.rounds, ways.seconds[calibration.name_of(ask)] = 7, 0.3
        with contextlib.suppress(threading.BrokenBarrierError):
            found[rank] = ways.way(Timed(cost, 64, ranks=Two(rank, 2)), ask, torch.arange(clients))

    both = [threading.Thread(target=one, args=(rank, clients)) for rank, clients in enumerate((128, 20))]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert found[0] is not None and found[0] == found[1]


# Workers.


def children():
    """Processes that this one has started and not buried."""
    tasks = Path("/proc/self/task").iterdir()
    return {int(child) for task in tasks for child in (task / "children").read_text().split()}


@pytest.fixture
def alone_afterwards():
    before = children()
    yield
    assert children() == before and not dist.is_initialized()


def saved_states(folder, round):
    tensors = safetensors.torch.load_file(folder.checkpoints / f"{round:08d}" / "state.safetensors")
    order = torch.argsort(tensors["clients.ids"])
    return tuple(tensors[name][order] for name in sorted(tensors) if name.startswith("clients."))


@LINUX
@pytest.mark.usefixtures("alone_afterwards")
@pytest.mark.parametrize("name", ["codasca", "cdma-ada", "drfa"])
def test_two_workers_stopped_and_resumed_are_the_same_to_the_last_bit(name, tmp_path):
    method, run = testing.trial(name), {"workers": 2, "participation": testing.FLAKY, "rounds": 12}
    job, how = start(method, **run)
    expected = carry_out(job, how, whole := new_folder(tmp_path / "whole"))
    got, _ = stopped_and_resumed(method, run, tmp_path / "half")
    testing.compare(got.server, expected.server, "resumed with two workers", 0.0)
    testing.compare_records(got.records, expected.records)
    for file in ("model.safetensors", "checkpoints/00000012/state.safetensors"):
        assert (tmp_path / "half" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    assert len(whole.records()) == 12
    testing.compare(got.server, carry_out(*start(method, **{**run, "workers": 1})).server, "two against one", 1e-10)


@LINUX
@pytest.mark.usefixtures("alone_afterwards")
def test_a_checkpoint_of_two_workers_has_the_states_of_all_clients(tmp_path):
    found = []
    for workers in (1, 2):
        job, how = start(testing.trial("codasca", asked=6), workers=workers, checkpoint_every=4)
        folder = new_folder(tmp_path / str(workers))
        carry_out(job, how, folder)
        found.append([saved_states(folder, round) for round in (4, 8)])
    for alone, shared in zip(*found, strict=True):
        ids = shared[sorted(("c.x", "c.y", "ids", "tag")).index("ids")]
        assert len(ids) >= 8 and {int(i) % 2 for i in ids} == {0, 1}
        testing.compare(shared, alone, "states in a checkpoint of two workers", 1e-12)


@LINUX
@pytest.mark.usefixtures("alone_afterwards")
@pytest.mark.parametrize("name", ["codasca", "cdma-one"])
def test_a_killed_worker_ends_the_run_in_words_and_it_can_be_resumed(name, tmp_path, monkeypatch):
    crews, plain = [], crew.Crew.hire

    def hire(self, *arguments):
        crews.append(self)
        return plain(self, *arguments)

    def watch(record):
        if record["round"] == 5:
            os.kill(crews[0].children[0], signal.SIGKILL)

    monkeypatch.setattr(crew.Crew, "hire", hire)
    method, run = testing.trial(name), {"workers": 2, "checkpoint_every": 2}
    job, how = start(method, **run)
    folder = new_folder(tmp_path / "run")
    with pytest.raises(PartnerLost, match=r"`fedsaddle resume`, or set run.workers = 1"):
        carry_out(job, how, folder, watch)
    assert not folder.complete and not children() and not dist.is_initialized()
    job, how = start(method, checkpoints=folder.checkpoints, workers=1, checkpoint_every=2)
    assert job.progress.round == 4
    got = carry_out(job, how, folder)
    assert folder.complete and [r["round"] for r in folder.records()] == list(range(1, 9))
    testing.compare(got.server, carry_out(*start(method)).server, "after the loss of a worker", 1e-10)


@LINUX
@pytest.mark.usefixtures("alone_afterwards")
@pytest.mark.parametrize("name, workers, asked", [("drfa", 3, 2), ("codasca", 3, 2), ("cdma-ada", 3, 1)])
def test_more_workers_than_clients_asked(name, workers, asked):
    method = testing.trial(name, asked=asked)
    got, expected = (carry_out(*start(method, rounds=12, workers=n)) for n in (workers, 1))
    testing.compare((got.server, got.traffic), (expected.server, expected.traffic), "workers without a share", 1e-10)


@LINUX
def test_auto_hires_nobody_for_a_short_run(monkeypatch):
    def hire(*arguments):
        raise AssertionError("a worker was hired")

    monkeypatch.setattr(crew.Crew, "hire", hire)
    monkeypatch.setattr(crew, "cores", lambda: 8)
    assert carry_out(*start(testing.trial("cdma-one"), workers=None, rounds=3)).complete


@pytest.fixture
def hiring(monkeypatch):
    """Every run is long enough for two workers; the sizes of the crews hired."""
    sizes, plain = [], crew.Crew.hire

    def hire(self, size, serve):
        sizes.append(size)
        return plain(self, size, serve)

    monkeypatch.setattr(crew.Crew, "hire", hire)
    monkeypatch.setattr(crew, "WORTH_HIRING", 0.0)
    monkeypatch.setattr(crew, "cores", lambda: 2)
    return sizes


@LINUX
@pytest.mark.usefixtures("alone_afterwards")
@pytest.mark.parametrize("resident", [4096 << 20, 0], ids=["states in memory", "states in files"])
@pytest.mark.parametrize("name", ["codasca", "cdma-one"])
def test_auto_hires_where_it_pays(name, resident, hiring, monkeypatch, tmp_path):
    """After the first round, so that half of the states of its clients go to the worker."""
    monkeypatch.setattr(team, "worthwhile", lambda *arguments: True)
    method = testing.trial(name, asked=7)
    ends = []
    for workers in (1, None):
        job, how = start(method, workers=workers, rounds=10)
        job.federation.engine.resident = resident
        job.federation.engine.open(getattr(method, "first_client", lambda z: ())(job.progress.server.z))
        folder = new_folder(tmp_path / str(workers))
        ends.append((carry_out(job, how, folder).server, saved_states(folder, 10) if name == "codasca" else ()))
    assert hiring == [2]
    testing.compare(ends[1], ends[0], "hired after the first round", 1e-10)
    assert folder.calibration()["processes"] == 2


@LINUX
@pytest.mark.parametrize("seconds, after", [(0.5, 2), (60.0, 1)], ids=["short rounds", "long rounds"])
def test_workers_are_hired_once_starting_up_no_longer_counts(seconds, after, monkeypatch):
    monkeypatch.setattr(crew, "cores", lambda: 2)
    hired, (job, how) = [], start(testing.trial("fedavg"), workers=None, rounds=50)
    with team.Team(job.algorithm, job.federation, how, None) as ours:
        monkeypatch.setattr(ours, "_hire", lambda progress, size, record: hired.append(progress.round))
        for done in (1, 2, 3):
            record = {"skipped": False, "seconds": seconds, "asks": [{"answered": 4}]}
            ours.gather(job.progress._replace(round=done), record)
    assert hired == [after]


@LINUX
@pytest.mark.usefixtures("alone_afterwards")
def test_workers_that_do_not_pay_are_sent_home(hiring, monkeypatch):
    monkeypatch.setattr(team, "worthwhile", lambda *arguments: False)
    method = testing.trial("codasca")
    got, expected = (carry_out(*start(method, workers=n)) for n in (None, 1))
    assert hiring == [2]
    testing.compare(got.server, expected.server, "alone after all", 0.0)


@LINUX
@pytest.mark.usefixtures("alone_afterwards")
def test_a_resumed_run_hires_as_many_as_before(hiring, monkeypatch, tmp_path):
    monkeypatch.setattr(team, "worthwhile", lambda *arguments: True)

    def again(folder):
        assert folder.calibration()["processes"] == 2
        monkeypatch.setattr(crew, "WORTH_HIRING", float("inf"))  # nobody would be hired for what is left

    stopped_and_resumed(testing.trial("codasca"), {"workers": None, "execution": "auto"}, tmp_path / "run",
                        between=again)
    assert hiring == [2, 2]


@LINUX
@pytest.mark.usefixtures("alone_afterwards")
def test_the_file_that_workers_meet_in_stays_until_all_have_met(monkeypatch, tmp_path):
    """One that still looks for it would wait for hours, and everybody else for it."""
    plain, remove, there = dist.init_process_group, shutil.rmtree, []

    def slow(*arguments, rank, **more):
        plain(*arguments, rank=rank, **more)
        if rank:
            time.sleep(0.2 * rank)
            (tmp_path / str(rank)).touch()

    def watched(*arguments, **more):
        there.append(sorted(path.name for path in tmp_path.iterdir()))
        remove(*arguments, **more)

    monkeypatch.setattr(dist, "init_process_group", slow)
    monkeypatch.setattr(crew, "shutil", SimpleNamespace(rmtree=watched))
    hired = crew.Crew(3)
    try:
        total = hired.hire(3, lambda ranks: ranks.total((torch.ones(2),))).total((torch.ones(2),))
    finally:
        hired.dismiss()
    assert there == [["1", "2"]] and total[0].tolist() == [3, 3]


@dataclass(frozen=True)
class _Exchanges:
    """Ranks of the second of two processes, as far as counting its exchanges goes."""

    made: list
    rank: int = 1
    size: int = 2

    def gathered(self, rows, counts):
        self.made.append(tuple(rows.shape[1:]))
        return torch.tensor([3, 0]) if counts == [1, 1] else rows


def test_a_process_that_no_client_was_dealt_to_takes_part_in_a_checkpoint():
    made = []
    for asked in (10, 0):
        job, _ = start(testing.trial("codasca", asked=None))
        engine = job.federation.engine
        if asked:
            one_round(job.algorithm, job.federation, job.progress)
        engine.ranks = _Exchanges([])
        engine.dump()
        made.append(engine.ranks.made)
    assert made[0] == made[1]


HISTOGRAMS = """
import torch
from fedsaddle import testing, train
from fedsaddle.engine import crew
from datetime import timedelta
crew.PATIENCE = timedelta(seconds=20)
problem, clients = testing.auc_case()
ends = [train(testing.trial("fedavg"), problem, clients, rounds=4, dtype="float64", evaluate_every=2, workers=workers,
              histogram_bins=64) for workers in (1, 2)]
torch.testing.assert_close(ends[1].point.x, ends[0].point.x, rtol=0, atol=1e-10)
for name, measures in ends[0].measures.items():
    for measure, value in measures.items():
        assert abs(ends[1].measures[name][measure] - value) < 1e-9, (name, measure)
"""


@LINUX
def test_clients_asked_in_an_evaluation_by_several_processes():
    done = subprocess.run([sys.executable, "-c", HISTOGRAMS], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


