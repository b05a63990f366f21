"""The training loop: a round after the other, each a transaction, each with its record.

The whole state of a run between two rounds is one value, `Progress`; whoever drives the loop decides
what to do with it (show it, write it, stop).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from fedsaddle.contracts import Algorithm, NobodyAnswered, Point, Problem, Rows
from fedsaddle.engine.devices import finished
from fedsaddle.engine.federation import EngineFederation
from fedsaddle.engine.ledger import Traffic
from fedsaddle.metrics import primal

Record = dict[str, Any]
Measures = dict[str, dict[str, float]]  # data set -> measure -> value
TIMES = ("seconds", "evaluation_seconds")  # what may differ between two equal runs


class Progress(NamedTuple):
    """A run between two rounds."""

    server: Any
    round: int  # rounds elapsed, skipped ones included
    traffic: Traffic  # so far


class Plan(NamedTuple):
    """How long, and how often to look."""

    rounds: int
    evaluate_every: int = 10
    stop_after_floats: int | None = None  # stop once the server has received so many

    def over(self, progress: Progress) -> bool:
        enough = self.stop_after_floats is not None and progress.traffic.floats_up >= self.stop_after_floats
        return enough or progress.round >= self.rounds


class Diverged(RuntimeError):
    """The variables are no longer finite."""


def prepare(problem: Problem, federation: EngineFederation) -> Problem:
    """Let the problem ask for the constants of its objective: before round 0, of everyone, counted like any ask."""
    ask = getattr(problem, "prepare", None)
    prepared: Problem = ask(federation) if ask else problem
    federation.engine.pose(prepared)
    return prepared


def first_progress(algorithm: Algorithm, z: Point, federation: EngineFederation) -> Progress:
    """Before round 0, with the traffic of the preparation."""
    first_client = getattr(algorithm, "first_client", None)
    federation.engine.open(first_client(z) if first_client else ())
    server = algorithm.first(z, federation)
    federation.commit()
    return Progress(server, 0, federation.traffic)


def rounds(
    algorithm: Algorithm, federation: EngineFederation, progress: Progress, plan: Plan,
    evaluate: Callable[[Point], tuple[Measures, list[str]]] | None,
) -> Iterator[tuple[Progress, Record]]:
    """Every round from `progress` on, with its record. `evaluate`: None in processes that do not look.

    On a GPU a round only queues its work; what is still in the queue is waited for in rounds with an evaluation, so
    seconds are right over all rounds between two evaluations, not round by round.
    """
    while progress.round < plan.rounds:
        began = time.perf_counter()
        federation.engine.expect(plan.rounds - progress.round)
        server, skipped = one_round(algorithm, federation, progress)
        traffic = progress.traffic + federation.traffic
        progress = Progress(server, progress.round + 1, traffic)
        last = plan.over(progress)
        record: Record = {
            "round": progress.round, "updates": server.round, "skipped": skipped,
            **federation.traffic._asdict(), "total": traffic._asdict(),
            "asks": [{"work": one.work, **one.traffic._asdict(), **one.details} for one in federation.asks],
        }
        due = evaluate is not None and (last or progress.round % plan.evaluate_every == 0)
        if due:  # rounds before may still be in a device's queue: their time is not the evaluation's
            finished(federation.engine.device)
        trained = time.perf_counter()
        if due and evaluate is not None:
            z = algorithm.solution(server)
            with federation.engine.alone():
                record["measures"], record["alarms"] = evaluate(z)
            record["diverged"] = not all(bool(torch.isfinite(part).all()) for part in z)
        record["seconds"], record["evaluation_seconds"] = trained - began, time.perf_counter() - trained
        yield progress, record
        if record.get("diverged"):
            raise Diverged(f"the variables are no longer finite after round {progress.round}; "
                           "lower the step sizes of the algorithm")
        if last:
            return


def one_round(algorithm: Algorithm, federation: EngineFederation, progress: Progress) -> tuple[Any, bool]:
    """The next server state and whether the round was skipped because nobody answered."""
    federation.begin(progress.round)
    try:
        server = algorithm.round(progress.server, federation)
    except NobodyAnswered:
        return progress.server, True
    federation.commit()
    return server, False


def evaluator(
    problem: Problem, sets: dict[str, Rows], progress_steps: int = 0,
    further: Sequence[tuple[str, Callable[[Point], dict[str, float]]]] = (),
) -> Callable[[Point], tuple[Measures, list[str]]]:
    """Measures of the problem's own kind on each data set, and alarms in words.

    progress_steps: of ascent in y, for the primal value and its gradient; 0: not measured.
    further: other measures, each with the name under which it is recorded.
    """

    def evaluate(z: Point) -> tuple[Measures, list[str]]:
        measure = getattr(problem, "measure", None)
        measures = {name: measure(z, rows) if measure else pooled_loss(problem, z, rows) for name, rows in sets.items()}
        for name, rows in sets.items():
            if progress_steps and not {"primal", "primal_gradient"} <= measures[name].keys():
                measures[name] = {**primal.measures(problem, z, rows, progress_steps), **measures[name]}
        alarm = getattr(problem, "alarms", None)
        alarms = [f"{name}: {text}" for name, values in measures.items() for text in (alarm(values) if alarm else [])]
        for name, more in further:
            measures[name] = {**measures.get(name, {}), **more(z)}
        return measures, alarms

    return evaluate


@torch.no_grad()
def pooled_loss(problem: Problem, z: Point, rows: Rows) -> dict[str, float]:
    """The loss on all rows, for problems without measures of their own."""
    return {"loss": float(primal.Pooled(problem, rows, z.x.dtype).value(*z))}
