"""The plots of a report as files: CSV always, PNG and SVG where matplotlib is installed (the extra `plots`)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from fedsaddle.report.asks import LETTERS
from fedsaddle.report.results import curve
from fedsaddle.report.sheets import plain_name, write_sheets
from fedsaddle.report.tables import number

COLOURS = ("#0060a8", "#c94f00", "#00805e", "#b0508a", "#8f6400", "#2488b5", "#6a51a3", "#5f6368")  # as on the page
DASHES = ("-", "--", ":", "-.")
TURN = (0, 1, 1, 0, 2, 2, 3, 3)  # the dashes of every four series
AXIS = {"rounds": "rounds", "floats": "floats received by the server", "bytes": "bytes sent, both ways",
        "time": "virtual time (seconds)"}
WAYS = (("down", COLOURS[7]), ("up", COLOURS[0]), ("late", COLOURS[1]))
MISSING = "no PNG and SVG plots: matplotlib is not installed; pip install 'fedsaddle[plots]' adds it"


def available() -> bool:
    """Whether pictures can be drawn here."""
    return find_spec("matplotlib") is not None


def draw(data: dict[str, Any], folder: Path) -> list[Path]:
    """All plots of `data`, what `report.content.content` gives back, into a folder. Gives back the pictures."""
    write_sheets(data, folder)
    if not available():
        return []
    from matplotlib import rc_context  # noqa: PLC0415  # an extra

    written = []
    with rc_context({"font.size": 10, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False,
                     "axes.spines.right": False, "axes.axisbelow": True, "svg.hashsalt": "fedsaddle",
                     "svg.fonttype": "none"}):
        for name, figure in figures(data):
            figure.draw_without_rendering()  # places everything, once for both files
            figure.set_layout_engine("none")
            for ending in ("png", "svg"):
                path = folder / f"{plain_name(name)}.{ending}"
                figure.savefig(path, dpi=130, metadata={"Date": None} if ending == "svg" else None)
                written.append(path)
    return written


def figures(data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every figure with the name of its file."""
    for measure in data["measures"]:
        for axis in data["axes"] if measure == data["headline"] else ["rounds"]:
            yield f"curve-{measure}-{axis}", curves(data, measure, axis)
    for name in dict.fromkeys(name for runs in data["clients"] for run in runs[:1] for name in run["measures"]):
        yield f"clients-{name}", clients(data, name)
    for one, found in zip(data["series"], data["participation"], strict=True):
        if found:
            yield f"participation-{one['label']}", participation(one["label"], found)
    if any(data["traffic"]):
        for what in ("floats", "bytes"):
            yield f"communication-{what}", traffic(data, what)
    for name in dict.fromkeys(name for runs in data["scores"] for run in runs[:1] for name in run["sets"]):
        yield f"roc-{name}", roc(data, name)


