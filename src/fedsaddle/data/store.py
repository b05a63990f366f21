"""Where the files of a data set lie, and how they come there.

In this order: the folder of the setting `data.folder`, or else of FEDSADDLE_DATA; the cache; the public original,
fetched into the cache. A file that a SHA256SUMS beside it names must have that digest; whatever is fetched is entered.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fedsaddle.contracts import SettingError, setting

SUMS = "SHA256SUMS"
T = TypeVar("T")


class File(NamedTuple):
    """A file under its publisher's name. `digest`: "sha256:..." or its publisher's "md5:...", where one is known."""

    name: str  # a * stands for what changes from one release to the next
    url: str = ""  # none: no program can fetch it
    digest: str = ""


class Form(NamedTuple):
    """Files that together make a data set, and their reader."""

    files: tuple[File, ...]
    read: Callable[..., Any]  # of the files' paths, in their order
    within: tuple[str, ...] = ()  # folders where they are often found, besides one with the data set's name
    loose: bool = True  # may lie beside other data sets' files; not where those have the same names


class Shelf(NamedTuple):
    """A data set as files: its forms in the order in which they are looked for."""

    name: str
    forms: tuple[Form, ...]
    advice: str = ""  # where a person gets files that no program can fetch


class Found(NamedTuple):
    form: Form
    paths: tuple[Path, ...]


def where() -> Any:
    """The setting that every data set with files has."""
    return setting("", "folder with the files; empty: FEDSADDLE_DATA, then the cache, then the public original")


def cache() -> Path:
    """FEDSADDLE_CACHE, or where this system keeps caches."""
    own = os.environ.get("FEDSADDLE_CACHE")
    if own:
        return Path(own)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "fedsaddle"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fedsaddle"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedsaddle"


def shelf_folder(shelf: Shelf) -> Path:
    """Where fetched files go."""
    return cache() / "data" / shelf.name


def load(shelf: Shelf, given: str, make: Callable[[Any], T]) -> T:
    """What `make` makes of what the files' reader gives, fetched first where they are not at hand."""
    found = find(shelf, given) or _fetched(shelf)
    for path in found.paths:
        check(path)
    try:
        return make(found.form.read(*found.paths))
    except (SettingError, MemoryError):
        raise
    # A damaged file fails somewhere in a decoder, each with errors of its own (zlib.error, BadZipFile, TarError, ...).
    except Exception as error:
        files = ", ".join(str(path) for path in found.paths)
        raise SettingError(f"data {shelf.name!r}: cannot be read from {files} ({type(error).__name__}: {error}); "
                           f"damaged, or another format: put the original there, or delete it and use `fedsaddle data "
                           f"fetch {shelf.name}`") from error


def find(shelf: Shelf, given: str) -> Found | None:
    """The files where they are at hand."""
    for place, top in _places(given):
        for form in shelf.forms:
            for inside in (*(("",) if top or form.loose else ()), shelf.name, *form.within):
                paths = [_existing(place / inside / file.name) for file in form.files]
                if all(paths):
                    return Found(form, tuple(path for path in paths if path))
    return None


def _places(given: str) -> Iterator[tuple[Path, bool]]:
    """Folders to look in, and whether the folder is this data set's own."""
    for name, text in (("data.folder", given), ("FEDSADDLE_DATA", "" if given else os.environ.get("FEDSADDLE_DATA"))):
        if text:
            if not Path(text).expanduser().is_dir():
                raise SettingError(f"{name} = {text!r}: there is no such folder; give one that exists")
            yield Path(text).expanduser(), bool(given)
    yield cache() / "data", False


def _existing(path: Path) -> Path | None:
    """The file, packed or unpacked; the newest release where the name has a *."""
    if "*" in path.name:
        return max(path.parent.glob(path.name), default=None)
    other = path.with_suffix("") if path.suffix == ".gz" else path.with_name(path.name + ".gz")
    return next((candidate for candidate in (path, other) if candidate.exists()), None)


def _fetched(shelf: Shelf) -> Found:
    from fedsaddle.data.fetching import fetch  # noqa: PLC0415  # needed by few runs

    form = fetchable(shelf)
    if form is None:
        raise SettingError(f"data {shelf.name!r}: is not at hand; {remedy(shelf)}")
    return Found(form, fetch(shelf, form))


def fetchable(shelf: Shelf) -> Form | None:
    return next((form for form in shelf.forms if all(file.url for file in form.files)), None)


def remedy(shelf: Shelf) -> str:
    """Which files to put where."""
    ways = ", or ".join(" and ".join(file.name for file in form.files) for form in shelf.forms[:2])
    advice = f" ({shelf.advice})" if shelf.advice else ""
    return (f"put {ways} into a folder{advice}, and name that folder in data.folder or in the environment variable "
            f"FEDSADDLE_DATA, or put them into {shelf_folder(shelf)}")


def whereabouts(source: Any) -> str:
    """Where the files of a data source are, or how they would come here."""
    shelf = getattr(source, "shelf", None)
    if shelf is None:
        own = hasattr(source, "folder") or hasattr(source, "file")
        return "your own" if own else "comes with the package"
    found = find(shelf, "")
    if found:
        return str(found.paths[0].parent)
    return "to be fetched" if fetchable(shelf) else f"to be put there by hand: {shelf.advice}"


def check(path: Path) -> str:
    """The digest of a file that SHA256SUMS beside it names, "" if it names none; an error where the two differ."""
    expected = recorded(path.parent).get(path.name, "")
    if expected and path.is_file():
        state = path.stat()
        if sha256(path, state.st_mtime_ns, state.st_size) != expected:
            raise SettingError(f"data file {str(path)!r}: does not have the digest that {SUMS} beside it gives; it is "
                               "damaged or was changed: put the original there, or delete it and fetch it again")
    return expected


def recorded(place: Path) -> dict[str, str]:
    """Name -> digest."""
    path = place / SUMS
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {name.strip().removeprefix("*"): digest for digest, _, name in (line.partition(" ") for line in lines)}


@lru_cache(maxsize=64)
def sha256(path: Path, changed: int, size: int) -> str:
    """Computed once while the file stays as it is."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def kept(
    name: str, made_from: object, make: Callable[[], dict[str, NDArray[Any]]],
) -> dict[str, NDArray[Any]]:
    """What `make` makes, kept in the cache: decoding is slow. `made_from`: all that the result depends on."""
    place = cache() / "decoded"
    path = place / f"{name}-{hashlib.sha256(repr(made_from).encode()).hexdigest()[:16]}.npz"
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, EOFError, BadZipFile):  # not there, or cut short
        made = make()
    try:
        place.mkdir(parents=True, exist_ok=True)
        part = place / f"{path.stem}.{os.getpid()}.npz"
        np.savez(part, **made)  # type: ignore[arg-type]
        part.replace(path)
    except OSError:
        pass  # a full or read-only disk costs time, nothing else
    return made


def stamp(*paths: Path) -> tuple[tuple[str, int, int], ...]:
    """What tells a changed file from an unchanged one, without reading it."""
    return tuple((str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths)
