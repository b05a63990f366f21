"""All that is shown of some run folders, as plain values at full precision: for the page, plots and CSV files."""

from __future__ import annotations

import base64
import math
import shlex
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from fedsaddle.config.files import read
from fedsaddle.metrics.fairness import HIGHER
from fedsaddle.report.asks import participation, traffic
from fedsaddle.report.results import (
    AXES,
    along,
    budget,
    chosen,
    evaluations,
    higher,
    in_short,
    measures,
    results,
    stretched,
    value,
)
from fedsaddle.report.series import Run, Series, gather, read_json, settings, study_of
from fedsaddle.report.tables import number

DOTS = 200  # more clients than that are shown as a histogram
BINS = 40
CORNERS = 250  # of a ROC curve
PNG = b"\x89PNG"


def content(folders: Sequence[Path], title: str = "") -> dict[str, Any]:
    """Read the folders."""
    series = gather(folders)
    study = study_of(folders)
    common, different = settings(series)
    known = measures(series)
    measure, smooth = chosen(series, None, study), int(study.get("smooth", 1))
    return {
        "title": title or named(series, study), "study": study, "folders": [str(folder) for folder in folders],
        "smooth": smooth,
        "headline": measure, "measures": known, "higher": [higher(name) for name in known],
        "budget": budget(series), "results": results(series, measure, smooth),
        "final": {name: [line.final for line in results(series, name)] for name in known},
        "series": [{"label": one.label, "runs": curves(one, known)} for one in series],
        "axes": [axis for axis in AXES if axis == "rounds" or any(
            any(along(run, axis)) for one in series for run in one.runs)],
        "stretched": [axis for axis in AXES if stretched(series, axis)],
        "participation": [participation(one.runs[0]) for one in series],
        "traffic": [traffic(one) for one in series],
        "clients": [[each for run in one.runs if (each := of_clients(run))] for one in series],
        "scores": [[each for run in one.runs if (each := of_scores(run))] for one in series],
        "images": [image(one) for one in series],
        "ended": [{"label": one.label, "seed": run.seed, **run.ended}
                  for one in series for run in one.runs if run.ended],
        "common": common, "different": different, "about": about(series),
        "environments": environments(series), "commands": commands(folders, series, study),
        "files": {one.label: (one.runs[0].folder / "run.toml").read_text(encoding="utf-8") for one in series},
    }


def named(series: Sequence[Series], study: dict[str, Any]) -> str:
    """A title, where none was given."""
    if study.get("recipe"):
        return str(study["recipe"])
    problems, data = (words(series, section) for section in ("problem", "data"))
    return f"{problems} on {data}" if problems and data else ", ".join(one.label for one in series)


def words(series: Sequence[Series], section: str) -> str:
    """The names in a section of the settings, of all series."""
    found = [one.tables.get(section, {}) for one in series]
    names = [each if isinstance(each, str) else each.get("name", "") for each in found]
    return ", ".join(dict.fromkeys(name for name in names if name))


def about(series: Sequence[Series]) -> list[tuple[str, str]]:
    """What was run, in words."""
    clients = list(dict.fromkeys(str(count) for one in series if (count := clients_of(one))))
    seeds = sorted({run.seed for one in series for run in one.runs})
    planned = sorted({run.tables.get("run", {}).get("rounds", 0) for one in series for run in one.runs} - {0})
    told = [
        ("problem", words(series, "problem")), ("data", words(series, "data")), ("clients", ", ".join(clients)),
        ("model", words(series, "model")), ("methods", ", ".join(one.label for one in series)),
        ("seeds", in_short(seeds)), ("rounds", ", ".join(f"{count:,}" for count in planned)),
        ("dates", dates(series)), ("records", gaps(series)),
    ]
    return [(name, text) for name, text in told if text]


def gaps(series: Sequence[Series]) -> str:
    """What cannot be told where records of rounds are missing, as in folders made of kept results."""
    runs = [run for one in series for run in one.runs]
    few = sum(bool(run.records) and run.records[-1]["round"] > len(run.records) for run in runs)
    return f"only some rounds of {few} of the {len(runs)} runs are here: seconds, participation and communication " \
           "are of those" if few else ""


def clients_of(one: Series) -> int:
    """How many clients a series has; 0 where nothing says so."""
    given = one.tables.get("data", {})
    if isinstance(given, dict) and given.get("clients"):
        return int(given["clients"])
    return max((len(values) for run in one.runs for values in run.extra("final.json").get("clients", {}).values()),
               default=0)


