"""The registries as lists that a person or a program can read."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from fedsaddle import recipes
from fedsaddle.algorithms import ALGORITHMS, Entry
from fedsaddle.algorithms.theorems import THEOREMS
from fedsaddle.config import read
from fedsaddle.config.validation import declared
from fedsaddle.data import store
from fedsaddle.data.partitions import PARTITIONS
from fedsaddle.data.sources import SOURCES
from fedsaddle.models import MODELS
from fedsaddle.participation import RESPONSES, SELECTIONS
from fedsaddle.problems import PROBLEMS


def entries(catalogue: str) -> list[dict[str, Any]]:
    return CATALOGUES[catalogue]()


def _registered(registry: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    return [{"name": name, **more, **_described(form)} for name, form in registry.items()]


def _described(form: type, entry: Entry | None = None) -> dict[str, Any]:
    fixed, defaults = (entry.fixed, entry.defaults) if entry else ({}, {})
    settings = [{"name": f.name, "default": _plain(defaults.get(f.name, f.default)), "meaning": f.metadata["meaning"],
                 "type": str(f.type)} for f in declared(form) if f.name not in fixed]
    return {"about": inspect.getdoc(form) or "", "settings": settings}


def _algorithms() -> list[dict[str, Any]]:
    return [{
        "name": name, "paper": entry.paper, "solves": entry.solves,
        "uploads": {"copies_of_z": entry.copies, "scalars": entry.scalars}, "uploads_a_row": entry.scores,
        "learns": entry.learns,
        "client_state": entry.client_state, "fixed": {key: _plain(value) for key, value in entry.fixed.items()},
        **_described(entry.algorithm, entry),
    } for name, entry in ALGORITHMS.items()]


def _participation() -> list[dict[str, Any]]:
    return _registered(SELECTIONS, part="select") + _registered(RESPONSES, part="respond")


def _theorems() -> list[dict[str, Any]]:
    return [{
        "name": f"{paper} {number}", "about": f"step sizes for {', '.join(theorem.algorithms)}",
        "settings": [{"name": name, "default": "optional" if name in theorem.optional else "needed",
                      "meaning": constant.meaning, "type": "int" if constant.whole else "float"}
                     for name, constant in theorem.needs.items()],
    } for (paper, number), theorem in THEOREMS.items()]


def _recipes() -> list[dict[str, Any]]:
    found = []
    for name in recipes.names():
        tables = read(recipes.FOLDER / f"{name}.toml")
        data = tables["data"]["name"]
        found.append({"name": name, "about": recipes.about(name), "methods": list(tables["algorithms"]),
                      "rounds": tables["run"]["rounds"], "data": data,
                      "data_where": store.whereabouts(SOURCES[data]), "settings": []})
    return found


def _plain(value: Any) -> Any:
    return "inf" if value == float("inf") else list(value) if isinstance(value, tuple) else value


CATALOGUES: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "algorithms": _algorithms,
    "problems": lambda: _registered(PROBLEMS),
    "participation": _participation,
    "recipes": _recipes,
    "theorems": _theorems,
    "models": lambda: _registered(MODELS),
    "data": lambda: _registered(SOURCES),
    "partitions": lambda: _registered(PARTITIONS),
}
