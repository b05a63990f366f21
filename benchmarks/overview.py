"""Fills the table at the head of docs/results/README.md from the pages that are kept there.

    python benchmarks/overview.py [--check]

--check changes nothing, and fails where the table is not what the pages say. `keep.py` fills it anew every time.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs" / "results"
PLACE = re.compile(r"(<!-- overview -->\n).*?(<!-- end -->)", re.DOTALL)
SIGNS = {"holds": "✔", "within spread": "≈", "does not hold": "✘", "not measured": "?"}
WHAT = ("model.", "run.rounds", "run.model_seed")  # settings that are told; the page of an experiment names all
LEGEND = ("Claims: " + ", ".join(f"{sign} {verdict}" for verdict, sign in SIGNS.items())
          + "; in brackets, where it was told, on how many seeds the order is as claimed.")


def row(folder: Path) -> list[str]:
    study = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    methods = json.loads((folder / "results.json").read_text(encoding="utf-8"))["methods"].values()
    page = (folder / "README.md").read_text(encoding="utf-8")
    name = folder.relative_to(DOCS).as_posix()
    seeds = sorted({method["seeds"] for method in methods})
    died = sum(len(method["died"]) for method in methods)
    return [
        f"[{name}]({name}/README.md)" + departures(page),
        "H200" if "NVIDIA H200" in page else "CPU",
        f"{len(methods)} x " + (f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0]))
        + (f", {died} died" if died else ""),
        "<br>".join(told(claim) for claim in study["claims"]),
        picture(folder, study["measure"]),
    ]


def told(claim: dict[str, str]) -> str:
    seeds = re.search(r"as claimed on (\d+ of \d+ seeds)", claim["detail"])
    return f"{SIGNS[claim['verdict']]} {claim['text']}" + (f" *({seeds[1]})*" if seeds else "")


def departures(page: str) -> str:
    """What was not as in the recipe: net and rounds, and how many settings beside these."""
    line = re.search(r"^\*\*Not as in the recipe\*\*: (.*)$", page, re.MULTILINE)
    sets = re.findall(r"`([^`]+)`", line[1]) if line else []
    told = [f"`{value}`" for value in sets if value.startswith(WHAT)]
    more = len(sets) - len(told)
    told += [f"{more} {'other setting' if told else 'setting'}{'s' * (more > 1)}"] if more else []
    return f"<br>not as in the recipe: {', '.join(told)}" if told else ""


def picture(folder: Path, measure: str) -> str:
    """Against floats, which is what the papers count, or rounds."""
    found = [folder / "plots" / f"curve-{measure}-{axis}.svg" for axis in ("floats", "rounds")]
    path = next(path for path in found if path.exists()).relative_to(DOCS).as_posix()
    return f'<a href="{path}"><img src="{path}" width="240" alt="{measure} of {folder.name}"></a>'


def table() -> str:
    rows = [["experiment", "on", "methods x seeds", "what the paper claims", "picture"], ["---"] * 5]
    rows += [row(path.parent) for path in sorted(DOCS.glob("*/*/study.json"))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows) + f"\n\n{LEGEND}\n"


def filled(page: str) -> str:
    if len(PLACE.findall(page)) != 1:
        raise SystemExit("docs/results/README.md: needs one place between <!-- overview --> and <!-- end -->")
    return PLACE.sub(lambda match: f"{match[1]}{table()}\n{match[2]}", page)


def write(check: bool = False) -> int:
    path = DOCS / "README.md"
    before = path.read_text(encoding="utf-8")
    after = filled(before)
    if check and after != before:
        print("docs/results/README.md is not what its pages say; run benchmarks/overview.py", file=sys.stderr)
        return 1
    if not check:
        path.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, fail where the table differs")
    sys.exit(write(parser.parse_args().check))
