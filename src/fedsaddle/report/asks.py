"""What the asks of a run tell: who was asked, answered or came too late, and what each phase sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsaddle.report.series import Run, Series

MOST = 200  # lines and columns of a raster, and bars in a row
SENT = tuple(f"{what}_{way}" for what in ("floats", "bytes") for way in ("down", "up", "late"))
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
BEFORE = "before round 1"  # asks for the constants of the problem


def participation(run: Run) -> dict[str, Any]:
    """Counts per round, in groups of rounds where there are many; clients x rounds where the clients are known."""
    if not run.records:
        return {}
    step = -(-len(run.records) // MOST)
    found: dict[str, Any] = {"seed": run.seed, "step": step,
                             "rounds": [record["round"] for record in run.records[::step]]}
    for name in ("asked", "answered", "late"):
        found[name] = added([record.get(name, 0) for record in run.records], step)
    if any("asked_clients" in ask for record in run.records for ask in record["asks"]):
        found["raster"] = raster(run, step)
    return found


def raster(run: Run, step: int) -> dict[str, Any]:
    """How often a client, or a group of neighbours, answered, was late or stayed silent in a round, or in several.

    Distinct triples of counts stand in `palette`; `cells` names one of them with `width` letters, line by line.
    """
    asks = [(column // step, ask) for column, record in enumerate(run.records) for ask in record["asks"]
            if "asked_clients" in ask]
    largest = max((int(client) for _, ask in asks for client in ask["asked_clients"]), default=0)
    clients = max(largest + 1, int(run.tables.get("data", {}).get("clients") or 0))
    group = -(-clients // MOST)
    counts = np.zeros((-(-clients // group), -(-len(run.records) // step), 3), dtype=np.int64)
    for column, ask in asks:
        answered, late = ask.get("clients", []), ask.get("late_clients", [])
        silent = Counter(ask["asked_clients"])
        silent.subtract([*answered, *late])
        for client, times in silent.items():
            counts[client // group, column, 2] += max(times, 0)
        for kind, ids in enumerate((answered, late)):
            for client in ids:
                counts[client // group, column, kind] += 1
    return {"clients": clients, "group": group, "lines": counts.shape[0], "columns": counts.shape[1],
            **packed(counts.reshape(-1, 3))}


def packed(cells: NDArray[np.int64]) -> dict[str, Any]:
    palette, index = np.unique(cells, axis=0, return_inverse=True)
    width = 1
    while len(LETTERS) ** width < len(palette):
        width += 1
    names = ["".join(LETTERS[at // len(LETTERS) ** place % len(LETTERS)] for place in reversed(range(width)))
             for at in range(len(palette))]
    return {"palette": palette.tolist(), "width": width, "cells": "".join(names[at] for at in index.reshape(-1))}


def traffic(one: Series) -> dict[str, Any]:
    """What a series sent: by phase, the mean over the runs that count; by round, the first in groups of rounds."""
    runs = [run for run in one.evaluated or one.runs if run.records]
    if not runs:
        return {}
    phases: dict[str, Counter[str]] = {}
    for run in runs:
        for name, sent in by_phase(run).items():
            phases.setdefault(name, Counter()).update(sent)
    records = runs[0].records
    step = -(-len(records) // MOST)
    return {"seed": runs[0].seed, "step": step, "rounds": [record["round"] for record in records[::step]],
            "phases": {name: {key: sent[key] / len(runs) for key in SENT} for name, sent in phases.items()},
            "each": {key: added([record.get(key, 0) for record in records], step) for key in SENT}}


def by_phase(run: Run) -> dict[str, Counter[str]]:
    """Sums over a run, by the name of the work. What was sent before the first round is a phase of its own."""
    first = run.records[0]
    before = {key: first["total"].get(key, 0) - first.get(key, 0) for key in SENT}
    found = {BEFORE: Counter(before)} if any(before.values()) and first["round"] == 1 else {}
    for record in run.records:
        for ask in record["asks"]:
            found.setdefault(str(ask.get("work", "")), Counter()).update({key: ask.get(key, 0) for key in SENT})
    return found


def added(values: Sequence[float], step: int) -> list[float]:
    """Sums over groups of neighbours."""
    return [sum(values[at : at + step]) for at in range(0, len(values), step)]
