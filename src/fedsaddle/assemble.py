"""From settings to the objects of a run; the only reader of the registries."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedsaddle.algorithms import ALGORITHMS, make
from fedsaddle.config import Named, Run, Settings, lookup, method
from fedsaddle.contracts import Algorithm, Materials, Point, Problem, Rows, SettingError
from fedsaddle.data.clients import Clients
from fedsaddle.data.dataset import DataSet
from fedsaddle.data.dealing import USUAL, Hand, clients_of, hand_out, held_out, rows_for_test
from fedsaddle.data.partitions import PARTITIONS
from fedsaddle.data.sources import SOURCES
from fedsaddle.engine import checkpoint
from fedsaddle.engine.classifier import usual_path
from fedsaddle.engine.devices import placed
from fedsaddle.engine.evaluation import further
from fedsaddle.engine.federation import PREPARATION, Answering, EngineFederation, Simulated
from fedsaddle.engine.looks import Look, looker
from fedsaddle.engine.ranks import from_environment
from fedsaddle.engine.reference import Reference
from fedsaddle.engine.simulation import Simulation
from fedsaddle.engine.training import Measures, Plan, Progress, evaluator, first_progress, prepare
from fedsaddle.models import MODELS, build, model_of
from fedsaddle.participation import RESPONSES, SELECTIONS, Participation
from fedsaddle.participation.selection import Population
from fedsaddle.problems import PROBLEMS, own
from fedsaddle.report import trackers
from fedsaddle.sites.admission import Admission
from fedsaddle.sites.gated import Gated, Recorded


class Job(NamedTuple):
    """Everything that a run needs, at the point where it starts or goes on."""

    algorithm: Algorithm
    problem: Problem
    federation: EngineFederation
    evaluate: Callable[[Point], tuple[Measures, list[str]]]
    plan: Plan
    progress: Progress
    complaints: list[str]  # about damaged checkpoints
    look: Look  # at the solution, once the run is complete
    files: Mapping[str, str] = MappingProxyType({})  # of the data set, for the run folder


class Dealt(NamedTuple):
    """The data of a run."""

    clients: Clients
    test: Rows | None
    classes: int
    files: Mapping[str, str] = MappingProxyType({})  # for the run folder
    held: Clients | None = None  # rows of the same clients that are not trained on


def job_from_settings(
    settings: Settings, label: str, checkpoints: Path | None = None, dealt: Dealt | None = None,
) -> Job:
    """The job of one method of a settings file. `dealt`: the data of the file, where several methods share them."""
    dealt = None if "data" in settings.overrides.get(label, {}) else dealt
    settings = method(settings, label)
    trackers.makers(settings.run.trackers)  # a wrong name is told before the data are read
    dealt = dealt or deal(settings)
    algorithm = algorithm_of(settings.algorithms[""])
    problem = pose(settings, dealt)
    run = dataclasses.replace(settings.run, classifier=settings.run.classifier or str(usual_path(settings.data.name)))
    job = assemble(algorithm, problem, dealt.clients, dealt.test, participation(settings), run, checkpoints,
                   settings.admission, held=dealt.held)
    return job._replace(files=dealt.files)


def assemble(
    algorithm: Algorithm, problem: Problem, clients: Clients, test: Rows | None, participation: Participation,
    run: Run, checkpoints: Path | None = None, admission: Admission | None = None,
    records: Sequence[dict[str, Any]] | None = None, held: Clients | None = None,
) -> Job:
    """The job of these objects, from the newest valid checkpoint where there is one.

    records: of a run across sites, in whose rounds exactly those answer who did there; held: rows of the same clients
    that are not trained on, for measures of single clients.
    """
    device, dtype = device_of(run), getattr(torch, run.dtype)
    if device.type == "cuda":
        torch.set_float32_matmul_precision(run.matmul)
    problem = placed(problem, device)
    if getattr(problem, "strata", ()):
        clients = clients.stratified(problem.strata)  # type: ignore[attr-defined]
    clients = clients.to(device, dtype)
    population = Population(clients.count, clients.run.size.cpu(), objective_weights(clients, run.weights))
    engine = Reference(problem, clients, run.batch_size, dtype) if run.engine == "reference" else \
        Simulation(problem, clients, run.batch_size, dtype, run.chunk, run.execution, from_environment(device),
                   run.states_mib << 20)
    answering: Answering = Simulated(engine, participation.respond, run.record_clients)
    if records is not None:
        answering = Recorded(engine, records)
    elif admission and admission.simulated:
        answering = Gated(engine, participation.respond, admission, run.record_clients)
    federation = EngineFederation(engine, participation, population, run.seed, answering)
    sets = {"train": clients.rows} | ({"test": placed_rows(test, device, dtype)} if test else {})
    shown = clients if held is None else held.to(device, dtype)
    return begun(algorithm, problem, federation, run, sets, lambda posed: further(posed, shown, federation, run),
                 checkpoints, shown if run.per_client else None)


def begun(
    algorithm: Algorithm, problem: Problem, federation: EngineFederation, run: Run, sets: dict[str, Rows],
    measures: Callable[[Problem], Sequence[Any]], checkpoints: Path | None, shown: Clients | None = None,
) -> Job:
    """The job of a federation, with the problem's constants and the first state, or where a checkpoint left it.

    shown: the clients, where the last look shows them one by one.
    """
    engine = federation.engine
    z = Point(*(part.detach().to(engine.device, engine.dtype) for part in problem.first()))
    saved, complaints = checkpoint.load(checkpoints) if checkpoints else (None, [])
    if saved and hasattr(problem, "with_constants"):
        problem = problem.with_constants(saved.constants)
    federation.begin(PREPARATION)
    problem = prepare(problem, federation)
    progress = first_progress(algorithm, z, federation)
    if saved:
        engine.load(saved.clients)
        progress = saved.progress(progress.server)
    chosen = {name: sets[name] for name in run.evaluate_on if name in sets} or sets
    plan = Plan(run.rounds, run.evaluate_every, run.stop_after_floats)
    evaluate = evaluator(problem, chosen, run.progress_steps if run.progress else 0, measures(problem))
    look = looker(problem, chosen, shown)
    return Job(algorithm, problem, federation, evaluate, plan, progress, complaints, look)


def deal(settings: Settings) -> Dealt:
    """The data set of the settings, dealt to clients."""
    source = _instance(SOURCES, settings.data)
    dealing = settings.dealing
    if hasattr(source, "deal"):  # a source that makes its own clients
        dealt = Dealt(source.deal(dealing.clients or USUAL, dealing.seed), None, 0)
    else:
        data, hand = hand_of(settings)
        classes = data.classes if dealing.positive is None else 2
        dealt = Dealt(clients_of(data, hand), rows_for_test(data, dealing), classes, data.files)
    if not dealing.hold_out:
        return dealt
    stay, held = held_out(dealt.clients, dealing.hold_out, dealing.seed)
    return dealt._replace(clients=stay, held=held)


def hand_of(settings: Settings) -> tuple[DataSet, Hand]:
    """The data set of the settings, and who gets which of its rows."""
    source = _instance(SOURCES, settings.data)
    if hasattr(source, "deal"):
        raise SettingError(f"data.name = {settings.data.name!r}: makes its own clients, there are no rows to deal out; "
                           "choose another data set")
    data: DataSet = source.load(settings.dealing.seed)
    return data, hand_out(data, _instance(PARTITIONS, settings.partition), settings.dealing)


def pose(settings: Settings, dealt: Dealt) -> Problem:
    """The problem of the settings, made from the data and the model."""

    def net(outputs: int) -> nn.Module:
        if settings.model is None:
            raise SettingError(f"model: is missing, and problem {settings.problem.name!r} needs a net; add "
                               f"[model] with a name out of {', '.join(MODELS)}")
        shape = tuple(dealt.clients.inputs.shape[1:])
        model = model_of(lookup(MODELS, settings.model.name, "model"), settings.model.settings)
        run = settings.run
        return build(model, shape, outputs, run.seed if run.model_seed is None else run.model_seed)

    materials = Materials(dealt.clients, objective_weights(dealt.clients, settings.run.weights), dealt.classes, net)
    return own.pose(lookup(PROBLEMS, settings.problem.name, "problem"), settings.problem.settings, materials)


def algorithm_of(entry: Named) -> Algorithm:
    """The algorithm of this name with these settings."""
    known = entry.name in ALGORITHMS
    found: Algorithm = make(entry.name, **entry.settings) if known else _instance(ALGORITHMS, entry)
    return found


def participation(settings: Settings) -> Participation:
    return Participation(_instance(SELECTIONS, settings.select),
                         tuple(_instance(RESPONSES, each) for each in settings.respond))


def objective_weights(clients: Clients, kind: str) -> Tensor:
    """w_i of the objective, which sum to one."""
    size = clients.run.size.cpu().double()
    return size / size.sum() if kind == "size" else torch.full_like(size, 1 / len(size))


def device_of(run: Run) -> torch.device:
    wanted = run.device if run.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise SettingError("run.device = 'cuda': torch finds no CUDA device here; set it to 'cpu' or 'auto'")
    if wanted == "cuda" and "LOCAL_RANK" in os.environ:  # torchrun: one device for each process of a machine
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(wanted)


def _instance(registry: dict[str, Any], entry: Named) -> Any:
    return lookup(registry, entry.name, "settings")(**entry.settings)


def placed_rows(rows: Rows, device: torch.device, dtype: torch.dtype) -> Rows:
    return Rows(*(part.to(device, dtype if part.is_floating_point() else part.dtype) for part in rows))
