"""The gate: what a reply must be before it counts. Pure: a reply and what is expected of it give a reason, or none.

Checked in this order: the fields, their shapes and types, that numbers are finite and not absurd, the ranges that the
algorithm's types and the problem declare (feasible points, losses, scores, shares, counts, mixtures), and, where it is
switched on, the size of the whole reply against what others sent to the same ask before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from fedsaddle.contracts import Point, Work, setting
from fedsaddle.maths.trees import named_leaves

REMEMBERED = 64  # norms of a work's last good replies
ENOUGH = 4  # norms that must be known before one can be out of line
SLACK = 1e-4  # of a float32 projection


@dataclass(frozen=True)
class Admission:
    """What replies are refused for. Across sites the gate always stands; in simulation where it is wanted."""

    simulated: bool = setting(False, "check every reply of a simulation too, which keeps the replies of a whole cohort "
                                     "in memory")
    largest: float = setting(1e16, "no number of a reply may be larger", above=0)
    norm_factor: float = setting(0.0, "a reply may be so many times as large as the median of those accepted before; "
                                      "0: no such bound", at_least=0)
    mib: int = setting(1024, "MiB that a reply may have on the wire", at_least=1)
    strikes: int = setting(3, "bad replies in a row after which a client is no longer asked", at_least=1)


class Expected(NamedTuple):
    """A reply as it must be."""

    leaves: dict[str, tuple[tuple[int, ...], torch.dtype]]
    kinds: dict[str, str]  # of fields, by their address; "" is the whole reply


class Gate:
    """Examines replies, and remembers how large good ones were."""

    def __init__(self, settings: Admission, project: Callable[[Point], Point], ranges: dict[str, Any]) -> None:
        self.settings, self.project, self.ranges = settings, project, ranges
        self.norms: dict[str, deque[float]] = {}

    def examine(self, work: str, reply: dict[str, Tensor], expected: Expected, rows: int) -> str:
        """Why the reply, leaf by leaf, is refused; "" where it is not. rows: of its client."""
        reason = _form(reply, expected)
        if reason:
            return reason
        kind = {name: kind for name, kind in self._kinds(expected)}
        for name, leaf in reply.items():
            reason = self._numbers(name, leaf, kind.get(name, ""), rows)
            if reason:
                return reason
        for field, what in expected.kinds.items():
            if what == "feasible" and not self._feasible(field, reply):
                return f"{_called(field)} is not in the problem's domain"
        return self._norm(work, reply)

    def accepted(self, work: str, reply: dict[str, Tensor]) -> None:
        """It is used: later ones are measured by it."""
        self.norms.setdefault(work, deque(maxlen=REMEMBERED)).append(_norm(reply))

    def _kinds(self, expected: Expected) -> Iterator[tuple[str, str]]:
        for name in expected.leaves:
            for field, kind in expected.kinds.items():
                if name == field or not field or name.startswith(f"{field}."):
                    yield name, kind

    def _numbers(self, name: str, leaf: Tensor, kind: str, rows: int) -> str:
        if not leaf.is_floating_point() and not kind:
            return ""
        values = leaf if leaf.is_floating_point() else leaf.double()
        values = values[~values.isnan()] if kind == "scores" else values
        if not bool(torch.isfinite(values).all()):
            return f"{_called(name)} is not finite"
        if values.numel() and float(values.abs().max()) > self.settings.largest:
            return f"{_called(name)} has a number above {self.settings.largest:g}"
        low, high = self._range(kind, rows)
        if values.numel() and not low - SLACK <= float(values.min()) <= float(values.max()) <= high + SLACK:
            return f"{_called(name)} is outside {low:g} to {high:g}, as a {kind} must not be"
        if kind == "mixture" and abs(float(values.sum()) - 1) > SLACK * max(1, values.numel()) ** 0.5:
            return f"{_called(name)} does not sum to one, as weights on the simplex must"
        return ""

    def _range(self, kind: str, rows: int) -> tuple[float, float]:
        usual = {"share": (0.0, 1.0), "mixture": (0.0, 1.0), "counts": (0.0, float(rows))}
        largest = self.settings.largest
        low, high = usual.get(kind) or self.ranges.get(kind, (-largest, largest))
        return float(low), float(high)

    def _feasible(self, field: str, reply: dict[str, Tensor]) -> bool:
        prefix = f"{field}." if field else ""
        if f"{prefix}x" not in reply:
            return True  # this time the field is empty
        z = Point(reply[f"{prefix}x"], reply[f"{prefix}y"])
        nearest = self.project(z)
        return all(bool((one - other).abs().max() <= SLACK * (1 + one.abs().max())) if one.numel() else True
                   for one, other in zip(z, nearest, strict=True))

    def _norm(self, work: str, reply: dict[str, Tensor]) -> str:
        known = self.norms.get(work, ())
        if not self.settings.norm_factor or len(known) < ENOUGH:
            return ""
        bound, norm = self.settings.norm_factor * median(known), _norm(reply)
        return f"its norm {norm:.3g} is above {bound:.3g}, {self.settings.norm_factor:g} times the median of earlier " \
               "replies" if norm > bound else ""


def _form(reply: dict[str, Tensor], expected: Expected) -> str:
    missing, further = expected.leaves.keys() - reply.keys(), reply.keys() - expected.leaves.keys()
    if missing:
        return f"field {sorted(missing)[0]!r} is missing"
    if further:
        return f"field {sorted(further)[0][:40]!r} is not one of the reply's"
    for name, (shape, dtype) in expected.leaves.items():
        if tuple(reply[name].shape) != shape:
            return f"{_called(name)} has shape {str(tuple(reply[name].shape))[:60]}, not {shape}"
        if reply[name].dtype != dtype:
            return f"{_called(name)} is {reply[name].dtype}, not {dtype}"
    return ""


def _called(name: str) -> str:
    return f"field {name!r}" if name else "the reply"


def _norm(reply: dict[str, Tensor]) -> float:
    floats = [leaf.double().nan_to_num().square().sum() for leaf in reply.values() if leaf.is_floating_point()]
    return float(sum(floats)) ** 0.5 if floats else 0.0


def expected_of(work: Work, reply: Any) -> Expected:
    """What replies of a work must look like, from one of them."""
    leaves = {name: (tuple(leaf.shape), leaf.dtype) for name, leaf in named_leaves(reply)}
    return Expected(leaves, kinds_of(work))


def kinds_of(work: Work) -> dict[str, str]:
    """The declared kinds of a work's reply, by the addresses of its fields. Nothing where nothing is declared."""
    function = getattr(work, "__func__", work)
    try:
        returned = get_type_hints(function, include_extras=True).get("return")
        parts = get_args(returned)
        return dict(_declared(parts[0])) if parts else {}
    except (NameError, TypeError, AttributeError):  # annotations that mean nothing at run time declare nothing
        return {}


def _declared(hint: Any, address: str = "") -> Iterator[tuple[str, str]]:
    if get_origin(hint) in (Union, UnionType):
        for option in get_args(hint):
            yield from _declared(option, address)
    elif get_origin(hint) is Annotated:
        yield from ((address, kind) for kind in get_args(hint)[1:] if isinstance(kind, str))
    elif hasattr(hint, "_fields"):
        for name, inner in get_type_hints(hint, include_extras=True).items():
            yield from _declared(inner, f"{address}.{name}" if address else name)
