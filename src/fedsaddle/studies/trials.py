"""The trials of a search: where they lie, what became of them, their order, and the settings of the best.

    OUT/LABEL/NNN-eta=0.1/trial.json   a point: its number and values
    OUT/LABEL/NNN-eta=0.1/seed-S/      a run folder
    OUT/sweep.json                     all trials with their numbers
    OUT/best.toml                      the file with the best values of every method
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from fedsaddle.config import Settings, method, settle, tables_of
from fedsaddle.config.files import with_assignments
from fedsaddle.report.folder import RunFolder, plain, replace_file
from fedsaddle.report.tables import number
from fedsaddle.studies.curves import Curve, Spread, at_best, at_end, looks, spread
from fedsaddle.studies.errands import DIVERGED, PRUNED, ended
from fedsaddle.studies.points import Axes, Values

FINISHED, DIED, UNFINISHED = "finished", "died", "unfinished"
ORDER = (FINISHED, PRUNED, UNFINISHED, DIED)  # a dead seed ranks below everything
HEAD = "# The best of a sweep"


class Goal(NamedTuple):
    """What is compared."""

    measure: str  # data set and name
    higher: bool
    value: str = "end"  # of a curve: its end, or its best
    smooth: int = 1  # evaluations whose mean counts as one


@dataclass(frozen=True)
class Sweep:
    """What is searched, and where it is kept."""

    tables: Mapping[str, Any]  # of the file, with what was set over it
    settings: Settings
    axes: Mapping[str, Axes]  # of every method that is searched
    goal: Goal
    out: Path
    seeds: int = 3
    trials: int = 20  # of every method with ranges
    jobs: int = 1
    prune: bool = True

    def name(self, label: str) -> str:
        return label or self.settings.algorithms[label].name

    def seeds_of(self, label: str) -> range:
        first = method(self.settings, label).run.seed
        return range(first, first + self.seeds)


class Trial(NamedTuple):
    """A method at a point."""

    label: str
    number: int
    values: Values
    folder: Path

    def run(self, seed: int) -> Path:
        return self.folder / f"seed-{seed}"


class Outcome(NamedTuple):
    """What became of a trial."""

    trial: Trial
    state: str
    score: Spread  # over the seeds that lived
    by_seed: dict[int, float]  # of those
    died: dict[int, str]  # seed -> why
    pruned_at: int | None  # the round after which it was given up


def alone(sweep: Sweep, label: str) -> dict[str, Any]:
    """The tables of one method, as of a file that has no other."""
    if not label:
        return dict(sweep.tables)
    if sweep.settings.overrides.get(label):
        return tables_of(method(sweep.settings, label))
    rest = {name: table for name, table in sweep.tables.items() if name not in ("algorithms", "overrides")}
    return {**rest, "algorithm": sweep.tables["algorithms"][label]}


def settings_of(sweep: Sweep, label: str, values: Values, seed: int) -> Settings:
    """Of a run. Runs are carried out side by side, so each is one process."""
    return settle(alone(sweep, label), [*_assignments(values), f"run.seed={seed}", "run.workers=1"])


def _assignments(values: Values) -> list[str]:
    return [f"{key}={tomli_w.dumps({'value': value}).partition('=')[2].strip()}" for key, value in values.items()]


def trial_of(sweep: Sweep, label: str, count: int, values: Values) -> Trial:
    words = ",".join(f"{key.rpartition('.')[2]}={shown(value)}" for key, value in values.items()) or "as-given"
    name = f"{count:03d}-{re.sub(r'[^A-Za-z0-9.,=+_-]+', '_', words)[:80]}"
    return Trial(label, count, values, sweep.out / sweep.name(label) / name)


def shown(value: Any) -> str:
    """A value of a point."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def known(sweep: Sweep, label: str) -> list[Trial]:
    """The trials that lie on disk."""
    found = []
    for path in sorted((sweep.out / sweep.name(label)).glob("*/trial.json")):
        kept = json.loads(path.read_text(encoding="utf-8"))
        found.append(Trial(label, kept["number"], kept["values"], path.parent))
    return found


def keep(trial: Trial) -> None:
    if not (trial.folder / "trial.json").exists():
        trial.folder.mkdir(parents=True, exist_ok=True)
        replace_file(trial.folder / "trial.json", _json({"number": trial.number, "values": trial.values}))


def outcome(sweep: Sweep, trial: Trial, failed: Mapping[Path, str]) -> Outcome:
    """From the folders of its runs. failed: runs that could not be carried out, and why."""
    by_seed: dict[int, float] = {}
    died: dict[int, str] = {}
    pruned_at, whole = None, True
    for seed in sweep.seeds_of(trial.label):
        folder = trial.run(seed)
        how, records = ended(folder), RunFolder(folder).records()
        if not how and folder not in failed:
            whole = False
            continue
        why = failed.get(folder) or (_why_died(folder, how, records, sweep.goal.measure) if how != PRUNED else "")
        if why:
            died[seed] = why
            continue
        curve = Curve(seed, looks(records, sweep.goal.measure, sweep.goal.smooth), "")
        by_seed[seed] = at_best(curve, sweep.goal.higher) if sweep.goal.value == "best" else at_end(curve)
        pruned_at = records[-1]["round"] if how == PRUNED else pruned_at
    state = PRUNED if pruned_at is not None else UNFINISHED if not whole else DIED if died else FINISHED
    return Outcome(trial, state, spread(by_seed.values()), by_seed, died, pruned_at)


