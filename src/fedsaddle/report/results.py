"""Numbers of series: where each ended, its best, where all stood after equal floats; curves over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsaddle.config.lookup import lookup
from fedsaddle.contracts import SettingError
from fedsaddle.problems import PROBLEMS
from fedsaddle.report.series import COMPLETE, DIVERGED, Run, Series
from fedsaddle.report.tables import number

HIGHER = ("auc", "accuracy", "precision", "inception_score")  # better when higher; everything else when lower
BUT = ("_spread", "_deviation")  # of whatever: better when lower
FURTHER = 10
AXES = {  # name: where it stands in the running totals
    "rounds": (), "floats": ("floats_up",), "bytes": ("bytes_up", "bytes_down"), "time": ("virtual_seconds",),
}


class Spread(NamedTuple):
    """A number over seeds: mean, and standard deviation with n - 1; None where it is not known."""

    mean: float | None
    deviation: float | None
    seeds: int

    @property
    def text(self) -> str:
        """Both with the same digits behind the point, where the mean has four."""
        if self.mean is None or self.deviation is None:
            return number(self.mean)
        plain = 1e-3 <= abs(self.mean) < 1e4 and self.deviation < 1e4
        return f"{number(self.mean)} ± " + (f"{self.deviation:.4f}" if plain else number(self.deviation))


class Line(NamedTuple):
    """One series in the table of results."""

    label: str
    seeds: tuple[int, ...]
    rounds: tuple[int, int]  # fewest and most of its runs
    final: Spread
    best: Spread
    equal: Spread
    floats_up: Spread
    bytes: Spread
    seconds: Spread
    states: tuple[str, ...]  # of every seed
    alarmed: int  # complete, but with a solution that is worth nothing; its numbers are in the means

    @property
    def died(self) -> int:
        return self.states.count(DIVERGED) + self.alarmed

    @property
    def unfinished(self) -> int:
        return sum(state not in (COMPLETE, DIVERGED) for state in self.states)

    @property
    def rounds_text(self) -> str:
        return f"{self.rounds[0]:,}" if self.rounds[0] == self.rounds[1] else f"{self.rounds[0]:,}-{self.rounds[1]:,}"

    @property
    def state_text(self) -> str:
        """How its runs ended, in words."""
        told = [f"{self.states.count(state)} of {len(self.states)} {state}" if len(self.states) > 1 else state
                for state in dict.fromkeys(self.states) if state != COMPLETE]
        told += [f"{self.alarmed} of {len(self.states)} with an alarm"] if self.alarmed else []
        return ", ".join(told) or COMPLETE


def in_short(seeds: Sequence[int]) -> str:
    """Many that follow each other as their first and last."""
    if len(seeds) > 3 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def higher(measure: str) -> bool:
    """Whether a measure is better when it is higher."""
    name = measure.partition(".")[2]
    return any(word in name for word in HIGHER) and not name.endswith(BUT)


def value(record: dict[str, Any], measure: str) -> float | None:
    """A measure such as test.auc out of a record; None where it is not there or not finite."""
    of, _, name = measure.partition(".")
    found = record.get("measures", {}).get(of, {}).get(name)
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else None


def measures(series: Sequence[Series]) -> list[str]:
    """Every measure of every data set in the records."""
    return list(dict.fromkeys(f"{of}.{name}" for one in series for run in one.runs for record in run.records
                              for of, values in record.get("measures", {}).items() for name in values))


def headline(series: Sequence[Series]) -> str:
    """The measure to show first: that of the settings, or of the problem; of the test rows where there are some."""
    known = measures(series)
    for one in series:
        run, problem = one.tables.get("run", {}), one.tables.get("problem", {}).get("name", "")
        found = first_known(usual_measure(problem, run.get("headline", ""), run.get("image_samples", 0)), known)
        if found:
            return found
    return next((name for name in known if name.startswith("test.")), known[0] if known else "")


def usual_measure(problem: str, headline: str, image_samples: int) -> str:
    """The measure to show first, of whichever rows: that of the settings, or of the problem."""
    try:
        own: str = getattr(lookup(PROBLEMS, problem, "problem"), "headline", "loss")
    except SettingError:  # a class of the user's own that is not at hand here
        own = "loss"
    return headline or ("inception_score" if image_samples else own)


def first_known(name: str, known: Sequence[str]) -> str:
    """Of which rows a measure is shown first; empty if of none."""
    return next((f"{of}.{name}" for of in ("test", "images", "clients", "train") if f"{of}.{name}" in known), "")


def chosen(series: Sequence[Series], measure: str | None, study: dict[str, Any]) -> str:
    """A measure the user named, or that of the study, or the headline."""
    known = measures(series)
    if measure and measure not in known:
        raise SettingError(f"--measure {measure!r}: is not in the records; choose one of {', '.join(known)}")
    return measure or (study["measure"] if study.get("measure") in known else headline(series))


def spread(values: Sequence[float | None]) -> Spread:
    numbers = [value for value in values if value is not None]
    return Spread(statistics.fmean(numbers) if numbers else None,
                  statistics.stdev(numbers) if len(numbers) > 1 else None, len(numbers))


def evaluations(run: Run) -> list[dict[str, Any]]:
    return [record for record in run.records if "measures" in record]


def total(run: Run, names: Sequence[str]) -> float:
    return sum(run.records[-1]["total"][name] for name in names) if run.records else 0


def budget(series: Sequence[Series]) -> int | None:
    """Floats that every complete run has received; None where there is nothing to compare."""
    ends = [int(total(run, ("floats_up",))) for one in series for run in one.runs if run.state == COMPLETE]
    return min(ends) if ends and len(series) > 1 else None


def results(series: Sequence[Series], measure: str, smooth: int = 1) -> list[Line]:
    """The table of results. smooth: evaluations whose mean counts as one value."""
    floats, better = budget(series), max if higher(measure) else min
    lines = []
    for one in series:
        kept = [looks(run, measure, smooth) for run in one.evaluated]
        known = [[look.value for look in found if look.value is not None] for found in kept]
        rounds = [run.records[-1]["round"] if run.records else 0 for run in one.runs]
        lines.append(Line(
            one.label, tuple(run.seed for run in one.runs), (min(rounds), max(rounds)),
            final=spread([found[-1].value if found else None for found in kept]),
            best=spread([better(values) if values else None for values in known]),
            equal=spread([at_floats(run, found, floats) for run, found in zip(one.evaluated, kept, strict=True)]),
            floats_up=spread([total(run, ("floats_up",)) for run in one.evaluated]),
            bytes=spread([total(run, ("bytes_up", "bytes_down")) for run in one.evaluated]),
            seconds=spread([sum(r.get("seconds", 0.0) for r in run.records) for run in one.evaluated]),
            states=tuple(run.state for run in one.runs),
            alarmed=sum(run.died and run.state == COMPLETE for run in one.runs)))
    return lines


class Look(NamedTuple):
    """An evaluation."""

    floats: int  # received by the server until then
    value: float | None  # of a measure


def looks(run: Run, measure: str, smooth: int) -> list[Look]:
    """Each the mean of itself and those before it, `smooth` in all; those with fewer before them are left out."""
    found = evaluations(run)
    values = [math.nan if (each := value(record, measure)) is None else each for record in found]
    means = [statistics.fmean(values[at - smooth : at]) for at in range(smooth, len(values) + 1)]
    return [Look(record["total"]["floats_up"], None if math.isnan(mean) else mean)
            for record, mean in zip(found[smooth - 1 :], means, strict=True)]


def at_floats(run: Run, found: Sequence[Look], floats: int | None) -> float | None:
    """At the last evaluation before the server had received more floats; None for a run that did not come so far."""
    if floats is None or total(run, ("floats_up",)) < floats:
        return None
    within = [look.value for look in found if look.floats <= floats]
    return within[-1] if within else None


def winners(lines: Sequence[Line], column: str, up: bool) -> set[int]:
    """The lines with the best mean in a column; none where there is only one line."""
    means = [getattr(line, column).mean for line in lines]
    known = [mean for mean in means if mean is not None]
    if len(known) < 2:
        return set()
    best = (max if up else min)(known)
    return {at for at, mean in enumerate(means) if mean == best}


def along(run: Run, axis: str) -> list[float]:
    """Where on an axis a run was evaluated."""
    if axis == "rounds":
        return [record["round"] for record in evaluations(run)]
    return [sum(record["total"].get(name, 0) for name in AXES[axis]) for record in evaluations(run)]


def stretched(series: Sequence[Series], axis: str) -> bool:
    """Whether some series go so much further on an axis than others that only a logarithm shows both."""
    ends = [max(found) for one in series if (found := [at for run in one.runs for at in along(run, axis)[-1:]])]
    return len(ends) > 1 and max(ends) > FURTHER * min(ends) > 0


def smoothed(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Each the mean of itself and those before it, `width` in all; at the start of as many as there are."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    last = np.arange(1, len(values) + 1)
    first = np.maximum(last - width, 0)
    return values if width < 2 else (sums[last] - sums[first]) / (last - first)


class Curve(NamedTuple):
    """Over seeds, at each x: mean and standard deviation (NaN for one seed)."""

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]


def curve(runs: Sequence[dict[str, Any]], axis: str, measure: str, smooth: int = 1) -> Curve:
    """Of runs as the page holds them. Against rounds seeds meet at equal ones; else they are interpolated on a grid.

    smooth: evaluations whose mean counts as one, as on the page.
    """
    points = []
    for run in runs:
        x = np.asarray(run["x"].get(axis, []), dtype=float)
        y = np.array([np.nan if each is None else each for each in run["y"].get(measure, [])], dtype=float)
        if len(y):
            points.append((x[np.isfinite(y)], smoothed(y[np.isfinite(y)], smooth)))
    points = [(x, y) for x, y in points if len(x)]
    if not points:
        return Curve(*(np.zeros(0),) * 3)
    if axis == "rounds":
        grid = np.unique(np.concatenate([x for x, _ in points]))
        stacked = np.full((len(points), len(grid)), np.nan)
        for at, (x, y) in enumerate(points):
            stacked[at, np.searchsorted(grid, x)] = y
    elif len(points) == 1:
        grid, stacked = points[0][0], points[0][1][None]
    else:
        grid = np.linspace(max(x[0] for x, _ in points), min(x[-1] for x, _ in points), max(len(x) for x, _ in points))
        stacked = np.stack([np.interp(grid, x, y) for x, y in points])
    seeds = np.isfinite(stacked).sum(0)
    mean = np.nansum(stacked, 0) / seeds
    squares = np.nansum((stacked - mean) ** 2, 0)
    return Curve(grid, mean, np.sqrt(np.where(seeds > 1, squares / np.maximum(seeds - 1, 1), np.nan)))
