"""The points of a search: which settings vary, and which values of them are tried next.

A grid is the product of its values. A range is searched by Optuna's TPE: what is known of all points tried so far goes
in, the next few come out; nothing is kept between two such questions, so a search goes on from what lies on disk.
"""

from __future__ import annotations

import itertools
import json
import math
import tomllib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedsaddle.config import Settings
from fedsaddle.config.validation import nearest
from fedsaddle.contracts import SettingError

Values = dict[str, Any]  # setting -> value


class Choice(NamedTuple):
    """Values to try."""

    values: tuple[Any, ...]

    def holds(self, value: Any) -> bool:
        return value in self.values


class Range(NamedTuple):
    """Numbers between two, both included."""

    low: float
    high: float
    log: bool
    whole: bool

    def holds(self, value: Any) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high


Axes = dict[str, Choice | Range]  # setting -> what it may be


class Told(NamedTuple):
    """What is known of a point that was tried."""

    values: Values
    score: float | None  # None: it died, which counts as worse than anything
    given_up: int | None = None  # the round after which it was pruned, with this score


def choices(texts: Iterable[str]) -> Axes:
    """The axes of `section.key=v1,v2,v3`."""
    return {key: _choice(f"--grid {text!r}", listed)
            for text in texts for key, listed in [_parted(f"--grid {text!r}", text, "0.1,0.3,1")]}


def from_table(grid: Mapping[str, Sequence[Any]]) -> Axes:
    """The axes of a recipe's [grid]."""
    return {key: Choice(tuple(values)) for key, values in grid.items()}


def ranges(texts: Iterable[str]) -> Axes:
    """The axes of `section.key=low:high[:log][:int]`."""
    return {key: _range(f"--search {text!r}", span)
            for text in texts for key, span in [_parted(f"--search {text!r}", text, "0.01:1:log")]}


def _parted(where: str, text: str, example: str) -> tuple[str, str]:
    key, equals, rest = text.partition("=")
    key = key.strip()
    if not equals or "." not in key:
        raise SettingError(f"{where}: must be section.key=values, such as algorithm.eta={example}")
    if key == "run.seed":
        raise SettingError(f"{where}: every point is run with the same seeds; say how many with --seeds")
    return key, rest.strip()


def _choice(where: str, text: str) -> Choice:
    try:
        values = tomllib.loads(f"values = [{text}]")["values"]
    except tomllib.TOMLDecodeError:
        values = [_value(part.strip()) for part in text.split(",")]  # plain words need no quotes
    if not values or "" in values:
        raise SettingError(f"{where}: lacks a value; give values to try with commas between, such as 0.1,0.3,1")
    return Choice(tuple(value for i, value in enumerate(values) if value not in values[:i]))


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _range(where: str, text: str) -> Range:
    low_text, _, rest = text.partition(":")
    high_text, *kinds = rest.split(":")
    low, high = _value(low_text), _value(high_text)
    numbers = all(isinstance(end, int | float) and math.isfinite(end) for end in (low, high))
    if not numbers or not {*kinds} <= {"log", "int"}:
        raise SettingError(f"{where}: must be section.key=low:high with numbers, and :log or :int behind them")
    if low >= high:
        raise SettingError(f"{where}: {low} is not below {high}; give the smaller end first")
    if "log" in kinds and low <= 0:
        raise SettingError(f"{where}: a logarithmic range starts above 0; raise {low}, or leave out :log")
    if "int" in kinds and not all(isinstance(end, int) for end in (low, high)):
        raise SettingError(f"{where}: both ends of a range of whole numbers must be whole")
    return Range(low, high, "log" in kinds, "int" in kinds)


def by_method(axes: Axes, settings: Settings, labels: Sequence[str]) -> dict[str, Axes]:
    """The axes of each of these methods, as of a file that has it alone: `algorithms.LABEL.eta` is `algorithm.eta`, and
    `overrides.LABEL.run.rounds` is `run.rounds`.

    `algorithm.eta` is for every method that has an eta; an axis of a single method takes its place.
    """
    if not axes:
        raise SettingError("sweep: there is nothing to search; give --grid, --search, or --paper-grid where the recipe "
                           "has a [grid]")
    found: dict[str, Axes] = {label: {} for label in labels}
    own = {key: _addressed(key, settings) for key in axes if key.startswith(("algorithms.", "overrides."))}
    for key, axis in axes.items():
        having = [label for label in labels if _has(settings, label, key)]
        for label in having if key not in own else ():
            found[label][key] = axis
        if key not in own and not having:
            known = sorted({name for label in labels for name in settings.algorithms[label].settings})
            raise SettingError(f"{key}: is no setting of {', '.join(_name(settings, label) for label in labels)}"
                               f"{nearest(key.partition('.')[2], known)}; known: {', '.join(known)}")
    for key, (label, path) in own.items():
        if label in found:
            found[label][path] = axes[key]
    return found


