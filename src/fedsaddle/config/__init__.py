"""Settings: TOML <-> frozen dataclasses, validated once. Errors name the key, the value, what is allowed and a remedy.

A section such as `[algorithm]` names an entry of a registry and gives its settings; the fields of the
dataclass declare the types, bounds and meanings.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedsaddle.algorithms import ALGORITHMS, theorems
from fedsaddle.config.files import merged, read, with_assignments
from fedsaddle.config.lookup import lookup, own_settings
from fedsaddle.config.validation import check, declared, known_keys, nearest, validated
from fedsaddle.contracts import SettingError, setting
from fedsaddle.data.dealing import USUAL, Dealing
from fedsaddle.data.partitions import PARTITIONS
from fedsaddle.data.sources import SOURCES
from fedsaddle.engine.calibration import EXECUTIONS
from fedsaddle.models import MODELS
from fedsaddle.participation import RESPONSES, SELECTIONS
from fedsaddle.problems import PROBLEMS
from fedsaddle.sites.admission import Admission
from fedsaddle.sites.roster import Patience

# Of [run]: how it is computed, which moves no result beyond rounding.
COMPUTED = ("device", "execution", "chunk", "workers", "threads", "states_mib", "checkpoint_every", "keep_checkpoints")


class Named(NamedTuple):
    """An entry of a registry and the settings given for it, validated, defaults filled in."""

    name: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class Run:
    """How a run is carried out."""

    rounds: int = setting(100, "rounds to run", at_least=1)
    seed: int = setting(0, "seed of every draw of the run and of the model's first weights")
    model_seed: int | None = setting(None, "seed of the model's first weights, if not that of the run")
    batch_size: int = setting(10, "rows in a minibatch; a client with fewer repeats its rows", at_least=1)
    weights: str = setting("equal", "weights of the clients in the objective: equal, or by their rows",
                           choices=("equal", "size"))
    engine: str = setting("simulation", "vectorised simulation, or one client at a time",
                          choices=("simulation", "reference"))
    device: str = setting("cpu", "cpu, cuda, or auto: cuda where there is one", choices=("cpu", "cuda", "auto"))
    dtype: str = setting("float32", "precision of variables and data", choices=("float32", "float64"))
    execution: str = setting("auto", "how clients are computed: operation by operation, from a trace, or compiled "
                             "(the latter two in a CUDA graph on a GPU); auto: tried out in the first rounds",
                             choices=EXECUTIONS)
    chunk: int | None = setting(None, "clients computed at once; none: tried out, as memory allows", at_least=1)
    workers: int | None = setting(None, "processes that share the clients of a round, on a CPU; none: one per core "
                                  "where the run is long enough to pay for them", at_least=1)
    threads: int = setting(1, "threads inside one operation; more than one is slower on a busy machine", at_least=1)
    matmul: str = setting("highest", "precision of float32 matrix products on a GPU; high: TF32, quicker, about 3 "
                          "digits, as convolutions have it in any case", choices=("highest", "high"))
    states_mib: int = setting(4096, "MiB of client states held in memory; what is more lies in files", at_least=1)
    evaluate_every: int = setting(10, "rounds between two evaluations", at_least=1)
    evaluate_on: tuple[str, ...] = setting(("test",), "data sets to evaluate on: test, train")
    record_clients: int = setting(100, "asks of at most so many clients are recorded with the numbers of those asked, "
                                  "answered and late; 0: none", at_least=0)
    trackers: tuple[str, ...] = setting((), "further places for the records besides records.jsonl: tensorboard, mlflow")
    headline: str = setting("", "the measure to show first, such as accuracy_worst; empty: the problem's own")
    progress: bool = setting(False, "measure max_y f(x, y) and the norm of its gradient too, which takes as long as "
                             "some dozen evaluations where the maximum is not known in closed form")
    progress_steps: int = setting(20, "steps of ascent in y for it", at_least=1)
    per_client: bool = setting(False, "measure loss and accuracy of every client too: worst, worst tenth, mean, spread")
    histogram_bins: int = setting(0, "bins of the histograms by which clients tell the AUC over all their rows at "
                                  "evaluations; 0: not asked", at_least=0)
    image_samples: int = setting(0, "images drawn at evaluations for the Inception Score and FID, 10000 in the papers; "
                                 "0: not measured", at_least=0)
    classifier: str = setting("", "file of the classifier that judges them; empty: of `fedsaddle classifier DATA`")
    checkpoint_every: int = setting(20, "rounds between two checkpoints", at_least=1)
    keep_checkpoints: int = setting(3, "checkpoints kept, the newest ones", at_least=1)
    stop_after_floats: int | None = setting(None, "stop once the server has received so many floats", at_least=1)


@dataclass(frozen=True)
class Settings:
    """A whole settings file. One method under `algorithm`, or several under `algorithms`, each with its label."""

    run: Run
    problem: Named
    data: Named
    dealing: Dealing
    partition: Named
    select: Named
    respond: tuple[Named, ...]
    model: Named | None
    algorithms: dict[str, Named]
    overrides: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)  # sections of single methods
    sites: Patience = dataclasses.field(default_factory=Patience)
    admission: Admission = dataclasses.field(default_factory=Admission)

    @property
    def single(self) -> bool:
        return set(self.algorithms) == {""}


__all__ = [
    "Dealing", "Named", "Run", "Settings", "check", "declared", "lookup", "method", "named", "read", "settle",
    "tables_of", "validated",
]

SECTIONS = ("run", "algorithm", "algorithms", "overrides", "problem", "model", "data", "participation", "sites",
            "admission")
STUDY = ("paper", "quick", "grid")  # of a recipe, for `reproduce` and `sweep`: a run has no use for them


def settle(tables: Mapping[str, Any], assignments: Iterable[str] = ()) -> Settings:
    """Validated settings from the tables of a file and assignments such as `algorithm.eta=0.2`."""
    tables = with_assignments(tables, assignments)
    known_keys(tables, (*SECTIONS, *STUDY), "", "section")
    data = _table(tables, "data")
    dealing = {f.name: data.pop(f.name) for f in dataclasses.fields(Dealing) if f.name in data}
    own = getattr(SOURCES.get(data.get("name", "")), "partition", "label-sorted")  # of a source with clients of its own
    partition = data.pop("partition", own)
    participation = _table(tables, "participation")
    known_keys(participation, ("select", "respond"), "participation", "setting")
    respond = participation.get("respond", [])
    settings = Settings(
        run=Run(**validated(Run, _table(tables, "run"), "run")),
        problem=named(PROBLEMS, tables.get("problem", "auc"), "problem"),
        data=named(SOURCES, data or "digits", "data"),
        dealing=Dealing(**validated(Dealing, dealing, "data")),
        partition=named(PARTITIONS, partition, "data.partition"),
        select=named(SELECTIONS, participation.get("select", "uniform"), "participation.select"),
        respond=tuple(named(RESPONSES, each, "participation.respond") for each in
                      (respond if isinstance(respond, list) else [respond])),
        model=named(MODELS, tables["model"], "model") if "model" in tables else None,
        algorithms=_methods(tables),
        overrides=_table(tables, "overrides"),
        sites=Patience(**validated(Patience, _table(tables, "sites"), "sites")),
        admission=Admission(**validated(Admission, _table(tables, "admission"), "admission")),
    )
    _possible(settings)
    for label in settings.overrides:
        _overridden(settings, label)
    return settings


def method(settings: Settings, label: str) -> Settings:
    """The settings of one of several methods alone, with what the file overrides for it."""
    if not settings.overrides.get(label):
        return dataclasses.replace(settings, algorithms={"": settings.algorithms[label]}, overrides={})
    tables = tables_of(settings)
    own = {"algorithm": tables.pop("algorithms")[label]}
    tables.pop("overrides")
    return settle(merged(tables, settings.overrides[label]) | own)


def tables_of(settings: Settings) -> dict[str, Any]:
    """The settings as tables for a TOML file, everything spelt out; the inverse of `settle`."""

    def table(entry: Named) -> dict[str, Any]:
        return _without_none({"name": entry.name, **entry.settings})

    data = table(settings.data) | _without_none(dataclasses.asdict(settings.dealing))
    tables: dict[str, Any] = {
        "run": _without_none(dataclasses.asdict(settings.run)),
        "problem": table(settings.problem),
        "data": {**data, "partition": table(settings.partition)},
        "participation": {"select": table(settings.select), "respond": [table(each) for each in settings.respond]},
    }
    if settings.model:
        tables["model"] = table(settings.model)
    for name, section, usual in (("sites", settings.sites, Patience()), ("admission", settings.admission, Admission())):
        if section != usual:
            tables[name] = _without_none(dataclasses.asdict(section))
    if settings.single:
        return tables | {"algorithm": table(settings.algorithms[""])}
    if settings.overrides:
        tables["overrides"] = settings.overrides
    return tables | {"algorithms": {label: table(entry) for label, entry in settings.algorithms.items()}}


def named(registry: Mapping[str, Any], entry: Any, where: str) -> Named:
    """An entry of a registry, or a class of a user's own (`package.module:Name`), from its name or its table."""
    table = {"name": entry} if isinstance(entry, str) else dict(entry) if isinstance(entry, Mapping) else None
    if table is None or not isinstance(table.get("name"), str):
        raise SettingError(f"{where} = {entry!r}: needs a name; choose one of {', '.join(registry)}")
    name = table.pop("name")
    known = lookup(registry, name, where)
    if name not in registry:
        return Named(name, own_settings(known, table, where))
    fixed, defaults = getattr(known, "fixed", {}), getattr(known, "defaults", {})
    if registry is ALGORITHMS and "theorem" in table:
        defaults = {**defaults, **_theorem(name, table.pop("theorem"), f"{where}.theorem")}
    return Named(name, validated(getattr(known, "algorithm", known), table, where, fixed, defaults))


