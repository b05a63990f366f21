"""Pages in docs/results of what has come back from a lent machine, in one go, so that nothing waits to be kept.

    python benchmarks/lent/home.py RUNS.tar.xz PLAN.json [PLAN.json ...] [--results FOLDER]

RUNS.tar.xz is what `away.sh look` packs. It is unpacked over --results (`results`), beside what came back before; runs
that have ended in there stay as they are. Entries of the plans that go to the same folder, such as a method that needs
a GPU by itself, are one page: docs/results/PAGE, where PAGE is the entry's "page", or else its recipe. Runs that are
yet to go on are on the page as far as they are. Commit docs/results after it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from fedsaddle.studies import errands, study

LENT = Path(__file__).parent


def unpack(archive: Path, results: Path) -> None:
    """What lies in the folder `results` of the archive, but for runs that had ended here already."""
    with tarfile.open(archive) as packed:
        files = {Path(entry.name).relative_to("results"): entry for entry in packed if entry.isfile()}
        there = {run for run in {inside.parent for inside in files} if errands.ended(results / run)}
        for inside, entry in files.items():
            if inside.parent not in there:
                packed.extract(entry.replace(name=str(inside)), results, filter="data")


def pages(plans: list[Path]) -> dict[str, list[dict[str, Any]]]:
    """The entries of the plans by the folder they go to."""
    found: dict[str, list[dict[str, Any]]] = {}
    for plan in plans:
        for entry in json.loads(plan.read_text(encoding="utf-8")):
            found.setdefault(entry.get("to", entry["recipe"]), []).append(entry)
    return found


def command(folder: Path, entries: list[dict[str, Any]]) -> list[str]:
    """`fedsaddle reproduce --no-run` for all methods of these entries of which there are runs."""
    recipes = {entry["recipe"] for entry in entries}
    if len(recipes) > 1:
        raise SystemExit(f'{folder}: {" and ".join(sorted(recipes))} go there; give each a "to" of its own')
    labels = list(study.load(entries[0]["recipe"]).tables["algorithms"])
    wanted = [label for label in labels if any(label in entry.get("only", labels) for entry in entries)]
    there = [label for label in wanted if any((folder / label).glob("seed-*/records.jsonl"))]
    seeds = max(max(entry.get("seeds", [0, 1, 2])) for entry in entries) + 1
    words = ["reproduce", *recipes, "--no-run", "--seeds", str(seeds), "--out", str(folder)]
    words += [word for label in there if there != labels for word in ("--only", label)]
    return words + [word for text in entries[0].get("set", []) for word in ("--set", text)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive", type=Path)
    parser.add_argument("plans", type=Path, nargs="+")
    parser.add_argument("--results", type=Path, default=Path("results"))
    given = parser.parse_args()
    unpack(given.archive, given.results)
    refused = []
    for name, entries in pages(given.plans).items():
        folder = given.results / name
        if not any(folder.glob("*/seed-*/records.jsonl")):
            print(f"{folder}: no run has come back yet")
            continue
        page = entries[0].get("page", entries[0]["recipe"])
        for words in (["-m", "fedsaddle", *command(folder, entries)], [LENT.parent / "keep.py", folder, page]):
            if subprocess.run([sys.executable, *words], check=False).returncode:  # the others are made all the same
                refused.append(page)
                break
        else:
            print(f"docs/results/{page}")
    if refused:
        raise SystemExit(f"no page, for the reasons above: {', '.join(refused)}")


if __name__ == "__main__":
    main()
