"""Works by name: what a server may have a site do. A method of the run's algorithm, or one of few functions."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from fedsaddle.contracts import Algorithm, Problem, SettingError, Work
from fedsaddle.metrics.histogram import counting, problem_score
from fedsaddle.problems.auc import positive_share
from fedsaddle.problems.shares import classes_held

SHARED: dict[str, Work] = {
    "positive_share": positive_share,
    "classes_held": classes_held,
    "histogram": counting(problem_score),
}
OF_ALGORITHM, OF_PROBLEM = "algorithm.", "problem."


def name_of(work: Work, algorithm: Algorithm, problem: Problem) -> str:
    """The name under which a site finds the same work."""
    for name, shared in SHARED.items():
        if work is shared:
            return name
    if getattr(work, "__self__", None) == algorithm:
        return f"{OF_ALGORITHM}{work.__name__}"
    if getattr(work, "__module__", "") == type(problem).__module__ and "." not in getattr(work, "__qualname__", "."):
        return f"{OF_PROBLEM}{work.__name__}"
    raise SettingError(f"work {getattr(work, '__qualname__', work)!r}: no site would find it; write it as a method of "
                       "the algorithm, or as a function beside the problem")


def found(name: str, algorithm: Algorithm, problem: Problem) -> Work | None:
    """The work of this name, or None. Names with an underscore in front, and whatever is no work, are not found."""
    if name in SHARED:
        return SHARED[name]
    prefix, dot, rest = name.partition(".")
    if not dot or rest.startswith("_") or not rest.isidentifier():
        return None
    owner: Any = algorithm if f"{prefix}." == OF_ALGORITHM else \
        sys.modules.get(type(problem).__module__) if f"{prefix}." == OF_PROBLEM else None
    work = getattr(owner, rest, None)
    return work if _is_work(work) else None


def _is_work(work: Any) -> bool:
    """A function of four arguments, the first of which is an oracle."""
    if not (inspect.isfunction(work) or inspect.ismethod(work)):
        return False
    names = list(inspect.signature(work).parameters.values())
    return len(names) == 4 and names[0].name == "oracle"