def _theorem(algorithm: str, table: Any, where: str) -> dict[str, Any]:
    """The settings that a theorem chooses, from its paper, its number and its constants."""
    if not isinstance(table, Mapping) or not {"paper", "number"} <= table.keys():
        raise SettingError(f"{where} = {table!r}: needs a paper and a number, such as paper = 'cdma', number = 3, and "
                           "the theorem's constants")
    constants = {name: value for name, value in table.items() if name not in ("paper", "number")}
    return theorems.chosen(table["paper"], table["number"], constants, algorithm, where)


def _methods(tables: Mapping[str, Any]) -> dict[str, Named]:
    if ("algorithm" in tables) == ("algorithms" in tables):
        raise SettingError("algorithm: give either one [algorithm] or several [algorithms.LABEL] sections; "
                           f"this file has {'both' if 'algorithm' in tables else 'neither'}")
    if "algorithm" in tables:
        return {"": named(ALGORITHMS, tables["algorithm"], "algorithm")}
    methods = _table(tables, "algorithms")
    for label in methods:
        if not label or label.startswith(".") or "/" in label:
            raise SettingError(f"algorithms.{label}: is not a label; it names a folder, use letters, digits, - and _")
    return {label: named(ALGORITHMS, entry, f"algorithms.{label}") for label, entry in methods.items()}