def blank(width: float = 7.0, height: float = 4.2, parts: tuple[int, int] = (1, 1)) -> tuple[Any, Any]:
    """A figure of its own, drawn without a screen, and its axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  # an extra
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(*parts)


def style(at: int) -> dict[str, Any]:
    """Colour and dashes of a series, as on the page: no two of the first 32 are alike."""
    return {"color": COLOURS[at % 8], "linestyle": DASHES[TURN[at // 4 % 8]]}


def curves(data: dict[str, Any], measure: str, axis: str) -> Any:
    """Mean over seeds, and a band of one standard deviation; every seed where one of them died."""
    figure, axes = blank(9.0)
    for at, one in enumerate(data["series"]):
        if any(run["died"] and run["counts"] for run in one["runs"]):
            _every_seed(axes, one, axis, measure, data["smooth"], style(at))
            continue
        found = curve([run for run in one["runs"] if run["counts"]], axis, measure, data["smooth"])
        if not len(found.x):
            continue
        axes.plot(found.x, found.mean, label=one["label"], marker="o" if len(found.x) == 1 else None, **style(at))
        axes.fill_between(found.x, found.mean - found.deviation, found.mean + found.deviation, alpha=0.17,
                          color=COLOURS[at % 8], linewidth=0)
    several = f", mean of {data['smooth']} evaluations" if data["smooth"] > 1 else ""
    axes.set(xlabel=AXIS[axis], ylabel=measure + several, xscale="log" if axis in data["stretched"] else "linear")
    axes.set_title(fill(data["title"], 90), fontsize=9)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _every_seed(axes: Any, one: dict[str, Any], axis: str, measure: str, smooth: int, look: dict[str, Any]) -> None:
    """A mean of the living and the dead says nothing of either."""
    dead = sum(run["died"] for run in one["runs"])
    label = f"{one['label']} ({dead} of {len(one['runs'])} died)"
    for run in one["runs"]:
        found = curve([run], axis, measure, smooth)
        if len(found.x):
            axes.plot(found.x, found.mean, label=label, linewidth=0.9, **look)
            label = ""  # one entry of the legend for all seeds
            if run["died"]:
                axes.plot(found.x[-1], found.mean[-1], "x", color=look["color"])


def clients(data: dict[str, Any], name: str) -> Any:
    """Over clients, first seed: dots by their place in the order, or the share of clients at or below a value."""
    figure, axes = blank()
    for at, (one, runs) in enumerate(zip(data["series"], data["clients"], strict=True)):
        found = runs[0]["measures"].get(name) if runs else None
        if not found:
            continue
        if "values" in found:
            values = sorted(found["values"])
            share = (np.arange(len(values)) + 1) / len(values)
        else:
            values, share = found["edges"][1:], np.cumsum(found["counts"]) / found["clients"]
        axes.step(values, share, where="post", label=f"{one['label']}, seed {runs[0]['seed']}", **style(at))
        axes.plot([found["worst"]], [0.0 if found["higher"] else 1.0], "x", color=COLOURS[at % 8])
    axes.set(xlabel=f"{name} of a client (x: the worst one)", ylabel="share of clients at or below")
    axes.set_title(fill(data["title"], 90), fontsize=9)
    axes.legend(frameon=False, fontsize=8)
    return figure


def participation(label: str, found: dict[str, Any]) -> Any:
    """Bars per round, and clients x rounds where they are known."""
    raster = found.get("raster")
    figure, parts = blank(7, 6 if raster else 3.2, (2 if raster else 1, 1))
    axes = parts[0] if raster else parts
    rounds, step = np.array(found["rounds"]), found["step"]
    silent = np.array(found["asked"]) - found["answered"] - np.array(found["late"])
    bottom = np.zeros(len(rounds))
    for name, values, colour in (("answered", found["answered"], COLOURS[0]), ("late", found["late"], COLOURS[1]),
                                 ("no answer", np.maximum(silent, 0), COLOURS[7])):
        axes.stairs(bottom + values, [*rounds, rounds[-1] + step], baseline=bottom, fill=True, label=name, color=colour)
        bottom += values
    axes.set(title=f"{label}, seed {found['seed']}", xlabel=f"round ({step} to a bar)" if step > 1 else "round",
             ylabel="clients asked")
    axes.set_xlim(rounds[0], rounds[-1] + step)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", frameon=False, ncols=3)
    if raster:
        parts[1].imshow(picture(raster), aspect="auto", interpolation="nearest",
                        extent=(rounds[0], rounds[-1] + step, raster["clients"], 0))
        parts[1].set(xlabel="round", ylabel="client")
        parts[1].grid(False)
    return figure


def picture(raster: dict[str, Any]) -> Any:
    """Red, green, blue and strength of every cell of a raster."""
    width = raster["width"]
    letters = np.array([LETTERS.index(letter) for letter in raster["cells"]]).reshape(-1, width)
    index = letters @ (len(LETTERS) ** np.arange(width)[::-1])
    counts = np.array(raster["palette"], dtype=float)[index].reshape(raster["lines"], raster["columns"], 3)
    sums = counts.sum(-1, keepdims=True)
    kinds = np.array([[int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
                      for colour in (COLOURS[0], COLOURS[1], COLOURS[7])])
    mixed = counts / np.maximum(sums, 1) @ kinds
    strength = np.where(sums > 0, 0.35 + 0.65 * sums / max(sums.max(), 1), 0.0)
    return np.concatenate([mixed, strength], -1)


def traffic(data: dict[str, Any], what: str) -> Any:
    """By series and phase: down, up, late."""
    rows = [(f"{one['label']}: {phase}", sent) for one, found in zip(data["series"], data["traffic"], strict=True)
            if found for phase, sent in found["phases"].items()]
    figure, axes = blank(8, 1.2 + 0.3 * len(rows))
    left = np.zeros(len(rows))
    for way, colour in WAYS:
        values = np.array([sent[f"{what}_{way}"] for _, sent in rows])
        axes.barh(range(len(rows)), values, left=left, color=colour, label=way)
        left += values
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    axes.set(xlabel=f"{what} over the whole run", title=data["title"])
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", frameon=False, ncols=3)
    return figure


def roc(data: dict[str, Any], name: str) -> Any:
    """ROC and calibration of the first seed."""
    figure, (left, right) = blank(9, 4.4, (1, 2))
    for at, (one, runs) in enumerate(zip(data["series"], data["scores"], strict=True)):
        found = runs[0]["sets"].get(name) if runs else None
        if not found:
            continue
        left.plot(found["fpr"], found["tpr"], label=f"{one['label']}, AUC {number(found['auc'])}", **style(at))
        if binned := found["calibration"]:
            right.plot(*(np.array(binned[key], dtype=float) for key in ("score", "share")), marker="o", markersize=3,
                       **style(at))
    for axes in (left, right):
        axes.plot([0, 1], [0, 1], color="#888888", linestyle=":", linewidth=1)
    left.set(xlabel="false positive rate", ylabel="true positive rate", title=f"ROC, {name}")
    right.set(xlabel="mean score of the rows", ylabel="share of positives", title=f"calibration, {name}")
    left.legend(frameon=False)
    return figure