def _addressed(key: str, settings: Settings) -> tuple[str, str]:
    """The method that an axis is for, and what it is called where that is alone."""
    section, _, rest = key.partition(".")
    for label in settings.algorithms:
        if label and rest.startswith(f"{label}."):
            path = rest.removeprefix(f"{label}.")
            return label, f"algorithm.{path}" if section == "algorithms" else path
    known = [label for label in settings.algorithms if label]
    raise SettingError(f"{key}: there is no method of that name{nearest(rest.partition('.')[0], known)}; "
                       + (f"choose one of {', '.join(known)}" if known else "write algorithm, there is only one"))


def _has(settings: Settings, label: str, key: str) -> bool:
    section, setting = key.split(".")[:2]
    entry = settings.algorithms[label]
    own = ":" in entry.name  # a class of the user's is asked when it is made
    return section != "algorithm" or own or setting in (*entry.settings, "name")


def _name(settings: Settings, label: str) -> str:
    return label or settings.algorithms[label].name


def product(axes: Axes) -> list[Values]:
    """All points of a grid; one without settings where nothing varies."""
    listed = {key: axis.values for key, axis in axes.items() if isinstance(axis, Choice)}
    return [dict(zip(listed, values, strict=True)) for values in itertools.product(*listed.values())]


def corners(axes: Axes) -> list[Values]:
    """Points with every value of every choice and both ends of every range."""
    ends = {key: axis.values if isinstance(axis, Choice) else (_end(axis, axis.low), _end(axis, axis.high))
            for key, axis in axes.items()}
    return [{key: values[min(i, len(values) - 1)] for key, values in ends.items()}
            for i in range(max(map(len, ends.values()), default=1))]


def _end(axis: Range, value: float) -> float:
    return int(value) if axis.whole else float(value)


def searched(axes: Axes) -> bool:
    """Whether there is a range, so that points must be asked for."""
    return any(isinstance(axis, Range) for axis in axes.values())


def asked(axes: Axes, told: Sequence[Told], count: int, higher: bool, drawn: int, seed: int) -> list[Values]:
    """So many points to try next. drawn: points that are drawn at random before any are chosen."""
    optuna = _optuna()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=drawn, constant_liar=True)
    study = optuna.create_study(direction="maximize" if higher else "minimize", sampler=sampler)
    spaces = {key: _space(optuna, axis) for key, axis in axes.items()}
    for one in told:
        study.add_trial(_remembered(optuna, axes, spaces, one))
    return [{key: json.loads(value) if isinstance(axes[key], Choice) else value
             for key, value in study.ask(spaces).params.items()} for _ in range(count)]


def _optuna() -> Any:
    try:
        import optuna  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise SettingError("--search: Optuna is not installed, which chooses the points; install the extra `sweep`: "
                           "pip install 'fedsaddle[sweep]', or give --grid") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _space(optuna: Any, axis: Choice | Range) -> Any:
    if isinstance(axis, Choice):
        return optuna.distributions.CategoricalDistribution([json.dumps(value) for value in axis.values])
    if axis.whole:
        return optuna.distributions.IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return optuna.distributions.FloatDistribution(axis.low, axis.high, log=axis.log)


def _remembered(optuna: Any, axes: Axes, spaces: Mapping[str, Any], one: Told) -> Any:
    """A point as Optuna knows it. One that died is given up before anything was measured: the worst there is."""
    states = optuna.trial.TrialState
    given_up = one.score is None or one.given_up is not None
    return optuna.trial.create_trial(
        state=states.PRUNED if given_up else states.COMPLETE,
        value=None if given_up else one.score,
        params={key: json.dumps(value) if isinstance(axes[key], Choice) else value
                for key, value in one.values.items()},
        distributions=dict(spaces),
        intermediate_values={one.given_up: one.score} if one.score is not None and one.given_up is not None else {},
    )
