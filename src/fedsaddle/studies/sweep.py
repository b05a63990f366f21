"""A search over settings: every method of a file is tried at many points, each with several seeds.

All that is known lies in the folders of the trials, so a search that was stopped or killed goes on where it was. Points
of ranges are asked for in waves, which depend on nothing but the waves before: however often a search is interrupted,
its points are the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from fedsaddle.assemble import job_from_settings
from fedsaddle.config import Settings, settle
from fedsaddle.config.files import with_assignments
from fedsaddle.config.validation import nearest
from fedsaddle.contracts import SettingError
from fedsaddle.report.folder import RunFolder
from fedsaddle.report.results import first_known, higher, usual_measure
from fedsaddle.runs import threads
from fedsaddle.studies import errands, points, trials
from fedsaddle.studies.errands import FAILED, PRUNED, STOPPED, Errand, News
from fedsaddle.studies.points import Axes, Told
from fedsaddle.studies.pruning import Pruning
from fedsaddle.studies.study import Paper, Study
from fedsaddle.studies.trials import DIED, UNFINISHED, Goal, Outcome, Sweep, Trial

TRIALS = 20  # of a search, where it is not said
DRAWN = 10  # points of a search that are drawn at random, at most
WAVE = 4  # points that are asked for at once, at least
PATIENCE = 4  # a run is not given up in the first of so many parts


class Asked(NamedTuple):
    """What the user wants, besides the study and its assignments."""

    axes: Axes
    only: tuple[str, ...] = ()
    seeds: int = 3
    trials: int | None = None
    measure: str = ""  # empty: of the paper, or the problem's headline
    higher: bool | None = None
    value: str = ""
    jobs: int | None = None
    prune: bool = True


class Interrupted(Exception):
    """Stopped by the user; the same search goes on when it is called again."""


Watch = Callable[[float, int, Sequence[Outcome]], None]  # runs done, runs in all, what is known


def planned(study: Study, assignments: Sequence[str], asked: Asked, out: Path) -> Sweep:
    """The search, with all that can be refused before anything runs refused."""
    tables = with_assignments(study.tables, assignments)
    settings = settle(tables)
    for label in asked.only:
        if settings.single or label not in settings.algorithms:
            raise SettingError(f"--only {label!r}: is no method of {study.name}{nearest(label, settings.algorithms)}; "
                               f"choose out of {', '.join(filter(None, settings.algorithms)) or 'the one there is'}")
    labels = [label for label in settings.algorithms if not asked.only or label in asked.only]
    axes = points.by_method(asked.axes, settings, labels)
    if asked.trials and not any(map(points.searched, axes.values())):
        raise SettingError(f"--trials {asked.trials}: a grid is tried as a whole; leave it out, or give --search")
    sweep = Sweep(tables, settings, axes, Goal("", True), out, asked.seeds, asked.trials or TRIALS,
                  asked.jobs or errands.usual_jobs(settings), asked.prune)
    _check(sweep)
    first = trials.settings_of(sweep, labels[0], points.corners(axes[labels[0]])[0], 0)
    goal = _goal(study.paper, first, asked, _measured(out) or measured(first))
    return replace(sweep, goal=goal)


def _check(sweep: Sweep) -> None:
    """Every point of a grid, the ends of every range, and that what lies there is of the same search."""
    for label, axes in sweep.axes.items():
        for values in points.corners(axes) if points.searched(axes) else points.product(axes):
            trials.settings_of(sweep, label, values, 0)
        for trial in trials.known(sweep, label) if points.searched(axes) else ():
            if trial.values.keys() != axes.keys() or not all(axes[k].holds(v) for k, v in trial.values.items()):
                raise SettingError(f"--out {str(sweep.out)!r}: holds trials of another search, such as {trial.values}; "
                                   "give another folder, or remove it")


def measured(settings: Settings) -> list[str]:
    """The measures that a run with these settings will have, by a look at its start."""
    job = job_from_settings(settings, "")
    with threads(settings.run.threads):
        found, _ = job.evaluate(job.algorithm.solution(job.progress.server))
    return [f"{name}.{measure}" for name, values in found.items() for measure in values]


def _measured(out: Path) -> list[str]:
    """The measures in records of this search, where there are some."""
    for path in out.rglob("records.jsonl"):
        for record in RunFolder(path.parent).records():
            if "measures" in record:
                return [f"{name}.{measure}" for name, values in record["measures"].items() for measure in values]
    return []


def _goal(paper: Paper, settings: Settings, asked: Asked, known: Sequence[str]) -> Goal:
    usual = usual_measure(settings.problem.name, settings.run.headline, settings.run.image_samples)
    own = paper.measure if paper != Paper() else first_known(usual, known) or f"test.{usual}"
    measure = asked.measure or own
    if measure not in known:
        raise SettingError(f"--measure {measure!r}: is not in the records of these runs{nearest(measure, known)}; "
                           f"choose one of {', '.join(known)}")
    if paper == Paper() or measure != paper.measure:
        paper = Paper(higher=higher(measure))
    up = paper.higher if asked.higher is None else asked.higher
    return Goal(measure, up, asked.value or paper.value, paper.smooth)


def carry_out(sweep: Sweep, watch: Watch) -> list[Outcome]:
    """All trials, ranked. A pruned first seed spares the others of its trial."""
    book = Book(sweep, watch)
    wave = 0
    while opened := [trial for label in sweep.axes for trial in wave_of(sweep, label, wave, book.outcomes())]:
        wave += 1
        book.open(opened)
        first = [_errand(sweep, trial, sweep.seeds_of(trial.label)[0], sweep.prune) for trial in opened]
        book.carry_out(first)
        book.carry_out([_errand(sweep, trial, seed) for trial, before in zip(opened, first, strict=True)
                        if errands.ended(before.folder) != PRUNED for seed in sweep.seeds_of(trial.label)[1:]])
    return book.outcomes()


def wave_of(sweep: Sweep, label: str, wave: int, outcomes: Sequence[Outcome]) -> list[Trial]:
    """The trials of a method that go together: all of a grid, or those that are asked for at once."""
    axes, there = sweep.axes[label], trials.known(sweep, label)
    if not points.searched(axes):
        return _grid(sweep, label, there) if wave == 0 else []
    drawn, size = max(WAVE, min(DRAWN, sweep.trials // 3)), max(WAVE, sweep.jobs)
    start = drawn + (wave - 1) * size if wave else 0
    numbers = range(start, min(sweep.trials, drawn + wave * size))
    found = {trial.number: trial for trial in there}
    if not all(count in found for count in numbers):
        told = sorted((one for one in outcomes if one.trial.label == label), key=lambda one: one.trial.number)
        asked = points.asked(axes, [_told(one) for one in told], len(numbers), sweep.goal.higher, drawn, wave)
        found = {count: trials.trial_of(sweep, label, count, values)
                 for count, values in zip(numbers, asked, strict=True)} | found
    return [found[count] for count in numbers]


def _grid(sweep: Sweep, label: str, there: Sequence[Trial]) -> list[Trial]:
    """A point that lies there already keeps its number, so a grid can be widened."""
    free = itertools.count(max((trial.number for trial in there), default=-1) + 1)
    return [next((trial for trial in there if trial.values == values), None)
            or trials.trial_of(sweep, label, next(free), values) for values in points.product(sweep.axes[label])]


def _told(one: Outcome) -> Told:
    return Told(one.trial.values, None if one.state == DIED or not one.score.values else one.score.mean, one.pruned_at)


def _errand(sweep: Sweep, trial: Trial, seed: int, prune: bool = False) -> Errand:
    settings = trials.settings_of(sweep, trial.label, trial.values, seed)
    pruning = Pruning(str(trial.folder.parent), sweep.goal.measure, sweep.goal.higher,
                      after=max(1, settings.run.rounds // PATIENCE))
    return Errand(trial.run(seed), settings, asdict(pruning) if prune else None)


class Book:
    """What is known while the search goes on; written down after every trial."""

    def __init__(self, sweep: Sweep, watch: Watch) -> None:
        self.sweep, self.watch = sweep, watch
        self.found: dict[Path, Outcome] = {}  # by the folder of the trial
        self.failed: dict[Path, str] = {}  # by the folder of the run
        self.rounds: dict[Path, int] = {}  # of a run in all
        self.done: dict[Path, float] = {}  # the part of a run that is done
        self.total = sweep.seeds * sum(sweep.trials if points.searched(axes) else len(points.product(axes))
                                       for axes in sweep.axes.values())

    def outcomes(self) -> list[Outcome]:
        return trials.ranked(self.sweep, list(self.found.values()))

    def open(self, opened: Sequence[Trial]) -> None:
        for trial in opened:
            trials.keep(trial)
            self.found[trial.folder] = trials.outcome(self.sweep, trial, self.failed)

    def carry_out(self, todo: Sequence[Errand]) -> None:
        self.rounds |= {errand.folder: errand.settings.run.rounds for errand in todo}
        ends = errands.carry_out(todo, self.sweep.jobs, self._hear)
        trials.write_report(self.sweep, self.outcomes())
        if len(ends) < len(todo) or any(news.state == STOPPED for news in ends.values()):
            raise Interrupted
        if todo and all(news.state == FAILED for news in ends.values()):
            raise SettingError(f"sweep: none of the runs could be carried out: {next(iter(ends.values())).why}")

    def _hear(self, news: News) -> None:
        over = news.state not in ("", STOPPED)
        self.done[news.folder] = 1.0 if over else news.round / self.rounds[news.folder]
        if news.state == FAILED:
            self.failed[news.folder] = news.why
        if over:
            trial = self.found[news.folder.parent].trial
            now = trials.outcome(self.sweep, trial, self.failed)
            self.found[trial.folder] = now
            if now.state == PRUNED:
                self.done |= {trial.run(seed): 1.0 for seed in self.sweep.seeds_of(trial.label)}
            if now.state != UNFINISHED:
                trials.write_report(self.sweep, self.outcomes())
        self.watch(sum(self.done.values()), self.total, self.outcomes())
