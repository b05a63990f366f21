"""From the columns of a table to the inputs of a model, learnt on training rows and kept for every later file.

Numbers are standardised, and replaced by the mean where they are missing, which a feature of its own marks; words
become a mark for each frequent word and one for the others. Columns that say nothing are left out. All that is learnt
comes from sums over rows (`counted`, then `spread`), so that clients can add up their own and send nothing else; in
simulation the training rows of all clients are summed at once, which is the same.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsaddle.contracts import SettingError
from fedsaddle.data.delimited import Numbers, Words, is_number
from fedsaddle.data.table import Column, Table, close, words_of

FORMAT = 1
FARTHEST = 10.0  # deviations from the mean: a value farther out counts as this far
FEWEST = 5  # training rows that a word needs for a column of its own
SAME = 1e-12  # numbers that differ less than this, relative to their size, differ by rounding

Floats = NDArray[np.float32]


class Counts(NamedTuple):
    """First sums over rows, by column. Those of two clients add up entry by entry."""

    rows: int
    known: Mapping[str, int]  # rows that have a number
    total: Mapping[str, float]  # of these numbers
    words: Mapping[str, Counter[str]]  # rows with each word

    def __add__(self, other: Counts) -> Counts:  # type: ignore[override]
        return Counts(
            self.rows + other.rows, {name: n + other.known[name] for name, n in self.known.items()},
            {name: t + other.total[name] for name, t in self.total.items()},
            {name: words + other.words[name] for name, words in self.words.items()},
        )

    @property
    def mean(self) -> dict[str, float]:
        return {name: total / max(1, self.known[name]) for name, total in self.total.items()}


def counted(columns: Mapping[str, Column], rows: NDArray[Any]) -> Counts:
    """The first sums over these rows."""
    numbers = {name: column.values[rows] for name, column in columns.items() if isinstance(column, Numbers)}
    words = {}
    for name, column in columns.items():
        if isinstance(column, Words):
            codes = column.codes[rows]
            count = np.bincount(codes[codes >= 0], minlength=len(column.words))
            words[name] = Counter({word: int(n) for word, n in zip(column.words, count, strict=True) if n})
    return Counts(len(rows), {name: int(np.isfinite(v).sum()) for name, v in numbers.items()},
                  {name: float(np.nansum(v)) for name, v in numbers.items()}, words)


def spread(columns: Mapping[str, Column], rows: NDArray[Any], mean: Mapping[str, float]) -> dict[str, float]:
    """The second sums: squared distances from the mean of all. Sums of plain squares would lose all digits where the
    mean is large."""
    return {name: float(np.nansum((column.values[rows] - mean[name]) ** 2)) for name, column in columns.items()
            if isinstance(column, Numbers)}


@dataclass(frozen=True)
class Number:
    """A column of numbers."""

    name: str
    mean: float
    deviation: float  # 0: they never differ, and only whether one is missing matters
    missing: float  # share of the training rows without one

    @property
    def features(self) -> tuple[str, ...]:
        return (*([self.name] if self.deviation else []), *([f"{self.name} missing"] if self.missing else []))

    def apply(self, column: Column, inputs: Floats) -> None:
        if not isinstance(column, Numbers):
            word = next((w for w in column.words if not is_number(w)), "")
            raise SettingError(f"column {self.name!r}: holds {word!r}, and held numbers when the model was trained; "
                               "give numbers, or leave the cell empty where one is missing")
        if self.deviation:
            z = (column.values - self.mean) / self.deviation
            inputs[:, 0] = np.nan_to_num(z).clip(-FARTHEST, FARTHEST)
        if self.missing:
            inputs[:, -1] = _mark(np.isnan(column.values), self.missing)


@dataclass(frozen=True)
class Text:
    """A column of words."""

    name: str
    categories: Mapping[str, float]  # words with a feature of their own, and their share of the training rows
    other: float  # share of other words
    missing: float

    @property
    def features(self) -> tuple[str, ...]:
        more = [f"{self.name} other"] * bool(self.other) + [f"{self.name} missing"] * bool(self.missing)
        return (*(f"{self.name}={word}" for word in self.categories), *more)

    def apply(self, column: Column, inputs: Floats) -> None:
        words = column if isinstance(column, Words) else words_of(column.values)
        place = {word: i for i, word in enumerate(self.categories)}
        nowhere = len(self.features)  # a word that is new among few known ones has no feature
        other, missing = len(place) if self.other else nowhere, nowhere - 1 if self.missing else nowhere
        of_word = np.array([*(place.get(word, other) for word in words.words), missing])
        at = of_word[words.codes]  # a code of -1 is the last
        shares = [*self.categories.values(), *([self.other] if self.other else []),
                  *([self.missing] if self.missing else [])]
        for i, share in enumerate(shares):
            inputs[:, i] = _mark(at == i, share)


def _mark(holds: NDArray[np.bool_], share: float) -> NDArray[np.floating[Any]]:
    """Whether something holds, with mean 0 and deviation 1 if it does in half of the rows. What is rare stays small:
    with deviation 1, marks that few rows have would drown the others."""
    return 2 * (holds - share)


@dataclass(frozen=True)
class Preparation:
    """What was learnt from the training rows: `apply` makes inputs of any table with the same columns."""

    columns: tuple[Number | Text, ...]
    dropped: Mapping[str, str]  # columns that are left out, and why
    label: str = ""  # the column of the label, which later files need not have
    positive: str = ""  # the label of the positives

    @cached_property
    def features(self) -> tuple[str, ...]:
        """What each input stands for."""
        return tuple(feature for column in self.columns for feature in column.features)

    @property
    def words(self) -> tuple[str, ...]:
        """Columns to be read as words, whatever they look like."""
        return tuple(column.name for column in self.columns if isinstance(column, Text))

    def apply(self, table: Table) -> Floats:
        """One row of inputs for each row of the table; columns that were not there in training are not looked at."""
        inputs = np.zeros((table.rows, len(self.features)), dtype=np.float32)
        absent = [column.name for column in self.columns if column.name not in table.columns]
        if absent:
            raise SettingError(f"file {str(table.path)!r}: has no column {absent[0]!r}{close(absent[0], table.columns)}"
                               f"; the model was trained with it ({len(absent)} such columns in all), and "
                               f"{table.listing()}")
        at = 0
        for column in self.columns:
            width = len(column.features)
            column.apply(table.columns[column.name], inputs[:, at : at + width])
            at += width
        return inputs

    def to_json(self) -> str:
        columns = [{"kind": "number" if isinstance(column, Number) else "text", **dataclasses.asdict(column)}
                   for column in self.columns]
        content = {"format": FORMAT, "label": self.label, "positive": self.positive, "columns": columns,
                   "dropped": dict(self.dropped)}
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str, where: str) -> Preparation:
        try:
            content = json.loads(text)
            if content["format"] != FORMAT:
                raise SettingError(f"{where}: has format {content['format']}, this version reads {FORMAT}; score with "
                                   "the version of fedsaddle that trained the model")
            return Preparation(tuple(_column(column) for column in content["columns"]), content["dropped"],
                               content["label"], content["positive"])
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, SettingError):
                raise
            raise SettingError(f"{where}: is damaged ({error}); train again with `fedsaddle fit`") from error


def _column(content: dict[str, Any]) -> Number | Text:
    kind = content.pop("kind")
    return Number(**content) if kind == "number" else Text(**content)


def learn(
    columns: Mapping[str, Column], rows: NDArray[Any], most: int, label: str = "", positive: str = "",
) -> Preparation:
    """What these training rows teach; at most so many words of a column get a column of their own."""
    counts = counted(columns, rows)
    return from_sums(counts, spread(columns, rows, counts.mean), most, label, positive)


def from_sums(
    counts: Counts, squares: Mapping[str, float], most: int, label: str = "", positive: str = "",
) -> Preparation:
    """The preparation that sums over all training rows give."""
    found: list[Number | Text] = []
    dropped: dict[str, str] = {}
    for name, mean in counts.mean.items():
        known = counts.known[name]
        deviation = float(np.sqrt(squares[name] / max(1, known)))
        number = Number(name, mean, deviation if deviation > SAME * abs(mean) else 0.0,
                        (counts.rows - known) / counts.rows if known else 0.0)
        if number.features:
            found.append(number)
        else:
            dropped[name] = "always the same" if known else "always missing"
    for name, words in counts.words.items():
        text = _text(name, words, counts.rows, most)
        if text.features and (len(words) > 1 or text.missing):
            found.append(text)
        else:
            dropped[name] = ("always missing" if not words else "always the same" if len(words) == 1 else
                             f"no word is in {FEWEST} training rows, as in names or free text")
    return Preparation(tuple(found), dropped, label, positive)


def _text(name: str, words: Counter[str], rows: int, most: int) -> Text:
    frequent = sorted((word for word, n in words.items() if n >= FEWEST), key=lambda word: (-words[word], word))[:most]
    rest = sum(n for word, n in words.items() if word not in frequent)
    known = sum(words.values())
    return Text(name, {word: words[word] / rows for word in frequent}, rest / rows if frequent else 0.0,
                (rows - known) / rows if known else 0.0)
