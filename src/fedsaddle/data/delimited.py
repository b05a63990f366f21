"""Tables of text with separators: CSV and its kin, read in one pass with a bar where it takes long.

The separator (comma, semicolon, tab or bar) is found out; cells may be quoted; the text is UTF-8, with or without a
mark at its start. A column is numbers where every cell is one or is missing, else words.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from fedsaddle.contracts import SettingError

SEPARATORS = (",", ";", "\t", "|")
HEAD = 1 << 16  # bytes in which the separator is looked for
SAMPLE = 20  # lines of them
CHUNK = 20_000  # rows turned into columns at once
LARGE = 32 << 20  # bytes from which a bar is shown
MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "?"})  # in any column, whatever the case
NO_NUMBER = MISSING | {"none", "-", "."}  # in a column of numbers
TRUTH = {"true": 1.0, "false": 0.0}
WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")  # of UTF-16 and UTF-32


class Numbers(NamedTuple):
    """A column of numbers, nan where one is missing or not finite."""

    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.values)


class Words(NamedTuple):
    """A column of text: the number of each cell's word, -1 where it is missing."""

    codes: NDArray[np.int32]
    words: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)


def read(
    path: Path, words: Collection[str], ignore: Collection[str],
) -> tuple[dict[str, Numbers | Words], int, int]:
    """The columns by name, the number of rows, and how many columns had no name and were left out."""
    columns, rows, unnamed, mixed = _read(path, words, ignore)
    if mixed:  # a word below a whole chunk of numbers: their text is gone, such as the zeros in front of 007
        columns, rows, unnamed, _ = _read(path, {*words, *mixed}, ignore)
    return columns, rows, unnamed


def lines(path: Path) -> Iterator[list[str]]:
    """The cells of every line, the names first; an error names the first line that is not as long as the names."""
    where, separator, width = f"file {str(path)!r}", _separator(path), 0
    with _opened(path) as (file, show):
        reader = csv.reader(file, delimiter=separator, skipinitialspace=True, strict=True)
        try:
            for number, row in enumerate(reader):
                if not row:  # a blank line
                    continue
                width = width or len(row)
                if len(row) != width:
                    raise SettingError(f"{where}: line {reader.line_num} has {len(row)} cells, the line of names has "
                                       f"{width}; mend that line, or quote cells that hold a separator "
                                       f"({separator!r})")
                if number % CHUNK == 0:
                    show()
                yield row
        except UnicodeDecodeError as error:
            raise _not_text(path, f"byte {error.object[error.start]:#04x} in line {_first_bad_line(path)}") from error
        except csv.Error as error:
            raise SettingError(f"{where}: line {reader.line_num} is not valid CSV ({error}); mend its quotes") \
                from error
        except (EOFError, OSError, zlib.error) as error:
            raise SettingError(f"{where}: cannot be read to its end ({error}); copy or pack it again") from error


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read(
    path: Path, words: Collection[str], ignore: Collection[str],
) -> tuple[dict[str, Numbers | Words], int, int, set[str]]:
    cells = lines(path)
    names = [name.strip() for name in next(cells, [])]
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise SettingError(f"file {str(path)!r}: two columns are called {twice[0]!r}; give every column a name of its "
                           "own")
    comma = _separator(path) != ","  # then a number may have a decimal comma
    columns = {i: _Column(name in words, comma) for i, name in enumerate(names) if name and name not in ignore}
    rows, chunk = 0, list[list[str]]()

    def empty_chunk() -> None:
        for i, texts in enumerate(zip(*chunk, strict=True)):
            if i in columns:
                columns[i].add(texts)
        chunk.clear()

    for row in cells:
        chunk.append(row)
        rows += 1
        if len(chunk) == CHUNK:
            empty_chunk()
    empty_chunk()
    mixed = {names[i] for i, column in columns.items() if column.mixed}
    done = {} if mixed else {names[i]: column.finished() for i, column in columns.items()}
    return done, rows, names.count(""), mixed


