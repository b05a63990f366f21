"""Keeps the small files of a result folder of `fedsaddle reproduce` in docs/results: page, tables, numbers, pictures,
and in runs.tar.xz every run that has ended, without its model. Brings the overview up to date (overview.py).

    python benchmarks/keep.py results/cdma/auc-mnist cdma/auc-mnist
    python benchmarks/keep.py --back cdma/auc-mnist results/cdma/auc-mnist

--back makes run folders of that archive, with the page's own files beside them: `fedsaddle report` shows the study as
it was, claims included. `fedsaddle reproduce` with the same settings skips these runs, so a study can be made larger,
or its page again, on another machine; with more rounds it does them from the start, since checkpoints are not kept.
Archives without a final.json hold only the rounds that were evaluated, which is all that tables, claims and curves
need; who was asked and what was sent is not whole in a report of them. A page is not replaced by one that lacks some of
its methods.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
import tarfile
from pathlib import Path

import overview

from fedsaddle.report.series import UNFINISHED, find, read_run

DOCS = Path(__file__).parent.parent / "docs" / "results"
PAGE = ("README.md", "table.csv", "curves.csv", "results.json", "study.json")
WHOLE = ("run.toml", "records.jsonl", "summary.json", "final.json", "ended.json", "environment.json")


def methods(folder: Path) -> set[str]:
    """Those on a page; none where there is no page."""
    file = folder / "results.json"
    return set(json.loads(file.read_text(encoding="utf-8"))["methods"]) if file.exists() else set()


def keep(source: Path, target: Path) -> None:
    if missing := methods(target) - methods(source):
        raise SystemExit(f"{target}: its page has {', '.join(sorted(missing))}, which {source} has not; get its runs "
                         "back with --back and put them beside these, or give another name")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    page = (source / "README.md").read_text(encoding="utf-8")
    for file in PAGE:
        shutil.copy(source / file, target / file)
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page):
        (target / picture).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / picture, target / picture)
    with tarfile.open(target / "runs.tar.xz", "w:xz") as archive:
        for folder in sorted(find(source)):
            for name, content in _measured(folder).items():
                entry = tarfile.TarInfo(str(folder.relative_to(source) / name))
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))


def back(source: Path, target: Path) -> None:
    with tarfile.open(source / "runs.tar.xz") as archive:
        for entry in archive:
            if (target / entry.name).exists():
                raise SystemExit(f"{target / entry.name} is there already; give another folder, or remove it")
        archive.extractall(target, filter="data")
    for file in PAGE:
        shutil.copy(source / file, target / file)
    for picture in source.glob("*/seed-*/*.png"):
        shutil.copy(picture, target / picture.relative_to(source))


def _measured(folder: Path) -> dict[str, bytes]:
    """The files of a run that matter to a study; none if it is yet to go on."""
    if read_run(folder).state == UNFINISHED:
        return {}
    return {name: (folder / name).read_bytes() for name in WHOLE if (folder / name).exists()}


def main() -> None:
    if len(sys.argv) == 4 and sys.argv[1] == "--back":
        back(DOCS / sys.argv[2], Path(sys.argv[3]))
    elif len(sys.argv) == 3:
        keep(Path(sys.argv[1]), DOCS / sys.argv[2])
        overview.write()
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
