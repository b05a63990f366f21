"""The step sizes of the papers' theorems, from the constants that a theorem names.

    make("cdma-ada", **step_sizes("cdma", 3, L_f=2, mu=0.5, sigma_1=1, sigma_2=1, L_0=4, S=8, K=12))

In a settings file: a table [algorithm.theorem] with `paper`, `number` and the constants. These step sizes are
made for proofs: they are safe, and often far smaller than the ones that work best.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from fedsaddle.algorithms.theorems import cross_device, robust, stagewise
from fedsaddle.algorithms.theorems.statement import Constant, Settings, Theorem
from fedsaddle.contracts import SettingError

THEOREMS: dict[tuple[str, str], Theorem] = {**cross_device.THEOREMS, **stagewise.THEOREMS, **robust.THEOREMS}


def step_sizes(paper: str, number: Any, **constants: Any) -> Settings:
    """The settings that a theorem chooses."""
    return chosen(paper, number, constants)


def chosen(
    paper: str, number: Any, constants: Mapping[str, Any], algorithm: str | None = None, where: str = "theorem",
) -> Settings:
    """The same with errors that say where it was asked for. `algorithm`: refuse a theorem that is not about it."""
    theorem = THEOREMS.get((str(paper), str(number)))
    if theorem is None:
        raise SettingError(f"{where}: there is no Theorem {number} of {paper!r} with step sizes; "
                           f"known: {_listed(THEOREMS)}")
    if algorithm is not None and algorithm not in theorem.algorithms:
        own = [key for key, each in THEOREMS.items() if algorithm in each.algorithms]
        raise SettingError(f"{where}: Theorem {number} of {paper} is about {' and '.join(theorem.algorithms)}, not "
                           f"about {algorithm!r}; theorems about it: {_listed(own) or 'none'}")
    for name, value in constants.items():
        _check(name, value, theorem.needs, f"{where}.{name} = {value!r}")
    missing = [name for name in theorem.needs if name not in constants and name not in theorem.optional]
    if missing:
        asked = "; ".join(f"{name}: {theorem.needs[name].meaning}" for name in missing)
        raise SettingError(f"{where}.{missing[0]}: is missing; Theorem {number} of {paper} needs {asked}")
    try:
        return theorem.settings(**constants)
    except SettingError as error:
        raise SettingError(f"{where}: Theorem {number} of {paper} {error}") from None


def _check(name: str, value: Any, known: dict[str, Constant], said: str) -> None:
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise SettingError(f"{said}: the theorem has no such constant{hint}; it has {', '.join(known)}")
    constant = known[name]
    number = isinstance(value, int) if constant.whole else isinstance(value, int | float)
    if not number or isinstance(value, bool) or not (0 <= value < float("inf")) or (value == 0 and not constant.zero):
        kind = "whole number" if constant.whole else "number"
        bound = "at least 0" if constant.zero else "above 0"
        raise SettingError(f"{said}: must be a {kind} {bound} ({constant.meaning})")


def _listed(keys: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{paper} {number}" for paper, number in keys)
