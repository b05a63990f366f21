"""Periods of rounds whose whole change counts more at their end: what the amplified methods share (cyclic-auc)."""

from __future__ import annotations

from typing import Any

from fedsaddle.contracts import Federation, Point, setting


def amplification() -> Any:
    return setting(1.5, "g: at its end a period's change is multiplied by this", at_least=1)


def period() -> Any:
    return setting(None, "P: rounds in a period; none: until every group was active once", at_least=1)


def amplified(z: Point, hold: Point, g: float, federation: Federation) -> Point:
    """hold + g (z - hold), on the problem's domain; g = 1 leaves z as it is."""
    return z if g == 1 else federation.project(z + (g - 1) * (z - hold))
