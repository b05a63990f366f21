"""What a theorem is to us: the constants it needs, the algorithms it is about, and the settings it chooses."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedsaddle.contracts import SettingError

Settings = dict[str, Any]


class Constant(NamedTuple):
    """A number that a theorem takes as known. All are positive; those with `zero` may be 0."""

    meaning: str
    whole: bool = False
    zero: bool = False


class Theorem(NamedTuple):
    """`settings` is a function of the constants, by keyword; those with a default may be left out."""

    algorithms: tuple[str, ...]
    settings: Callable[..., Settings]
    constants: Mapping[str, Constant]

    @property
    def needs(self) -> dict[str, Constant]:
        """The constants of this theorem, in its order."""
        return {name: self.constants[name] for name in inspect.signature(self.settings).parameters}

    @property
    def optional(self) -> set[str]:
        parameters = inspect.signature(self.settings).parameters.values()
        return {each.name for each in parameters if each.default is not each.empty}


def ratio(above: float, below: float) -> float:
    """above / below, where a bound with nothing below (no noise, no dissimilarity) does not bind."""
    return above / below if below > 0 else math.inf


def at_least_one(number: float) -> int:
    """A theorem's number of steps as a number of steps."""
    return max(1, round(number))


def require(holds: bool, condition: str, got: float) -> None:
    if not holds:
        raise SettingError(f"holds only for {condition}, which is {got:.6g} here; give other constants, or set the "
                           "step sizes by hand")