def dates(series: Sequence[Series]) -> str:
    """When the runs ended: as they noted themselves, or as their files say."""
    told = [str(run.extra("environment.json").get("date", "")) or datetime.fromtimestamp(
        (run.folder / ("records.jsonl" if run.records else "run.toml")).stat().st_mtime).isoformat(" ", "minutes")
        for one in series for run in one.runs]
    days = sorted({text[:10] for text in told})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def curves(one: Series, known: Sequence[str]) -> list[dict[str, Any]]:
    """Every run's evaluations as columns. Runs that `count` are those in the means, those that `died` have
    nothing to show for it."""
    counted = [run.folder for run in one.evaluated or one.runs]
    return [{
        "seed": run.seed, "state": run.state, "counts": run.folder in counted, "died": run.died,
        "x": {axis: along(run, axis) for axis in AXES}, "y": columns(run, known),
    } for run in one.runs]


def columns(run: Run, known: Sequence[str]) -> dict[str, list[float | None]]:
    """A run's measures, those with at least one finite value."""
    found = {name: [value(record, name) for record in evaluations(run)] for name in known}
    return {name: values for name, values in found.items() if any(each is not None for each in values)}


def of_clients(run: Run) -> dict[str, Any]:
    """How the solution serves each client: values of up to 200 clients, else a histogram; worst, worst tenth, mean."""
    final = run.extra("final.json")
    found = {}
    for name, given in final.get("clients", {}).items():
        values = np.array([math.nan if each is None else each for each in given], dtype=float)
        who = np.flatnonzero(np.isfinite(values))
        if not len(who):
            continue
        kept, up = values[who], name in HIGHER
        order = np.argsort(-kept if not up else kept, kind="stable")
        entry: dict[str, Any] = {
            "higher": up, "clients": len(who), "mean": float(kept.mean()), "worst": float(kept[order[0]]),
            "worst_client": int(who[order[0]]), "tenth": float(kept[order[: math.ceil(len(kept) / 10)]].mean()),
        }
        entry["told"] = {key: number(entry[key]) for key in ("worst", "tenth", "mean")}  # not rounded twice
        if len(who) <= DOTS:
            entry |= {"ids": who.tolist(), "values": kept.tolist()}
        else:
            counts, edges = np.histogram(kept, BINS)
            entry |= {"counts": counts.tolist(), "edges": edges.tolist()}
        found[name] = entry
    rows = final.get("rows", [])
    return {"seed": run.seed, "measures": found, "rows": rows if len(rows) <= DOTS else []} if found else {}


def of_scores(run: Run) -> dict[str, Any]:
    """ROC curves, thinned, and calibration of every data set."""
    found = {}
    for name, given in run.extra("final.json").get("scores", {}).items():
        fpr, tpr = given.get("fpr", []), given.get("tpr", [])
        kept = sorted({round(at) for at in np.linspace(0, max(len(fpr) - 1, 0), min(len(fpr), CORNERS))})
        found[name] = {"fpr": [fpr[at] for at in kept], "tpr": [tpr[at] for at in kept], "auc": given.get("auc"),
                       "told": number(given.get("auc")),
                       "calibration": given.get("calibration") or {}}
    return {"seed": run.seed, "sets": found} if found else {}


def image(one: Series) -> dict[str, Any]:
    """Generated images of the first run that has some, with the measures of its last evaluation."""
    for run in one.runs:
        path = run.folder / "images.png"
        if path.exists() and (held := path.read_bytes()).startswith(PNG):
            last = evaluations(run)[-1] if evaluations(run) else {}
            return {"label": one.label, "seed": run.seed, "round": last.get("round"),
                    "measures": last.get("measures", {}).get("images", {}),
                    "source": f"data:image/png;base64,{base64.b64encode(held).decode()}"}
    return {}


def environments(series: Sequence[Series]) -> dict[str, str]:
    """Where it was computed; several values where runs differ."""
    found: dict[str, list[str]] = {}
    for run in (run for one in series for run in one.runs):
        for name, told in run.extra("environment.json").items():
            found.setdefault(name, []).append(str(told))
    if "date" in found:
        found["date"] = [" to ".join(dict.fromkeys((min(found["date"]), max(found["date"]))))]
    return {name: ", ".join(dict.fromkeys(told)) for name, told in found.items()}


def commands(folders: Sequence[Path], series: Sequence[Series], study: dict[str, Any]) -> list[str]:
    """How to do it again."""
    if study.get("command"):
        return [str(study["command"])]
    above = [folder for folder in folders if "algorithms" in read_tables(folder)]  # one file for all of its methods
    told = {folder.resolve() for folder in above}
    found = [again(folder) for folder in above]
    for run in (run for one in series for run in one.runs):
        own = read_json(run.folder / "study.json").get("command")
        if own or run.folder.resolve().parent not in told:
            found.append(str(own or again(run.folder)))
    return list(dict.fromkeys(found))


def again(folder: Path) -> str:
    return f"fedsaddle run {shlex.quote(str(folder / 'run.toml'))}"


def read_tables(folder: Path) -> dict[str, Any]:
    return read(folder / "run.toml") if (folder / "run.toml").exists() else {}
