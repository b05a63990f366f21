"""The numbers behind every plot as CSV files, at full precision."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedsaddle.report.asks import LETTERS, SENT
from fedsaddle.report.folder import replace_file
from fedsaddle.report.results import AXES

Rows = Iterable[Sequence[Any]]


def write_sheets(data: dict[str, Any], folder: Path) -> None:
    """One file for every kind of plot for which there are data."""
    folder.mkdir(parents=True, exist_ok=True)
    labels = [one["label"] for one in data["series"]]
    sheet(folder / "results.csv", RESULTS, results(data))
    for measure in data["measures"]:
        sheet(folder / f"curve-{plain_name(measure)}.csv", ("series", "seed", "state", *AXES, measure),
              points(data, measure))
    sheet(folder / "participation.csv", ("series", "seed", "round", "rounds", "asked", "answered", "late"),
          ([label, found["seed"], round, found["step"], *(found[name][at] for name in ("asked", "answered", "late"))]
           for label, found in zip(labels, data["participation"], strict=True) if found
           for at, round in enumerate(found["rounds"])))
    sheet(folder / "participation-clients.csv",
          ("series", "seed", "client", "clients", "round", "rounds", "answered", "late", "silent"),
          (row for label, found in zip(labels, data["participation"], strict=True) if found.get("raster")
           for row in cells(label, found)))
    sheet(folder / "communication.csv", ("series", "phase", *SENT),
          ([label, phase, *(sent[key] for key in SENT)] for label, found in zip(labels, data["traffic"], strict=True)
           if found for phase, sent in found["phases"].items()))
    sheet(folder / "communication-rounds.csv", ("series", "seed", "round", "rounds", *SENT),
          ([label, found["seed"], round, found["step"], *(found["each"][key][at] for key in SENT)]
           for label, found in zip(labels, data["traffic"], strict=True) if found
           for at, round in enumerate(found["rounds"])))
    of_final(data, folder, labels)


def of_final(data: dict[str, Any], folder: Path, labels: Sequence[str]) -> None:
    """Of the last solution: clients, ROC, calibration."""
    runs = [(label, run) for label, each in zip(labels, data["clients"], strict=True) for run in each]
    sheet(folder / "clients.csv", ("series", "seed", "measure", "client", "value"), (
        [label, run["seed"], name, client, value] for label, run in runs for name, found in run["measures"].items()
        for client, value in zip(found.get("ids", []), found.get("values", []), strict=True)))
    sheet(folder / "clients-histogram.csv", ("series", "seed", "measure", "from", "to", "clients"), (
        [label, run["seed"], name, *found["edges"][at : at + 2], count] for label, run in runs
        for name, found in run["measures"].items() for at, count in enumerate(found.get("counts", []))))
    scored = [(label, run["seed"], name, found) for label, each in zip(labels, data["scores"], strict=True)
              for run in each for name, found in run["sets"].items()]
    sheet(folder / "roc.csv", ("series", "seed", "rows", "fpr", "tpr"), (
        [label, seed, name, *point] for label, seed, name, found in scored
        for point in zip(found["fpr"], found["tpr"], strict=True)))
    sheet(folder / "calibration.csv", ("series", "seed", "rows", "score", "share", "count"), (
        [label, seed, name, *point] for label, seed, name, found in scored if found["calibration"]
        for point in zip(*(found["calibration"][key] for key in ("score", "share", "count")), strict=True)))


RESULTS = ("series", "seeds", "rounds", "measure", "final", "final_deviation", "best", "best_deviation", "equal_floats",
           "equal_floats_deviation", "floats_up", "bytes", "seconds", "died", "unfinished")


def results(data: dict[str, Any]) -> Rows:
    for line in data["results"]:
        yield [line.label, " ".join(map(str, line.seeds)), line.rounds[1], data["headline"], *line.final[:2],
               *line.best[:2], *line.equal[:2], line.floats_up.mean, line.bytes.mean, line.seconds.mean, line.died,
               line.unfinished]


def points(data: dict[str, Any], measure: str) -> Rows:
    for one in data["series"]:
        for run in one["runs"]:
            for at, value in enumerate(run["y"].get(measure, [])):
                yield [one["label"], run["seed"], run["state"], *(run["x"][axis][at] for axis in AXES), value]


def cells(label: str, found: dict[str, Any]) -> Rows:
    """The cells of a raster in which somebody was asked."""
    raster = found["raster"]
    width, columns = raster["width"], raster["columns"]
    for at in range(raster["lines"] * columns):
        entry = 0
        for letter in raster["cells"][at * width : (at + 1) * width]:
            entry = entry * len(LETTERS) + LETTERS.index(letter)
        if any(raster["palette"][entry]):
            line, column = divmod(at, columns)
            yield [label, found["seed"], line * raster["group"], raster["group"], found["rounds"][column],
                   found["step"], *raster["palette"][entry]]


def sheet(path: Path, heads: Sequence[str], rows: Rows) -> None:
    """A file, where there is at least one row."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heads)
    empty = text.tell()
    writer.writerows(rows)
    if text.tell() > empty:
        replace_file(path, text.getvalue().encode())


def plain_name(text: str) -> str:
    """For a file: letters, digits, dots and dashes."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in text)
