"""A paper's experiment again: all methods of a recipe over seeds, its numbers beside the published ones, a verdict per
claim.

    OUT/LABEL/seed-N/   a run folder
    OUT/study.json      the claims with their verdicts, and how it was made
    OUT/results.json    every number: per method its values, mean and spread, over seeds; table.csv: the same as a table
    OUT/curves.csv      mean and spread of every method at every evaluation, with rounds and floats received
    OUT/report.html     the page, and plots/ its pictures
"""

from __future__ import annotations

import csv
import io
import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fedsaddle.config import COMPUTED, Settings, method, settle
from fedsaddle.contracts import SettingError
from fedsaddle.report.folder import plain, replace_file
from fedsaddle.report.series import read_run
from fedsaddle.studies import curves as of
from fedsaddle.studies.claims import Evidence, Verdict, judge
from fedsaddle.studies.curves import Curve, Spread, spread
from fedsaddle.studies.errands import Errand, ended
from fedsaddle.studies.study import Paper, Study


class Plan(NamedTuple):
    """What is to be run."""

    study: Study
    quick: bool
    seeds: int
    labels: tuple[str, ...]
    settings: Settings
    command: str
    changed: tuple[str, ...] = ()  # what it has otherwise than the recipe, beyond how it is computed


class Line(NamedTuple):
    """A method of the table."""

    label: str
    value: Spread  # as the paper's table has it: at the end, or the best
    best: Spread
    equal_floats: Spread
    rounds: int
    died: tuple[str, ...]  # of which seeds, and why
    seeds: int
    published: float | None
    unfinished: tuple[str, ...] = ()  # of which seeds, and how far they are


class Results(NamedTuple):
    lines: tuple[Line, ...]
    floats: float  # where all had sent equally many
    verdicts: tuple[Verdict, ...]
    curves: dict[str, list[Curve]]


def planned(study: Study, seeds: int | None, quick: bool, only: Sequence[str], assignments: Sequence[str]) -> Plan:
    if quick and study.quick is None:
        raise SettingError(f"--quick: {study.name} has no miniature; leave it out, or add [quick] to a copy")
    small = study.quick if quick else None
    settings = settle(study.tables, [*(small.assignments if small else ()), *assignments])
    labels = tuple(only) or (small.only if small and small.only else tuple(settings.algorithms))
    for label in labels:
        if label not in settings.algorithms:
            raise SettingError(f"--only {label!r}: is no method of {study.name}; choose out of "
                               f"{', '.join(settings.algorithms)}")
    count = seeds or (small.seeds if small else 3)
    words = ["fedsaddle", "reproduce", study.name, *(["--quick"] if quick else []), "--seeds", str(count),
             *(word for label in only for word in ("--only", label)),
             *(word for text in assignments for word in ("--set", text))]
    changed = tuple(text for text in assignments if not _only_computed(text))
    return Plan(study, quick, count, labels, settings, shlex.join(words), changed)


def _only_computed(assignment: str) -> bool:
    *_, table, name = ["", *assignment.partition("=")[0].strip().split(".")]
    return table == "run" and name in COMPUTED


def errands(plan: Plan, out: Path, alone: bool) -> list[Errand]:
    """A run for every method and seed, seed by seed. alone: a run has the machine for itself."""
    found = []
    for seed in range(plan.seeds):
        for label in plan.labels:
            own = method(plan.settings, label)
            run = replace(own.run, seed=own.run.seed + seed, workers=own.run.workers if alone else 1)
            found.append(Errand(out / (label or own.algorithms[""].name) / f"seed-{seed}", replace(own, run=run)))
    return found


def results(plan: Plan, out: Path, unfinished: bool = False) -> Results:
    """What the run folders hold. unfinished: runs that are yet to go on count as far as they are."""
    paper = plan.study.paper

    def measured(measure: str) -> dict[str, list[Curve]]:
        names = {label: label or plan.settings.algorithms[label].name for label in plan.labels}
        return {label: _curves(out / name, plan.seeds, paper, measure, unfinished) for label, name in names.items()}

    found = measured(paper.measure)
    floats = of.common_floats(curve for each in found.values() for curve in each)
    lines = tuple(_line(label, each, paper, floats, plan.quick) for label, each in found.items())
    verdicts = []
    for claim in paper.claims:
        curves = measured(claim.measure) if claim.measure else found
        steps = {label: int(entry.settings.get("steps", 1)) for label, entry in plan.settings.algorithms.items()}
        verdicts.append(judge(claim, Evidence(curves, paper.higher, steps)))
    return Results(lines, floats, tuple(verdicts), found)


