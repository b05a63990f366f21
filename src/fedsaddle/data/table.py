"""A user's table: a CSV, Parquet or npz file as columns of numbers and of words.

The core reads CSV and npz; Parquet needs pyarrow, the extra `parquet`. Nothing is unpickled.
"""

from __future__ import annotations

import difflib
import importlib
import zipfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsaddle.contracts import SettingError
from fedsaddle.data import delimited
from fedsaddle.data.delimited import Numbers, Words

DELIMITED, PARQUET, NPZ = (".csv", ".tsv", ".txt"), (".parquet", ".pq"), (".npz",)
KINDS = "CSV (.csv, .tsv or .txt, also with .gz), Parquet (.parquet) or npz"
FEATURES, NAMES = "X", ("feature_names", "features", "columns")  # of an npz: the two-dimensional array, its columns
SHOWN = 20  # column names in an error

Column = Numbers | Words


@dataclass(frozen=True)
class Table:
    """The columns of a file by name, all of one length."""

    path: Path
    columns: dict[str, Column]
    rows: int
    unnamed: int = 0  # columns without a name, which nothing can refer to: left out

    def column(self, name: str, setting: str) -> Column:
        """A column that a setting names."""
        if name in self.columns:
            return self.columns[name]
        raise SettingError(f"{setting} = {name!r}: {self.path.name} has no such column{close(name, self.columns)}; "
                           f"{self.listing()}")

    def words(self, name: str, setting: str) -> Words:
        column = self.column(name, setting)
        return column if isinstance(column, Words) else words_of(column.values)

    def listing(self) -> str:
        """Its columns, for an error."""
        names = list(self.columns)
        text = f"it has {', '.join(names[:SHOWN])}" + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        headless = any(delimited.is_number(name) for name in names)
        return text + ("; if these are data: the first line must hold the names of the columns" if headless else "")


def read(path: Path, words: Collection[str] = (), ignore: Collection[str] = ()) -> Table:
    """The table of a file. `words`: columns that are words even where they look like numbers, such as names of clients;
    `ignore`: columns that need not be read.
    """
    check(path)
    kind = _kind(path)
    if kind == "csv":
        columns, rows, unnamed = delimited.read(path, words, ignore)
    else:
        columns, unnamed = (_parquet if kind == "parquet" else _npz)(path, words, ignore), 0
        rows = max((len(column) for column in columns.values()), default=0)
    if not rows:
        raise SettingError(f"file {str(path)!r}: holds no rows; give a table with a line for every row below the names "
                           "of its columns")
    return Table(path, columns, rows, unnamed)


def originals(path: Path) -> Iterator[Sequence[str]]:
    """The file's own cells as text, the names of its columns first. An npz gives the numbers of its rows alone."""
    kind = _kind(path)
    if kind == "csv":
        yield from delimited.lines(path)
    elif kind == "npz":
        yield ["row"]
        yield from ([str(row)] for row in range(1, read(path).rows + 1))
    else:
        file = _opened_parquet(path)
        yield file.schema_arrow.names
        for batch in file.iter_batches():
            columns = [_text_values(column) for column in batch.columns]
            yield from (["" if cell is None else cell for cell in row] for row in zip(*columns, strict=True))


def check(path: Path) -> None:
    """The file is there, is one of ours and is not empty."""
    _kind(path)
    try:
        size = path.stat().st_size
    except OSError as error:
        raise SettingError(f"file {str(path)!r}: cannot be read ({error.strerror}); give the path of a {KINDS} "
                           "file") from error
    if path.is_dir() or not size:
        what = "is a folder" if path.is_dir() else "is empty (0 bytes)"
        raise SettingError(f"file {str(path)!r}: {what}; give the path of a {KINDS} file")


def _kind(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    last = suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else (suffixes or [""])[-1]
    kinds = {**dict.fromkeys(DELIMITED, "csv"), **dict.fromkeys(PARQUET, "parquet"), **dict.fromkeys(NPZ, "npz")}
    packed = suffixes[-1:] == [".gz"] and last not in DELIMITED
    if last not in kinds or packed:
        raise SettingError(f"file {str(path)!r}: the ending {path.suffix!r} is not known; give a {KINDS} file")
    return kinds[last]


def close(name: str, known: Iterable[str]) -> str:
    """A known name that was perhaps meant, in words."""
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[found[0]]!r}?" if found else ""


def words_of(values: NDArray[Any]) -> Words:
    """Words from an array: whole numbers without a point, missing ones as such."""
    distinct, codes = np.unique(values, return_inverse=True)
    return tidy(_texts(distinct), codes.reshape(-1))


