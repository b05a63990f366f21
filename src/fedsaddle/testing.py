"""The contract battery: what every algorithm must pass, ours and yours.

    from fedsaddle.testing import check_algorithm
    check_algorithm(MyMethod(eta=0.05))

Each check runs the method on small unequal clients (one-class ones and ones smaller than a batch among
them) with drop-outs, and raises an AssertionError that says what differs.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedsaddle.algorithms import ALGORITHMS, make
from fedsaddle.assemble import Job, assemble
from fedsaddle.config import Run
from fedsaddle.contracts import Algorithm, Batch, Problem
from fedsaddle.data.clients import Clients, clients_from_list
from fedsaddle.data.synthetic import quadratic_clients
from fedsaddle.engine import federation, simulation
from fedsaddle.engine.ledger import Traffic
from fedsaddle.engine.training import TIMES, Record, rounds
from fedsaddle.maths.trees import leaves, map_leaves, named_leaves
from fedsaddle.participation import Participation, as_participation
from fedsaddle.participation.responses import Deadline, DropOuts, FirstResponders, Latencies
from fedsaddle.participation.selection import Cyclic, Uniform, Weighted
from fedsaddle.problems import AUC, Metric, Pairwise, Quadratic
from fedsaddle.report.folder import RunFolder
from fedsaddle.runs import as_clients, carry_out

Case = tuple[Problem, Clients]
ROUNDS = 12
FLAKY = as_participation(DropOuts(0.45), FirstResponders())
SIZES = (1, 3, 20, 9, 60, 7, 8, 25, 14, 5)


def auc_case() -> Case:
    """Ten clients of 1 to 60 rows, some of one class only."""
    random = np.random.Generator(np.random.Philox(1))
    parts = []
    for i, n in enumerate(SIZES):
        targets = np.full(n, i % 2) if i in (1, 3, 6) else random.integers(0, 2, n)
        parts.append((random.normal(size=(n, 4)) + targets[:, None], targets))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    return AUC(net), clients_from_list(parts)


def quadratic_case() -> Case:
    return Quadratic(3, 2), quadratic_clients(10, (1, 30), 3, 2, heterogeneity=1.0, noise=0.5, coupling=1.0, seed=2)


def pairwise_case() -> Case:
    """The same clients with a linear score and the pairwise sigmoid loss."""
    return Pairwise(_linear(4, 1), scale=2.0, score="linear"), auc_case()[1]


def metric_case() -> Case:
    """The same clients, their two classes to be told apart by the distance of embeddings."""
    return Metric(_linear(4, 2), dimension=2, margin=2.0), auc_case()[1]


def _linear(inputs: int, outputs: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Linear(inputs, outputs)


def trial(name: str, **more: Any) -> Algorithm:
    """An algorithm of the registry with small settings, and those of its entry that show what is special about it."""
    entry = ALGORITHMS[name]
    settings = {"asked": 4, "steps": 3, "eta": 0.05, **entry.trial, **more}
    known = {field.name for field in dataclasses.fields(entry.algorithm)} - set(entry.fixed)
    method: Algorithm = make(name, **{key: value for key, value in settings.items() if key in known})
    return method


CASES: dict[str, Callable[[], Case]] = {
    "quadratic": quadratic_case, "auc": auc_case, "pairwise": pairwise_case, "metric": metric_case,
}


def check_algorithm(algorithm: Algorithm, cases: tuple[str, ...] = ("quadratic", "auc")) -> None:
    """The whole battery."""
    check_settings(algorithm)
    for name in cases:
        for check in (check_engines_agree, check_repeats, check_resumes, check_pure, check_participations,
                      check_traced, check_workers):
            check(algorithm, CASES[name]())


def check_problem(problem: Problem, clients: Any) -> None:
    """A problem of yours on some clients of yours, unequal ones: both engines agree, and nothing reads a value."""
    case = (problem, as_clients(clients))
    method: Algorithm = make("cdma-ada", asked=None, steps=3, eta=1e-3, gamma=1e-3, c_alpha=1.0)
    check_engines_agree(method, case)
    check_pure(method, case)


def check_settings(algorithm: Algorithm) -> None:
    """Settings are a frozen dataclass whose fields say what they mean."""
    assert dataclasses.is_dataclass(algorithm), f"{algorithm} is not a dataclass"
    assert algorithm.__dataclass_params__.frozen, f"{type(algorithm).__name__} is not frozen"
    for field in dataclasses.fields(algorithm):
        assert field.metadata.get("meaning"), f"setting {field.name} has no meaning: declare it with contracts.setting"


def check_engines_agree(algorithm: Algorithm, case: Case) -> None:
    """Simulation equals reference to float64 rounding, whatever the chunk, with drop-outs and unequal clients."""
    reference = final_state(algorithm, case, engine="reference")
    for chunk in (1, 7, None):
        compare(final_state(algorithm, case, chunk=chunk), reference, f"chunk {chunk} against the reference", 1e-9)


def check_traced(algorithm: Algorithm, case: Case, execution: str = "traced", device: str = "cpu") -> None:
    """A run from traces, or compiled, equals the reference too; nothing falls back to the eager way."""
    start = job(algorithm, case, FLAKY, chunk=3, execution=execution, device=device)
    compare(finished(start), final_state(algorithm, case, engine="reference"), f"{execution} against the reference",
            1e-9)
    report = start.federation.engine.calibration.report  # type: ignore[attr-defined]
    for work, found in report.items():
        assert found["kind"] == execution, f"{work} was computed {found['kind']}: {found['why']}"


def check_workers(algorithm: Algorithm, case: Case) -> None:
    """Two processes give what one gives."""
    alone, shared = (carry_out(job(algorithm, case, FLAKY), Run(rounds=ROUNDS, evaluate_every=ROUNDS, workers=n))
                     for n in (1, 2))
    compare((shared.server, shared.traffic), (alone.server, alone.traffic), "two processes against one", 1e-9)


def check_repeats(algorithm: Algorithm, case: Case) -> None:
    """The same run twice is the same bit for bit."""
    compare(final_state(algorithm, case), final_state(algorithm, case), "two equal runs", 0.0)


def check_resumes(algorithm: Algorithm, case: Case) -> None:
    """A run stopped and resumed, skipped rounds included, equals an uninterrupted one bit for bit."""
    whole = job(algorithm, case, FLAKY)
    run = Run(rounds=ROUNDS, checkpoint_every=1, evaluate_every=1, workers=1)
    expected = carry_out(whole, run)
    with tempfile.TemporaryDirectory() as path:
        folder = RunFolder(Path(path) / "run")
        folder.create({})
        seen: list[Record] = []
        carry_out(job(algorithm, case, FLAKY), run, folder, seen.append, stop=lambda: len(seen) >= ROUNDS // 2)
        resumed = job(algorithm, case, FLAKY, checkpoints=folder.checkpoints)
        assert resumed.progress.round == ROUNDS // 2, "the checkpoint is not of the round it was stopped in"
        got = carry_out(resumed, run, folder)
    compare(got.server, expected.server, "a resumed run against an uninterrupted one", 0.0)
    compare_records(got.records, expected.records)


def check_pure(algorithm: Algorithm, case: Case) -> None:
    """Works run with every message field batched, so that none of them reads a value on the host."""
    start = job(algorithm, case, Participation())
    engine = start.federation.engine
    assert isinstance(engine, simulation.Simulation)
    plain = engine.run

    def batched(ask: federation.Ask) -> federation.Outcome:
        count, fields = len(ask.ids), ask.message._fields
        shared = {n: map_leaves(lambda leaf: leaf.expand(count, *leaf.shape), getattr(ask.message, n))
                  for n in fields if n not in ask.personal}
        return plain(ask._replace(message=ask.message._replace(**shared), personal=fields))

    engine.run = batched  # type: ignore[method-assign]
    compare(finished(start).server, final_state(algorithm, case, Participation()).server,
            "all message fields batched against shared ones", 1e-9)


def check_participations(algorithm: Algorithm, case: Case) -> None:
    """Any participation: the run goes through, and every number stays finite."""
    kinds: list[Any] = [
        (Uniform(), Latencies(), FirstResponders()), (Weighted(replace=True),), (Weighted(), DropOuts(0.3)),
        (Cyclic(3), DropOuts(0.3)), (Latencies(), Deadline(0.8)), (DropOuts(1.0),),
    ]
    for kind in kinds:
        state = final_state(algorithm, case, participation=as_participation(*kind), rounds=6)
        for name, leaf in named_leaves(state):
            finite = not isinstance(leaf, Tensor) or bool(torch.isfinite(leaf).all())
            assert finite, f"{name} is not finite under {kind}"


def check_uploads(algorithm: Algorithm, case: Case, copies: int, scalars: int, scores: int = 0) -> None:
    """What a client asked in every phase uploads per round is what the registry says.

    A method that exchanges scores may begin with a round of scores alone.
    """
    start = job(algorithm, case, Participation(), rounds=3)
    size = sum(leaf.numel() for leaf in leaves(case[0].first()))
    more = scalars + scores * (_score_floats(algorithm, start) if scores else 0)
    expected = [copies * size + more] * 3
    if scores:
        expected[0] = more
    for count, (_, record) in zip(expected, rounds(start.algorithm, start.federation, start.progress, start.plan,
                                                   start.evaluate), strict=True):
        uploaded = sum(ask["floats_up"] // ask["answered"] for ask in record["asks"])
        assert uploaded == count, f"a client uploads {uploaded} floats in round {record['round']}, not {count}: " \
            f"{copies} copies of {size}, {scalars} scalars and {scores} scores a row"


def _score_floats(algorithm: Any, start: Job) -> int:
    """The floats that it takes to send a score for every row of a round's minibatches, of all strata."""
    problem: Any = start.problem
    inputs, targets = auc_case()[1].rows
    one = problem.scores(problem.first().x, Batch(inputs[:1].float(), targets[:1], torch.ones(1))).numel()
    return int(one * algorithm.steps * start.federation.batch_size * len(problem.strata))


