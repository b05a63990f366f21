"""Fills the tables of docs/performance.md from benchmarks/results/*.json.

    python benchmarks/speed/page.py [--check] [--list]

A table stands between `<!-- table: FILE:TABLE -->` and `<!-- end -->`, FILE being the name of a JSON file up to its
first dot and TABLE one of its tables, such as standard-short. Files with the same name up to there are parts of one
result: cuda.1.json, cuda.2.json. --check changes nothing and fails where the page is not what the files say; --list
shows the names.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import tables

ROOT = Path(__file__).parent.parent.parent
PAGE, RESULTS = ROOT / "docs" / "performance.md", ROOT / "benchmarks" / "results"
PLACE = re.compile(r"(<!-- table: (?P<name>\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def known(results: Path) -> dict[str, tables.Table]:
    """Every table of every result."""
    found: dict[str, tables.Result] = {}
    for file in sorted(results.glob("*.json")):
        part = json.loads(file.read_text())
        if "cells" not in part:  # of another benchmark, such as sites-*.json
            continue
        name = file.name.split(".")[0]
        found[name] = {**part, "cells": [*found.get(name, {"cells": []})["cells"], *part["cells"]]}
    return {f"{name}:{title}": table for name, result in found.items()
            for title, table in tables.tables(result).items()}


def filled(page: str, found: dict[str, tables.Table]) -> str:
    """The page with its tables as the files have them."""
    marks = len(re.findall(r"<!-- table:", page))
    if marks != len(PLACE.findall(page)):
        raise SystemExit("a '<!-- table: NAME -->' has no '<!-- end -->' after it, or no name")

    def one(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in found:
            raise SystemExit(f"no table {name!r}; there are: {', '.join(found) or 'none'}")
        return f"{match[1]}\n{tables.markdown(found[name])}\n\n{match[3]}"

    return PLACE.sub(one, page)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, fail where the page differs")
    parser.add_argument("--list", action="store_true", help="show the names of all tables")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    found = known(given.results)
    if given.list:
        print("\n".join(found))
        return 0
    before = given.page.read_text()
    after = filled(before, found)
    if given.check:
        if before != after:
            print(f"{given.page.name} is not what benchmarks/results says; run benchmarks/speed/page.py",
                  file=sys.stderr)
        return int(before != after)
    given.page.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
