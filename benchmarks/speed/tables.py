"""From outcomes to numbers, and from numbers to tables."""

from __future__ import annotations

import statistics
from math import ceil
from typing import Any

Result = dict[str, Any]
Table = list[list[str]]  # the first row is the head
METHODS = {"fedavg": "FedAvg", "cdma-one": "CDMA-ONE", "codasca": "CODASCA", "drfa": "DRFA"}
MODELS = {"linear": "logistic regression", "mlp": "MLP", "lenet5": "LeNet5", "resnet20": "ResNet20"}
OURS = "fedsaddle"


def best_half(seconds: list[float]) -> float:
    """The mean of the faster half: what a round takes when the machine is not busy with something else."""
    return statistics.mean(sorted(seconds)[: ceil(len(seconds) / 2)])


def row(name: str, label: str, outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """A contestant's numbers in a cell, from its repetitions; a reason where there are none."""
    good = [outcome for outcome in outcomes if outcome.get("seconds")]
    if not good:
        reason = outcomes[-1].get("reason", "no round was measured") if outcomes else "not reached within --seconds"
        return {"contestant": name, "label": label, "reason": reason}
    times = [1e3 * best_half(outcome["seconds"]) for outcome in good]
    middle = statistics.median(times)
    last = good[-1]
    kept = {key: last[key] for key in ("versions", "chosen", "chunk", "loss") if last.get(key)}
    most = {key: max(o[key] for o in good) for key in ("beyond_mb", "device_beyond_mb") if key in last}
    return {
        "contestant": name, "label": label, "ms": middle, "spread": (max(times) - min(times)) / middle,
        "repetitions": times, "rounds": [len(outcome["seconds"]) for outcome in good],
        "setup_s": statistics.median(o["setup"] for o in good),
        "warmup_s": statistics.median(sum(o["warmup"]) for o in good),
        "peak_mb": max(max(o["peak_mb"], o["children_peak_mb"]) for o in good), **most, **kept,
    }


def tables(result: Result) -> dict[str, Table]:
    """Every table of a result, by its name."""
    found: dict[str, Table] = {"machine": machine(result)}
    for series in dict.fromkeys(cell["series"] for cell in result["cells"]):
        cells = [cell for cell in result["cells"] if cell["series"] == series]
        if series == "check":
            found[series] = agreement(cells)
        elif series == "memory":
            found[series] = memory(cells)
        else:
            found[series], found[f"{series}-short"] = times(cells), side_by_side(cells)
    if len(compared := per_gradient(result["cells"])) > 1:
        found["gradients"] = compared
    return found


def machine(result: Result) -> Table:
    rates, facts = result.get("rates", {}), result["machine"]
    units = {"flops": ("float32 matrix product", "GFLOP/s"), "tf32": ("TF32 matrix product", "GFLOP/s"),
             "bytes": ("copy, read and written", "GB/s")}
    measured = [[units[name][0], f"{value / 1e9:,.0f} {units[name][1]}"] for name, value in rates.items()]
    versions: dict[str, str] = {}
    for cell in result["cells"]:
        for one in cell["rows"]:
            versions.update(one.get("versions", {}))
    return [["of this run", ""], *[[name, str(value)] for name, value in facts.items()], *measured,
            *[[name, value] for name, value in sorted(versions.items())]]


def times(cells: list[dict[str, Any]]) -> Table:
    table = [["method", "model", "clients", "asked", "steps", "contestant", "ms a round", "spread", "to FedSaddle",
              "of the roofline", "peak MB", "note"]]
    for cell in cells:
        for one in cell["rows"]:
            if "reason" in one:
                table.append([*work_of(cell), one["label"], "-", "", "", "", "", one["reason"]])
                continue
            table.append([*work_of(cell), one["label"], number(one["ms"]), f"{one['spread']:.0%}", ratio(one),
                          share(one.get("of_floor")), f"{one['peak_mb']:,.0f}", ""])
    return table


def side_by_side(cells: list[dict[str, Any]]) -> Table:
    """One line a cell: milliseconds of every contestant, and how many times FedSaddle's that is."""
    labels = dict.fromkeys(one["label"] for cell in cells for one in cell["rows"])
    table = [["method", "model", "clients", "asked", "steps", *labels, "FedSaddle of the roofline"]]
    for cell in cells:
        rows = {one["label"]: one for one in cell["rows"]}
        ours = next((one for one in cell["rows"] if one["contestant"] == OURS), {})
        table.append([*work_of(cell), *[short(rows.get(label)) for label in labels], share(ours.get("of_floor"))])
    return table


def per_gradient(cells: list[dict[str, Any]]) -> Table:
    """Microseconds per gradient of one row: CDMA-ONE against FedAvg."""
    table = [["model", "contestant", "FedAvg, us a gradient", "CDMA-ONE, us a gradient", "CDMA-ONE to FedAvg"]]
    found: dict[tuple[str, str, str], tuple[str, float]] = {}
    for cell in cells:
        for one in cell["rows"]:
            if cell["series"] == "standard" and "ms" in one and "gradient_rows" in one:
                key = cell["work"]["method"], cell["work"]["model"], one["contestant"]
                found[key] = one["label"], 1e3 * one["ms"] / one["gradient_rows"]
    for (method, model, name), (label, corrected) in found.items():
        _, simple = found.get(("fedavg", model, name.removesuffix("-lean")), ("", 0.0))
        if method == "cdma-one" and simple:
            table.append([MODELS[model], label, f"{simple:.2f}", f"{corrected:.2f}", f"{corrected / simple:.2f}"])
    return table


def memory(cells: list[dict[str, Any]]) -> Table:
    table = [["method", "model", "clients", "asked", "steps", "contestant", "MB beyond the data", "ms a round"]]
    for cell in cells:
        for one in cell["rows"]:
            beyond = one.get("device_beyond_mb", one.get("beyond_mb"))
            table.append([*work_of(cell), one["label"], one.get("reason") or f"{beyond or 0:,.0f}",
                          number(one["ms"]) if "ms" in one else ""])
    return table


def agreement(cells: list[dict[str, Any]]) -> Table:
    table = [["method", "model", "contestant", "loss at the end", "off FedSaddle's", ""]]
    for cell in cells:
        for one in cell["rows"]:
            if "reason" in one:
                table.append([*work_of(cell)[:2], one["label"], one["reason"], "", ""])
                continue
            off = one.get("off")
            verdict = "" if off is None else "agrees" if off <= cell["agree"] else "DIFFERS"
            table.append([*work_of(cell)[:2], one["label"], f"{one.get('loss') or 0:.6f}",
                          "" if off is None else f"{off:.1e}", verdict])
    return table


def work_of(cell: dict[str, Any]) -> list[str]:
    work = cell["work"]
    model = MODELS[work["model"]]
    if work["model"] == "mlp":
        model += f" {work['hidden']}"
    return [METHODS[work["method"]], model, f"{work['clients']:,}", f"{work['cohort']:,}", str(work["steps"])]


def short(one: dict[str, Any] | None) -> str:
    if one is None:
        return ""
    if "ms" not in one:
        return "-"
    return number(one["ms"]) + ("" if one["contestant"] == OURS or "ratio" not in one else f" ({ratio(one)})")


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ratio(one: dict[str, Any]) -> str:
    return f"{one['ratio']:.2f}" if "ratio" in one else ""


def share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def plain_text(table: Table) -> str:
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def markdown(table: Table) -> str:
    lines = ["| " + " | ".join(line) + " |" for line in table]
    return "\n".join([lines[0], "|" + "---|" * len(table[0]), *lines[1:]])
