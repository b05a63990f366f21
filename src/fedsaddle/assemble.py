"""From settings to the objects of a run; the only reader of the registries."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedsaddle.algorithms import make
from fedsaddle.config import Named, Run, Settings
from fedsaddle.contracts import Algorithm, Materials, Point, Problem, Rows, SettingError
from fedsaddle.data.clients import Clients, clients_from_arrays
from fedsaddle.data.partitions import PARTITIONS
from fedsaddle.data.sources import SOURCES, one_class
from fedsaddle.engine import checkpoint
from fedsaddle.engine.federation import PREPARATION, EngineFederation
from fedsaddle.engine.reference import Reference
from fedsaddle.engine.simulation import Simulation
from fedsaddle.engine.training import Measures, Plan, Progress, evaluator, first_progress, prepare
from fedsaddle.models import MODELS, build
from fedsaddle.participation import RESPONSES, SELECTIONS, Participation
from fedsaddle.participation.selection import Population
from fedsaddle.problems import PROBLEMS


class Job(NamedTuple):
    """Everything that a run needs, at the point where it starts or goes on."""

    algorithm: Algorithm
    problem: Problem
    federation: EngineFederation
    evaluate: Callable[[Point], tuple[Measures, list[str]]]
    plan: Plan
    progress: Progress
    complaints: list[str]  # about damaged checkpoints


class Dealt(NamedTuple):
    """The data of a run."""

    clients: Clients
    test: Rows | None
    classes: int


def job_from_settings(settings: Settings, label: str, checkpoints: Path | None = None) -> Job:
    """The job of one method of a settings file."""
    dealt = deal(settings)
    method = settings.algorithms[label]
    algorithm = make(method.name, **method.settings)
    problem = pose(settings, dealt)
    return assemble(algorithm, problem, dealt.clients, dealt.test, participation(settings), settings.run, checkpoints)


def assemble(
    algorithm: Algorithm, problem: Problem, clients: Clients, test: Rows | None, participation: Participation,
    run: Run, checkpoints: Path | None = None,
) -> Job:
    """The job of these objects, from the newest valid checkpoint where there is one."""
    device, dtype = device_of(run), getattr(torch, run.dtype)
    problem = _placed(problem, device)
    if getattr(problem, "strata", ()):
        clients = clients.stratified()
    clients = clients.to(device, dtype)
    population = Population(clients.count, clients.run.size.cpu(), objective_weights(clients, run.weights))
    engine = Reference(problem, clients, run.batch_size, dtype) if run.engine == "reference" else \
        Simulation(problem, clients, run.batch_size, dtype, run.chunk)
    federation = EngineFederation(engine, participation, population, run.seed)
    z = Point(*(part.detach().to(device, dtype) for part in problem.first()))

    saved, complaints = checkpoint.load(checkpoints) if checkpoints else (None, [])
    if saved and hasattr(problem, "with_constants"):
        problem = problem.with_constants(saved.constants)
    federation.begin(PREPARATION)
    problem = prepare(problem, federation)
    progress = first_progress(algorithm, z, federation)
    if saved:
        engine.load(saved.clients)
        progress = saved.progress(progress.server)
    sets = {"train": clients.rows} | ({"test": _rows(test, device, dtype)} if test else {})
    chosen = {name: sets[name] for name in run.evaluate_on if name in sets} or sets
    plan = Plan(run.rounds, run.evaluate_every, run.stop_after_floats)
    return Job(algorithm, problem, federation, evaluator(problem, chosen), plan, progress, complaints)


def deal(settings: Settings) -> Dealt:
    """The data set of the settings, dealt to clients."""
    source = SOURCES[settings.data.name](**settings.data.settings)
    dealing = settings.dealing
    if hasattr(source, "deal"):  # a source that makes its own clients
        return Dealt(source.deal(dealing.clients, dealing.seed), None, 0)
    data = source.load(dealing.seed)
    owner = _instance(PARTITIONS, settings.partition).deal(data.train.targets, dealing.clients, dealing.seed)
    train, test = data.train.targets, data.test.targets
    if dealing.positive is not None:
        train, test = one_class(train, dealing.positive), one_class(test, dealing.positive)
    return Dealt(clients_from_arrays(data.train.inputs, train, owner), Rows(data.test.inputs, test), data.classes)


def pose(settings: Settings, dealt: Dealt) -> Problem:
    """The problem of the settings, made from the data and the model."""

    def net(outputs: int) -> nn.Module:
        if settings.model is None:
            raise SettingError(f"model: is missing, and problem {settings.problem.name!r} needs a net; add "
                               f"[model] with a name out of {', '.join(MODELS)}")
        shape = tuple(dealt.clients.inputs.shape[1:])
        return build(_instance(MODELS, settings.model), shape, outputs, settings.run.seed)

    materials = Materials(dealt.clients, objective_weights(dealt.clients, settings.run.weights), dealt.classes, net)
    problem: Problem = PROBLEMS[settings.problem.name].pose(settings.problem.settings, materials)
    return problem


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
    return torch.device(wanted)


def _instance(registry: dict[str, Any], entry: Named) -> Any:
    return registry[entry.name](**entry.settings)


def _placed(problem: Problem, device: torch.device) -> Problem:
    """The problem with its modules' buffers on the device; a user's own module is left where it was."""
    if device.type == "cpu" or not dataclasses.is_dataclass(problem):
        return problem
    nets = {f.name: copy.deepcopy(net).to(device) for f in dataclasses.fields(problem)
            if isinstance(net := getattr(problem, f.name), nn.Module)}
    return dataclasses.replace(problem, **nets) if nets else problem


def _rows(rows: Rows, device: torch.device, dtype: torch.dtype) -> Rows:
    return Rows(*(part.to(device, dtype if part.is_floating_point() else part.dtype) for part in rows))
