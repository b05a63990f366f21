"""Experiments that come with the package, as settings files. Their names are their paths without the ending."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def names() -> list[str]:
    return sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.rglob("*.toml"))


def path(name: str) -> Path | None:
    """The file of a recipe; None where there is none of that name."""
    return FOLDER / f"{name}.toml" if name in names() else None


def about(name: str) -> str:
    """What it is for: the first comment of its file."""
    first = (FOLDER / f"{name}.toml").read_text(encoding="utf-8").split("\n", 1)[0]
    return first.removeprefix("#").strip()