def write(plan: Plan, out: Path, got: Results) -> None:
    """The files of the results, beside the runs."""
    study, paper = plan.study, plan.study.paper
    replace_file(out / "study.json", _json({
        "recipe": study.name, "about": study.about, "departures": study.departures, "command": plan.command,
        "methods": [label or plan.settings.algorithms[""].name for label in plan.labels], "quick": plan.quick,
        "measure": paper.measure, "smooth": paper.smooth, "published_measure": paper.table,
        "published": {} if plan.quick else dict(paper.published),
        "claims": [verdict._asdict() for verdict in got.verdicts],
    }))
    replace_file(out / "results.json", _json({
        "equal_floats": got.floats, "methods": {line.label: _numbers(line) for line in got.lines}}))
    replace_file(out / "table.csv", _csv(table(plan, got)).encode())
    replace_file(out / "curves.csv", _csv(_points(got)).encode())


def table(plan: Plan, got: Results) -> list[list[str]]:
    """The results beside the published ones, with a head."""
    paper = plan.study.paper
    published = any(line.published is not None for line in got.lines)
    head = ["method", f"{paper.measure}, {paper.value}", *(["published"] if published else []),
            "best" if paper.value == "end" else "end", "at equal floats", "rounds", "seeds", "died"]
    rows = [head]
    for line in got.lines:
        other = line.best if paper.value == "end" else spread(of.at_end(c) for c in got.curves[line.label])
        rows.append([line.label, str(line.value), *([_text(line.published)] if published else []), str(other),
                     str(line.equal_floats), str(line.rounds), str(line.seeds), str(len(line.died))])
    return rows


def _curves(folder: Path, seeds: int, paper: Paper, measure: str, unfinished: bool) -> list[Curve]:
    found = []
    for seed in range(seeds):
        own = folder / f"seed-{seed}"
        done = ended(own)
        if done or (unfinished and (own / "records.jsonl").exists()):
            run = read_run(own)
            how_far = "" if done else f"{len(run.records)} of {run.tables['run']['rounds']} rounds"
            found.append(Curve(seed, of.looks(run.records, measure, paper.smooth),
                               str(run.ended.get("why", "")) or run.alarm, bool(run.ended), how_far))
    return found


def _line(label: str, found: list[Curve], paper: Paper, floats: float, quick: bool) -> Line:
    best = spread(of.at_best(curve, paper.higher) for curve in found)
    value = best if paper.value == "best" else spread(of.at_end(curve) for curve in found)
    return Line(label, value, best, spread(of.at_floats(curve, floats) for curve in found),
                max((curve.looks[-1].round for curve in found if curve.looks), default=0),
                tuple(f"seed {curve.seed}: {curve.died}" for curve in found if curve.died), len(found),
                None if quick else paper.published.get(label),
                tuple(f"seed {curve.seed}: {curve.unfinished}" for curve in found if curve.unfinished))


def _numbers(line: Line) -> dict[str, Any]:
    return {name: value._asdict() if isinstance(value, Spread) else value for name, value in line._asdict().items()
            if name != "label"}


def _points(got: Results) -> list[list[str]]:
    """Every evaluation of every method: over the seeds that were evaluated then."""
    rows = [["method", "round", "floats received", "mean", "deviation", "seeds"]]
    for label, found in got.curves.items():
        rounds = sorted({look.round for curve in found for look in curve.looks})
        by_round = [{look.round: look for look in curve.looks} for curve in found]
        for number in rounds:
            there = [looks[number] for looks in by_round if number in looks]
            value = spread(look.value for look in there)
            rows.append([label, str(number), f"{sum(look.floats for look in there) / len(there):.0f}",
                         repr(value.mean), repr(value.deviation), str(len(there))])
    return rows


def _text(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:g}"


def _json(value: Any) -> bytes:
    return (json.dumps(plain(value), indent=1) + "\n").encode()


def _csv(rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