class _Column:
    """A column that grows chunk by chunk: of numbers as long as every cell is one."""

    def __init__(self, as_words: bool, comma: bool) -> None:
        self.as_words, self.comma = as_words, comma
        self.mixed = False  # a word came after a chunk of numbers
        self.numbers: list[NDArray[np.float64]] = []
        self.codes: list[NDArray[np.int32]] = []
        self.words: dict[str, int] = {}
        self.seen: dict[str, int] = {}  # the code of a cell's text, as it stands in the file

    def add(self, texts: tuple[str, ...]) -> None:
        if not self.as_words:
            values = _numbers(texts, self.comma)
            if values is not None:
                self.numbers.append(values)
                return
            self.as_words, self.mixed = True, bool(self.numbers)
        if not self.mixed:
            self.codes.append(np.fromiter(map(self._code, texts), np.int32, len(texts)))

    def _code(self, text: str) -> int:
        code = self.seen.get(text)
        if code is None:
            word = text.strip()
            code = -1 if word.lower() in MISSING else self.words.setdefault(word, len(self.words))
            self.seen[text] = code
        return code

    def finished(self) -> Numbers | Words:
        if self.as_words:
            return Words(np.concatenate([np.empty(0, np.int32), *self.codes]), tuple(self.words))
        return Numbers(np.concatenate([np.empty(0), *self.numbers]))


def _numbers(texts: tuple[str, ...], comma: bool) -> NDArray[np.float64] | None:
    """The numbers that these texts stand for; None where one stands for none."""
    if "_" in "".join(texts):  # Python reads 1_000 as a number; in a table it is a name
        return None
    try:
        values = np.fromiter(map(float, [text or "nan" for text in texts]), np.float64, len(texts))
    except ValueError:  # the careful way is five times slower
        try:
            values = np.fromiter((_number(text, comma) for text in texts), np.float64, len(texts))
        except ValueError:
            return None
    values[~np.isfinite(values)] = np.nan
    return values


def _number(text: str, comma: bool) -> float:
    word = text.strip().lower()
    if word in NO_NUMBER:
        return float("nan")
    if word in TRUTH:
        return TRUTH[word]
    return float(word.replace(",", ".", 1) if comma else word)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[str], Callable[[], None]]]:
    """The text, and what moves a bar to where the file was read up to; small files have no bar."""
    size = path.stat().st_size
    bars = Progress(TextColumn("reading {task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn(),
                    console=Console(stderr=True), disable=size < LARGE, transient=True)
    with bars, path.open("rb") as raw:
        bar = bars.add_task(path.name, total=size)
        text = io.TextIOWrapper(_unpacked(path, raw), encoding="utf-8-sig", newline="")  # cells may hold line ends
        yield text, lambda: bars.update(bar, completed=raw.tell())


def _separator(path: Path) -> str:
    """The one that gives the first lines the same number of cells, and the most."""
    try:
        with path.open("rb") as raw:
            head = _unpacked(path, raw).read(HEAD)
    except (EOFError, OSError, zlib.error) as error:
        raise SettingError(f"file {str(path)!r}: cannot be read ({error}); copy or pack it again") from error
    if head.startswith(WIDE_MARKS) or b"\0" in head:
        raise _not_text(path, "UTF-16" if head.startswith(WIDE_MARKS) else "a zero byte")
    text = head.decode("utf-8-sig", "replace")
    whole = text if len(head) < HEAD else text[: text.rfind("\n") + 1] or text
    sample = [line for line in whole.splitlines() if line.strip()][:SAMPLE]
    if not sample:
        raise SettingError(f"file {str(path)!r}: holds nothing but blank lines; give a table with a line of names")

    def fits(separator: str) -> tuple[bool, int]:
        widths = [len(row) for row in csv.reader(sample, delimiter=separator, skipinitialspace=True)]
        return len(set(widths)) == 1 and widths[0] > 1, widths[0]

    return max(SEPARATORS, key=fits)


def _first_bad_line(path: Path) -> int:
    with path.open("rb") as raw:
        for number, line in enumerate(_unpacked(path, raw), start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return number
    return 0


def _unpacked(path: Path, raw: IO[bytes]) -> IO[bytes]:
    return cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if path.suffix.lower() == ".gz" else raw


def _not_text(path: Path, found: str) -> SettingError:
    return SettingError(f"file {str(path)!r}: is not UTF-8 text ({found}); save it as UTF-8, such as with "
                        "`iconv -f LATIN1 -t UTF-8`, or as 'CSV UTF-8' from a spreadsheet")