def tidy(distinct: Sequence[str | None], codes: NDArray[Any]) -> Words:
    """Stripped, each word once, -1 where there is none."""
    known: dict[str, int] = {}
    number = np.full(len(distinct) + 1, -1, dtype=np.int32)  # the last for a code of -1
    for i, text in enumerate(distinct):
        word = (text or "").strip()
        if word.lower() not in delimited.MISSING:
            number[i] = known.setdefault(word, len(known))
    return Words(number[codes], tuple(known))


def _texts(values: NDArray[Any]) -> list[str]:
    if values.dtype.kind == "f":
        return [str(int(v)) if np.isfinite(v) and v == int(v) else str(v) for v in values]
    if values.dtype.kind == "S":
        return [v.decode("utf-8", "replace") for v in values]
    return [str(v) for v in values]


def _npz(path: Path, words: Collection[str], ignore: Collection[str]) -> dict[str, Column]:
    """Every vector is a column under its name; the matrix X one column for each of its features."""
    where = f"file {str(path)!r}"
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise SettingError(f"{where}: cannot be read ({error}); write it with numpy.savez(file, X=..., y=..., "
                           "client=...), with arrays of numbers or of fixed-length text, not of objects") from error
    names = next((arrays.pop(name) for name in NAMES if name in arrays), None)
    matrix = arrays.pop(FEATURES, None)
    columns: dict[str, Column] = {}
    if matrix is not None:
        width = matrix.shape[1] if matrix.ndim == 2 else 0
        titles = [str(n) for n in names] if names is not None else [f"x{i}" for i in range(width)]
        if not width or len(titles) != width or len(set(titles)) != width:
            raise SettingError(f"{where}: X has shape {matrix.shape}, and there are {len(titles)} names of columns; "
                               "give a matrix with a row for each row of the table, and each column a name of its own")
        arrays = {**dict(zip(titles, matrix.T, strict=True)), **arrays}
    for name, values in arrays.items():
        if values.ndim != 1:
            raise SettingError(f"{where}: {name} has shape {values.shape}; name the matrix of features X, and let the "
                               "other arrays be vectors")
        if name not in ignore:
            columns[name] = _column(values, name in words)
    sizes = {name: len(column) for name, column in columns.items()}
    if len(set(sizes.values())) > 1:
        raise SettingError(f"{where}: its arrays differ in length ({_lengths(sizes)}); give each row one entry in each")
    return columns


def _lengths(sizes: dict[str, int]) -> str:
    """One example of each length."""
    return ", ".join(f"{name} {size}" for size, name in {size: name for name, size in sizes.items()}.items())


def _column(values: NDArray[Any], as_words: bool) -> Column:
    if as_words or values.dtype.kind not in "iufb":
        return words_of(values)
    numbers = values.astype(np.float64)
    return Numbers(np.where(np.isfinite(numbers), numbers, np.nan))


class _Parts(NamedTuple):
    """The modules of pyarrow that are used."""

    parquet: Any
    types: Any
    compute: Any


def _pyarrow(path: Path) -> _Parts:
    try:
        return _Parts(*(importlib.import_module(f"pyarrow.{name}") for name in ("parquet", "types", "compute")))
    except ImportError as error:
        raise SettingError(f"file {str(path)!r}: reading Parquet needs pyarrow; install it with "
                           "`pip install 'fedsaddle[parquet]'`, or save the table as CSV") from error


def _opened_parquet(path: Path) -> Any:
    arrow = _pyarrow(path)
    try:
        return arrow.parquet.ParquetFile(path)
    except Exception as error:  # pyarrow's own kinds of error, of which there are many
        raise SettingError(f"file {str(path)!r}: is no valid Parquet file ({error}); write it again") from error


def _parquet(path: Path, words: Collection[str], ignore: Collection[str]) -> dict[str, Column]:
    file, arrow = _opened_parquet(path), _pyarrow(path)
    wanted = [name for name in file.schema_arrow.names if name not in ignore]
    columns: dict[str, Column] = {}
    for name in wanted:
        values = file.read(columns=[name]).column(0).combine_chunks()
        kind = values.type
        if arrow.types.is_nested(kind):
            raise SettingError(f"file {str(path)!r}: column {name!r} holds {kind}; every cell must be one number or "
                               "one text: unpack it, or leave it out with --ignore")
        number = any(test(kind) for test in (arrow.types.is_integer, arrow.types.is_floating, arrow.types.is_decimal,
                                             arrow.types.is_boolean))
        if number:
            floats = arrow.compute.cast(values, "float64", safe=False).to_numpy(zero_copy_only=False)
            columns[name] = _column(floats, name in words)
        else:
            encoded = arrow.compute.cast(values, "string").dictionary_encode()
            codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            columns[name] = tidy(encoded.dictionary.to_pylist(), codes)
    return columns


def _text_values(values: Any) -> list[str | None]:
    texts: list[str | None] = values.cast("string").to_pylist()
    return texts
