"""The report: one HTML page that needs nothing but itself, with its plots as files beside it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedsaddle.report.content import content
from fedsaddle.report.folder import replace_file
from fedsaddle.report.page.markup import lead, sections
from fedsaddle.report.plots import draw
from fedsaddle.version import __version__

SCRIPTS = ("base.js", "closer.js", "curves.js", "clients.js", "sent.js", "start.js")
DRAWN = ("headline", "smooth", "measures", "axes", "stretched", "series", "participation", "traffic", "clients",
         "scores")  # by the scripts
DIGITS = 6


def write(folders: Sequence[Path], out: Path, title: str = "", plots: Path | None = None) -> Path:
    """Write the page about all runs in these folders, and the plots as files: into `plots` beside it if not given."""
    found = content([Path(folder) for folder in folders], title)
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_file(out, page(found).encode())
    draw(found, plots or out.parent / "plots")
    return out


def page(found: dict[str, Any]) -> str:
    """The text of the page."""
    scripts = "\n".join(text(name) for name in SCRIPTS)
    parts = {
        "title": escape(found["title"]), "lead": lead(found), "css": text("page.css"), "sections": sections(found),
        "version": escape(__version__), "js": scripts,
        "hash": f"sha256-{base64.b64encode(hashlib.sha256(scripts.encode()).digest()).decode()}",
        "data": embedded({name: found[name] for name in DRAWN}),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], text("page.html"))


def text(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def embedded(value: Any) -> str:
    """JSON that may stand in a page: no tag can begin in it."""
    plain = json.dumps(rounded(value), separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return plain.replace("<", "\\u003c")


def rounded(value: Any) -> Any:
    """Numbers to six digits, whole ones as they are; what is not finite becomes null."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        short = float(f"{value:.{DIGITS}g}")
        return int(value) if value.is_integer() else int(short) if short.is_integer() else short
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value
