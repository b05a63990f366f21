"""What a method's runs over several seeds have measured: curves, their values, means and spreads."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Look(NamedTuple):
    """One evaluation."""

    round: int
    floats: int  # received by the server until then
    value: float


class Curve(NamedTuple):
    """One seed of one method."""

    seed: int
    looks: tuple[Look, ...]  # of the measure, smoothed
    died: str  # why the run ended early, or its solution is worth nothing; empty: it did not
    cut: bool = False  # it ended early, so it has no value at the end, and none to compare
    unfinished: str = ""  # how far it is, where it is yet to go on; its end is where it is now


class Spread(NamedTuple):
    """A number over seeds; none of them: nan."""

    mean: float
    deviation: float  # standard deviation of the seeds; 0 for one
    values: tuple[float, ...]

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "-"
        text = f"{self.mean:.4f}" if abs(self.mean) < 100 else f"{self.mean:.1f}"
        return f"{text} ± {self.deviation:.4f}" if len(self.values) > 1 else text


def spread(values: Iterable[float]) -> Spread:
    found = tuple(value for value in values if not math.isnan(value))
    if not found:
        return Spread(math.nan, math.nan, ())
    if any(math.isinf(value) for value in found):
        return Spread(math.inf, 0.0, found)
    return Spread(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else 0.0, found)


def looks(records: Sequence[dict[str, Any]], measure: str, smooth: int) -> tuple[Look, ...]:
    """The evaluations of `set.name` in records; each the mean of itself and those before it, `smooth` in all."""
    where, _, name = measure.partition(".")
    found = []
    for record in records:
        value = record.get("measures", {}).get(where, {}).get(name)
        if value is not None:
            found.append(Look(record["round"], record["total"]["floats_up"], float(value)))
    means = [statistics.fmean(look.value for look in found[max(0, i + 1 - smooth) : i + 1]) for i in range(len(found))]
    return tuple(look._replace(value=mean) for look, mean in zip(found, means, strict=True))[smooth - 1 :]


def at_end(curve: Curve) -> float:
    return curve.looks[-1].value if curve.looks and not curve.cut else math.nan


def at_best(curve: Curve, higher: bool) -> float:
    values = [look.value for look in curve.looks if not math.isnan(look.value) and not curve.cut]
    return (max if higher else min)(values) if values else math.nan


def at_floats(curve: Curve, floats: float) -> float:
    """Its last value for which the server had received at most so many floats."""
    within = [look.value for look in curve.looks if look.floats <= floats and not curve.cut]
    return within[-1] if within else math.nan


def rounds_to(curve: Curve, value: float, higher: bool, within: float = math.inf) -> float:
    """The first round in which the measure reached the value; infinite: never."""
    for look in curve.looks:
        if look.round <= within and (look.value >= value if higher else look.value <= value):
            return float(look.round)
    return math.inf


def common_floats(curves: Iterable[Curve]) -> float:
    """What every run has sent: methods are compared there. Runs that ended early do not hold back the others."""
    ends = [curve.looks[-1].floats for curve in curves if curve.looks and not curve.cut]
    return min(ends) if ends else math.inf