def _why_died(folder: Path, how: str, records: Sequence[dict[str, Any]], measure: str) -> str:
    """Why the numbers of a run are worth nothing; empty: they are."""
    if how == DIVERGED:
        return str(json.loads((folder / "ended.json").read_text(encoding="utf-8"))["why"])
    last: dict[str, Any] = next((record for record in reversed(records) if "measures" in record), {})
    if last.get("alarms"):
        return str(last["alarms"][0])
    where, _, name = measure.partition(".")
    finite = last.get("measures", {}).get(where, {}).get(name) is not None
    return "" if finite else f"{measure} is not finite at the end"


def ranked(sweep: Sweep, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Method by method, the best first."""
    labels = list(sweep.axes)

    def key(one: Outcome) -> tuple[float, ...]:
        score = math.inf if math.isnan(one.score.mean) else one.score.mean * (-1 if sweep.goal.higher else 1)
        return (labels.index(one.trial.label), ORDER.index(one.state), len(one.died), -(one.pruned_at or 0), score,
                one.trial.number)

    return sorted(outcomes, key=key)


def best(sweep: Sweep, outcomes: Sequence[Outcome]) -> dict[str, Outcome]:
    """Of every method that has a trial without a dead seed."""
    found: dict[str, Outcome] = {}
    for one in ranked(sweep, outcomes):
        if one.state == FINISHED and not math.isnan(one.score.mean):
            found.setdefault(one.trial.label, one)
    return found


def write_report(sweep: Sweep, outcomes: Sequence[Outcome]) -> None:
    """sweep.json"""
    chosen = best(sweep, outcomes)
    methods = {sweep.name(label): {
        "best": chosen[label].trial.number if label in chosen else None,
        "trials": [_numbers(sweep, one) for one in ranked(sweep, outcomes) if one.trial.label == label],
    } for label in sweep.axes}
    replace_file(sweep.out / "sweep.json", _json({**sweep.goal._asdict(), "seeds": sweep.seeds, "methods": methods}))


def _numbers(sweep: Sweep, one: Outcome) -> dict[str, Any]:
    return {"number": one.trial.number, "values": one.trial.values, "state": one.state, "mean": one.score.mean,
            "deviation": one.score.deviation, "by_seed": one.by_seed, "died": len(one.died) / sweep.seeds,
            "why": one.died, "pruned_at": one.pruned_at, "folder": str(one.trial.folder.relative_to(sweep.out))}


def best_file(sweep: Sweep, outcomes: Sequence[Outcome], command: str) -> str:
    """The settings file with the best values of every method, which `fedsaddle run` takes; empty: there are none."""
    chosen = best(sweep, outcomes)
    lines = [f"{HEAD}: {command}"]
    for label in sweep.axes:
        trials = sum(one.trial.label == label for one in outcomes)
        what = "none of its trials lived" if label not in chosen else (
            f"{sweep.goal.measure} {score_text(chosen[label].score)}, {sweep.goal.value}; {sweep.seeds} seeds, "
            f"{trials} trials; "
            + ", ".join(f"{key} = {shown(value)}" for key, value in chosen[label].trial.values.items()))
        lines.append(f"# {sweep.name(label)}: {what}")
    tables = best_tables(sweep, {label: one.trial.values for label, one in chosen.items()})
    return "\n".join([*lines, "", tomli_w.dumps(tables)]) if chosen else ""


def score_text(score: Spread) -> str:
    more = f" ± {number(score.deviation)}" if len(score.values) > 1 else ""
    return "-" if math.isnan(score.mean) else number(score.mean) + more


def best_tables(sweep: Sweep, chosen: Mapping[str, Values]) -> dict[str, Any]:
    """The file's tables with these values. What is not of a method itself goes to its [overrides]."""
    if set(chosen) == {""}:
        return with_assignments(sweep.tables, _assignments(chosen[""]))
    tables = with_assignments(sweep.tables, ())
    overrides = {label: table for label, table in tables.pop("overrides", {}).items() if label in chosen}
    methods = {label: table for label, table in tables.pop("algorithms", {}).items() if label in chosen}
    for label, values in chosen.items():
        own = {key: value for key, value in values.items() if key.startswith("algorithm.")}
        methods[label] = with_assignments({"algorithm": methods[label]}, _assignments(own))["algorithm"]
        spelt = tables_of(settings_of(sweep, label, values, 0))
        for key in values.keys() - own.keys():
            overrides[label] = _overridden(overrides.get(label, {}), key.split("."), spelt)
    return tables | ({"overrides": overrides} if overrides else {}) | {"algorithms": methods}


def _overridden(table: Mapping[str, Any], path: Sequence[str], spelt: Mapping[str, Any]) -> dict[str, Any]:
    """A table with what is spelt out at this path. An entry of a list, or a name, comes with all that is around it."""
    head, *rest = path
    before = table.get(head, {})
    whole = not rest or rest[0].isdigit() or rest == ["name"] or not isinstance(before, Mapping)
    return {**table, head: spelt[head] if whole else _overridden(before, rest, spelt[head])}


def _json(value: Any) -> bytes:
    return (json.dumps(plain(value), indent=1) + "\n").encode()