def job(algorithm: Algorithm, case: Case, participation: Participation, engine: str = "simulation",
        chunk: int | None = None, rounds: int = ROUNDS, checkpoints: Path | None = None, device: str = "cpu",
        execution: str = "eager") -> Job:
    problem, clients = case
    run = Run(rounds=rounds, batch_size=4, weights="size", engine=engine, dtype="float64", chunk=chunk, seed=5,
              evaluate_every=1, device=device, execution=execution)
    return assemble(algorithm, problem, clients, None, participation, run, checkpoints)


class End(NamedTuple):
    """Everything that a run has learnt."""

    server: Any
    traffic: Traffic
    clients: tuple[Tensor, ...]  # their states, in the order of their numbers


def final_state(algorithm: Algorithm, case: Case, participation: Participation = FLAKY, **how: Any) -> End:
    return finished(job(algorithm, case, participation, **how))


def finished(start: Job) -> End:
    """Run a job to its end."""
    last = list(rounds(start.algorithm, start.federation, start.progress, start.plan, start.evaluate))[-1][0]
    states = start.federation.engine.dump()
    order = torch.argsort(states.pop("ids")) if states else torch.zeros(0)
    return End(last.server, last.traffic, tuple(states[name][order] for name in sorted(states)))


def compare(got: Any, expected: Any, what: str, tolerance: float) -> None:
    """Two trees are equal: to the tolerance, or bit for bit where it is 0."""
    ours, theirs = dict(named_leaves(got)), dict(named_leaves(expected))
    assert ours.keys() == theirs.keys(), f"{what}: fields {sorted(ours)} and {sorted(theirs)}"
    for name, leaf in ours.items():
        one, other = (torch.as_tensor(value).double().cpu() for value in (leaf, theirs[name]))
        assert one.shape == other.shape, f"{what}: {name} has shapes {one.shape} and {other.shape}"
        scale = max(1.0, float(other.abs().max())) if other.numel() else 1.0
        difference = float((one - other).abs().max()) if one.numel() else 0.0
        assert difference <= tolerance * scale, f"{what}: {name} differs by {difference}"


def compare_records(got: list[Record], expected: list[Record]) -> None:
    def timeless(record: Record) -> Record:
        return {name: value for name, value in record.items() if name not in TIMES}

    assert [timeless(r) for r in got] == [timeless(r) for r in expected], "the records differ"

