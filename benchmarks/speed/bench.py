"""Compares the speed of FedSaddle with other ways to do the same rounds, in one run on one machine.

    python benchmarks/speed/bench.py --preset quick|standard|scaling|memory|check|full [--device cpu|cuda]
                                     [--out FILE.json] [--seconds CAP] [--part I/N] [--here] [--only NAME,...]

Needs nothing but Python; each contestant is installed in an environment of its own the first time (benchmarks/.envs).
With --here, and always on cuda, they run with this Python instead, and those it cannot import are left out with the
reason. The file is written anew after every process, so that a run that is stopped leaves what it has.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import floor
import tables
from contestants import CONTESTANTS, ROOT, Missing, last_line, python_of
from jobs import attempt
from presets import PRESETS, REPETITIONS, Cell, chosen

LIMIT = 420.0  # seconds of one process
LEAST = 5.0  # seconds that must be left to start another one


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=PRESETS, default="standard")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, help="the JSON file; runs/bench-PRESET-DEVICE.json if left out")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start nothing after so many seconds")
    parser.add_argument("--part", type=part, default=(1, 1), help="I/N: only every N-th cell, from the I-th on")
    parser.add_argument("--repetitions", type=int, help="3, and 1 for check, quick and memory")
    parser.add_argument("--here", action="store_true", help="install nothing, run all with this Python")
    parser.add_argument("--only", help="contestants, separated by commas: " + ", ".join(CONTESTANTS))
    parser.add_argument("--series", help="only these tables of the preset, separated by commas")
    parser.add_argument("--methods", help="only cells of these methods, separated by commas")
    parser.add_argument("--models", help="only cells of these models, separated by commas")
    parser.add_argument("--also", default="", help="further contestants for every cell, such as vmap,jax")
    given = parser.parse_args()
    for name in filter(None, f"{given.only or ''},{given.also}".split(",")):
        if name not in CONTESTANTS:
            parser.error(f"unknown contestant {name!r}; choose out of {', '.join(CONTESTANTS)}")
    given.here = given.here or given.device == "cuda"
    given.out = given.out or ROOT / "runs" / f"bench-{given.preset}-{given.device}.json"
    return given


def main() -> int:
    given = arguments()
    until = time.monotonic() + given.seconds
    cells = [picked(cell, given.only, given.also) for cell in chosen(given.preset, given.device)
             if wanted(given.series, cell.series) and wanted(given.methods, cell.work.get("method", "fedavg"))
             and wanted(given.models, cell.work.get("model", "mlp"))]
    cells = [cell for cell in cells if cell.contestants][given.part[0] - 1::given.part[1]]
    repetitions = given.repetitions or REPETITIONS.get(given.preset, 3)
    outcomes: list[dict[str, list[Any]]] = [{name: [] for name in cell.contestants} for cell in cells]
    base = {"preset": given.preset, "machine": machine(given.device), **measured(given, cells)}
    jobs = [(cell, name, got) for _ in range(repetitions)
            for cell, got in zip(cells, outcomes, strict=True) for name in cell.contestants]
    hopeless: set[tuple[int, str]] = set()
    with Progress(len(jobs)) as progress:
        for cell, name, got in jobs:
            progress.show(f"{cell.series} {cell.work.get('method', 'fedavg')} {cell.work.get('model', 'mlp')} {name}")
            left = until - time.monotonic()
            if left > LEAST and (id(got), name) not in hopeless:
                got[name].append(attempt(name, cell, given.here, min(LIMIT, left)))
                if "reason" in got[name][-1]:
                    hopeless.add((id(got), name))  # it would fail again
                write(given.out, result(base, cells, outcomes))
            progress.advance()
    if time.monotonic() + LEAST < until:  # a machine that was busy at the beginning may have been measured too slow
        again = measured(given, [])["rates"]
        base["rates"] = {name: max(rate, again.get(name, 0)) for name, rate in base["rates"].items()}
    final = result(base, cells, outcomes)
    write(given.out, final)
    for name, table in tables.tables(final).items():
        if not name.endswith("-short"):
            print(f"\n{name}\n\n{tables.plain_text(table)}")
    print(f"\nwritten to {given.out}")
    return int(any(one.get("off", 0) > cell["agree"] for cell in final["cells"] if cell["agree"]
                   for one in cell["rows"]))


def part(text: str) -> tuple[int, int]:
    number, parts = (int(side) for side in text.split("/"))
    if not 1 <= number <= parts:
        raise ValueError(text)
    return number, parts


def wanted(names: str | None, name: str) -> bool:
    return names is None or name in names.split(",")


def picked(cell: Cell, only: str | None, also: str) -> Cell:
    names = [*cell.contestants, *(name for name in filter(None, also.split(",")) if name not in cell.contestants
                                  and cell.work.get("method", "fedavg") in CONTESTANTS[name].methods)]
    return cell._replace(contestants=tuple(name for name in names if not only or name in only.split(",")))


def result(base: dict[str, Any], cells: list[Cell], outcomes: list[dict[str, list[Any]]]) -> dict[str, Any]:
    """Everything so far, as it goes to the file."""
    lines = []
    for i, (cell, got) in enumerate(zip(cells, outcomes, strict=True)):
        rows = [tables.row(name, CONTESTANTS[name].label, got[name]) for name in cell.contestants]
        work = floor.shared.spec(json.dumps(cell.work))
        per_row = base["operations"][i] if base["operations"] else None
        ours = next((one for one in rows if one["contestant"] == tables.OURS), {})
        for one in rows:
            if "ms" in one and "ms" in ours:
                one["ratio"] = one["ms"] / ours["ms"]
            if cell.agree and one.get("loss") and ours.get("loss"):
                one["off"] = abs(one["loss"] / ours["loss"] - 1)
            if "ms" in one and per_row:
                own = floor.shared.spec(json.dumps({**cell.work, **CONTESTANTS[one["contestant"]].settings}))
                rate, count = CONTESTANTS[one["contestant"]].rate, floor.counts(own, per_row)
                one["gradient_rows"] = count["gradient_rows"]
                for name, moved in (("of_floor", "least"), ("of_streamed_floor", "streamed")):
                    one[name] = 1e3 * floor.seconds(count, base["rates"], rate, moved) / one["ms"]
        line = {"series": cell.series, "work": vars(work), "agree": cell.agree, "rows": rows}
        lines.append(line | ({"counts": floor.counts(work, per_row)} if per_row else {}))
    return {**{name: value for name, value in base.items() if name != "operations"}, "cells": lines}


def measured(given: argparse.Namespace, cells: list[Cell]) -> dict[str, Any]:
    """Rates of the machine and operations of the models; nothing where that fails."""
    print("measuring the machine ...", file=sys.stderr, flush=True)
    works = [{name: cell.work[name] for name in ("model", "hidden") if name in cell.work} for cell in cells]
    try:
        python = sys.executable if given.here else python_of("plain")
        done = subprocess.run([python, floor.__file__, given.device, json.dumps(works)], capture_output=True,
                              text=True, check=False, timeout=LIMIT)
        if done.returncode:
            raise Missing(last_line(done.stderr))
        found = json.loads(done.stdout.splitlines()[-1])
        return {"rates": found["rates"], "operations": found["rows"]}
    except (Missing, OSError, subprocess.TimeoutExpired) as error:
        print(f"no roofline: {error}", file=sys.stderr)
        return {"rates": {}, "operations": None}


def machine(device: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "device": device, "cores": os.cpu_count()}
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        facts["cpu"] = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        facts["cpu"] = platform.machine()
    if device == "cuda":
        import torch  # noqa: PLC0415

        if not torch.cuda.is_available():
            raise SystemExit("--device cuda: torch finds no CUDA device here; use --device cpu")
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def write(file: Path, content: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(json.dumps(content, indent=1) + "\n")
    new.replace(file)


class Progress:
    """A bar where rich is installed, else a line for every process; on stderr."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.bar = total, 0, None

    def __enter__(self) -> Progress:
        try:
            from rich import console, progress  # noqa: PLC0415

            if sys.stderr.isatty():
                self.bar = progress.Progress(*progress.Progress.get_default_columns(), progress.TimeElapsedColumn(),
                                             console=console.Console(stderr=True))
                self.bar.start()
                self.task = self.bar.add_task("", total=self.total)
        except ImportError:
            pass
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def show(self, text: str) -> None:
        if self.bar:
            self.bar.update(self.task, description=text)
        else:
            print(f"{self.done + 1}/{self.total} {text}", file=sys.stderr, flush=True)

    def advance(self) -> None:
        self.done += 1
        if self.bar:
            self.bar.advance(self.task)


if __name__ == "__main__":
    sys.exit(main())
