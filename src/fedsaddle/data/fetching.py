"""Fetching the public originals: with a bar, checked, and in place only when complete."""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from fedsaddle.contracts import SettingError
from fedsaddle.data.store import SUMS, File, Form, Shelf, check, recorded, remedy, shelf_folder

BLOCK = 1 << 18
SECONDS = 60.0  # without a byte, after which it is given up
Tell = Callable[[int, int | None], None]  # bytes so far, bytes in all where the server says so


def fetch(shelf: Shelf, form: Form, tell: Callable[[str], None] = lambda text: None) -> tuple[Path, ...]:
    """All files of a form in the cache; those that are there and sound are left alone."""
    place = shelf_folder(shelf)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        for file in form.files:
            target = place / file.name
            if _sound(target):
                tell(f"{file.name}: is there already")
                continue
            bar = bars.add_task(file.name, total=None)

            def progress(done: int, total: int | None, bar: object = bar) -> None:
                bars.update(bar, completed=done, total=total)  # type: ignore[arg-type]

            try:
                digest = download(file, target, progress)
            except (OSError, ValueError) as error:  # urllib's errors are OSErrors
                if isinstance(error, SettingError):
                    raise
                reason = getattr(error, "reason", error)
                raise SettingError(f"data {shelf.name!r}: {file.url} cannot be fetched ({reason}); try again later, or "
                                   f"{remedy(shelf)}") from error
            tell(f"{file.name}: sha256 {digest}, {'as published' if file.digest else 'recorded, none is published'}")
    return tuple(place / file.name for file in form.files)


def _sound(target: Path) -> bool:
    try:
        return target.is_file() and bool(check(target))
    except SettingError:
        return False


def download(file: File, target: Path, tell: Tell = lambda done, total: None) -> str:
    """One file into its place, and its SHA-256 into the list beside it. Complete and checked, or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    kind, _, expected = file.digest.partition(":")
    digests = {name: hashlib.new(name, usedforsecurity=False) for name in {"sha256", kind or "sha256"}}
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        request = urllib.request.Request(file.url, headers={"User-Agent": "fedsaddle"})
        with urllib.request.urlopen(request, timeout=SECONDS) as reply, part.open("wb") as stream:
            length = reply.headers.get("Content-Length")
            total, done = int(length) if length else None, 0
            while block := reply.read(BLOCK):
                stream.write(block)
                for digest in digests.values():
                    digest.update(block)
                done += len(block)
                tell(done, total)
        if total is not None and done != total:
            raise SettingError(f"data file {file.name!r}: {file.url} ended after {done:,} of {total:,} bytes; "
                               "try again")
        if expected and digests[kind].hexdigest() != expected:
            raise SettingError(f"data file {file.name!r}: what {file.url} gives has the {kind} "
                               f"{digests[kind].hexdigest()}, published is {expected}; nothing was kept: try again, or "
                               "put the file there yourself")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    found = digests["sha256"].hexdigest()
    _record(target, found)
    return found


def _record(target: Path, digest: str) -> None:
    sums = recorded(target.parent) | {target.name: digest}
    part = target.with_name(f"{SUMS}.{os.getpid()}.part")
    part.write_text("".join(f"{value}  {name}\n" for name, value in sorted(sums.items())), encoding="utf-8")
    part.replace(target.with_name(SUMS))
