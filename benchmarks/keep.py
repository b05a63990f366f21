"""Keeps the small files of a result folder of `fedsaddle reproduce` in docs/results: page, tables, numbers, pictures.

    python benchmarks/keep.py results/cdma/auc-mnist cdma/auc-mnist
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs" / "results"


def keep(source: Path, name: str) -> None:
    target = DOCS / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    page = (source / "README.md").read_text(encoding="utf-8")
    for file in ("README.md", "table.csv", "curves.csv", "results.json", "study.json"):
        shutil.copy(source / file, target / file)
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page):
        (target / picture).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / picture, target / picture)


if __name__ == "__main__":
    keep(Path(sys.argv[1]), sys.argv[2])
