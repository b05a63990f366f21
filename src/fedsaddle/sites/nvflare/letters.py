# mypy: disable-error-code="import-untyped,import-not-found"
"""Bytes as NVFlare's Shareable, the same in both directions. Plain bytes need no decomposer of ours."""

from __future__ import annotations

from typing import NamedTuple

from nvflare.apis.shareable import Shareable

TASK = "carry"
HERE = "fedsaddle.here"  # topic by which a site's courier says that it is alive
ALIVE = 1.0  # seconds between two such signs
CONTENT, ERROR, SECONDS = "content", "error", "seconds"


class Letter(NamedTuple):
    content: bytes = b""
    error: str = ""
    seconds: float = 0.0


def pack(letter: Letter) -> Shareable:
    found = Shareable()
    found[CONTENT], found[ERROR], found[SECONDS] = letter.content, letter.error, letter.seconds
    return found


def unpack(shareable: Shareable) -> Letter:
    """ValueError if it is no letter: it comes from another machine."""
    content, error, seconds = (shareable.get(name) for name in (CONTENT, ERROR, SECONDS))
    if not (isinstance(content, bytes) and isinstance(error, str) and isinstance(seconds, float | int)):
        raise ValueError("a message whose parts are not ours")
    return Letter(content, error, float(seconds))
