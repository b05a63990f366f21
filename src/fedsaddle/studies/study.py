"""A recipe as a study: its settings, what its paper says about it, its miniature, the grids of its paper.

    [paper]           the measure of the figure, the published numbers, and the claims
    [quick]           a miniature for a laptop: assignments over the file
    [grid]            the values that the paper searched, by setting
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fedsaddle import recipes
from fedsaddle.config import read, settle, validated
from fedsaddle.config.validation import known_keys, nearest
from fedsaddle.contracts import SettingError, setting
from fedsaddle.models import MODELS
from fedsaddle.studies.claims import Claim, claim_from


@dataclass(frozen=True)
class Paper:
    """What the paper measured."""

    measure: str = setting("test.loss", "data set and measure that are compared, such as train.auc")
    higher: bool = setting(True, "whether more is better")
    smooth: int = setting(1, "evaluations whose mean counts as one value, where single ones jump", at_least=1)
    value: str = setting("end", "what of a curve stands in the table: its end, or its best value",
                         choices=("end", "best"))
    table: str = setting("", "where the published numbers are from, and what they are")
    published: Mapping[str, float] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()


class Quick(NamedTuple):
    """A miniature."""

    assignments: tuple[str, ...]
    seeds: int
    only: tuple[str, ...]
    judge: str = ""  # a net that learns to judge generated images where nobody has trained a classifier


class Study(NamedTuple):
    name: str
    about: str  # the first line of the file
    departures: str  # the rest of its first comment
    tables: dict[str, Any]
    paper: Paper
    quick: Quick | None
    grid: dict[str, list[Any]]


def load(name: str) -> Study:
    """The study of a recipe, or of a settings file."""
    path = recipes.path(name) or Path(name)
    if not path.exists():
        raise SettingError(f"{name!r}: is neither a recipe nor a file{nearest(name, recipes.names())}; "
                           f"recipes: {', '.join(recipes.names())}")
    tables = read(path)
    settings = settle(tables)
    labels = set(settings.algorithms)
    about, _, departures = _comment(path).partition("\n")
    paper = _paper(dict(tables.pop("paper", {})), labels)
    quick = tables.pop("quick", None)
    grid = tables.pop("grid", {})
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise SettingError(f"grid.{key} = {values!r}: must be a list of values to try")
    return Study(name, about.strip(), departures.strip(), tables, paper, _quick(quick, labels), grid)


def _comment(path: Path) -> str:
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").removeprefix(" "))
    return "\n".join(lines) or path.stem


def _paper(table: dict[str, Any], labels: set[str]) -> Paper:
    published, claims = table.pop("published", {}), table.pop("claims", [])
    for label, number in published.items():
        if label not in labels or not isinstance(number, int | float):
            raise SettingError(f"paper.published.{label} = {number!r}: must be a number of one of the methods "
                               f"{', '.join(sorted(labels))}")
    own = validated(Paper, table, "paper")
    return Paper(**own, published=published,
                 claims=tuple(claim_from(one, f"paper.claims.{i}", labels) for i, one in enumerate(claims)))


def _quick(table: Any, labels: set[str]) -> Quick | None:
    if table is None:
        return None
    known_keys(table, ("set", "seeds", "only", "judge"), "quick", "setting")
    only = tuple(table.get("only", ()))
    for label in only:
        if label not in labels:
            raise SettingError(f"quick.only = {label!r}: is no method{nearest(label, labels)}")
    judge = table.get("judge", "")
    if judge and judge not in MODELS:
        raise SettingError(f"quick.judge = {judge!r}: is no model{nearest(judge, MODELS)}")
    return Quick(tuple(table.get("set", ())), int(table.get("seeds", 1)), only, judge)