def _overridden(settings: Settings, label: str) -> None:
    """Refuse what cannot be overridden, or does not fit."""
    if settings.single or label not in settings.algorithms:
        raise SettingError(f"overrides.{label}: there is no method of that name{nearest(label, settings.algorithms)}; "
                           "give the label of one of several [algorithms.LABEL]")
    known_keys(_table(settings.overrides, label), ("run", "problem", "model", "data", "participation"),
               f"overrides.{label}", "section")
    try:
        method(settings, label)
    except SettingError as error:
        raise SettingError(f"overrides.{label}: {error}") from error


def _possible(settings: Settings) -> None:
    """Settings that are right one by one and impossible together."""
    natural = hasattr(PARTITIONS.get(settings.partition.name), "natural")  # how many clients is known with the data
    clients = settings.dealing.clients or (math.inf if natural else USUAL)
    for label, method in settings.algorithms.items():
        where = f"algorithms.{label}" if label else "algorithm"
        asked = method.settings.get("asked")
        if asked is not None and asked > clients:
            raise SettingError(f"{where}.asked = {asked}: is more than data.clients = {clients}; ask no more clients "
                               "than there are")
    groups = settings.select.settings.get("groups", 1)
    if groups > clients:
        raise SettingError(f"participation.select.groups = {groups}: is more than data.clients = {clients}; "
                           "every group needs a client")
    if settings.dealing.hold_out and not settings.run.per_client:
        raise SettingError(f"data.hold_out = {settings.dealing.hold_out}: keeps rows out of training for measures of "
                           "single clients, which nobody asks for; set run.per_client = true, or leave it out")
    for name in settings.run.evaluate_on:
        if name not in ("test", "train"):
            close = nearest(name, ("test", "train"))
            raise SettingError(f"run.evaluate_on = {name!r}: must be 'test' or 'train'{close}")
    for key, value in settings.problem.settings.items():  # a number that both need is one number
        if settings.data.settings.get(key, value) != value:
            raise SettingError(f"problem.{key} = {value!r}: is not data.{key} = {settings.data.settings[key]!r}; "
                               "set both to the same")


def _table(tables: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = tables.get(name, {})
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping):
        raise SettingError(f"{name} = {value!r}: must be a table, [{name}]")
    return dict(value)


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items() if v is not None}
