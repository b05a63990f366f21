"""A user's own file as a data set: labels, clients, a split by client or by a column, prepared features."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsaddle.contracts import Rows, SettingError, setting
from fedsaddle.data import preparation, table
from fedsaddle.data.dataset import Attribute, DataSet
from fedsaddle.data.deck import key, shuffle
from fedsaddle.data.delimited import Words
from fedsaddle.data.preparation import Preparation
from fedsaddle.data.table import Table
from fedsaddle.maths import keys

PAIRS = (("0", "1"), ("-1", "1"), ("false", "true"), ("no", "yes"), ("n", "y"), ("f", "t"), ("neg", "pos"),
         ("negative", "positive"))  # labels whose second is known to be the positive one
SHOWN = 8  # labels in an error
PARTS = {"train": False, "training": False, "test": True, "testing": True}
CLIENT, PREPARATION = "client", "preparation.json"


class Prepared(NamedTuple):
    """A file, read, cut and prepared."""

    data: DataSet
    preparation: Preparation
    test_rows: NDArray[np.int64]  # their numbers in the file, from 0


@dataclass(frozen=True)
class TableFile:
    """Your own CSV, Parquet or npz file: a column for the label, one for the client, the others are features."""

    file: str = setting("", "path of the file: .csv, .tsv, .txt (also .gz), .parquet or .npz")
    label: str = setting("", "column of the label, which has two values")
    positive_label: int | str | None = setting(None, "label of the positives against the rest; none: 1 of 0 and 1, yes "
                                               "of no and yes, and the like")
    client: str = setting("", "column that names the client of each row; empty: set data.partition to deal the rows")
    split: str | None = setting(None, "column that says train or test; none: a share of every client's rows is kept")
    test_share: float = setting(0.25, "share held out of each client's positives and negatives", above=0.0, at_most=0.9)
    ignore: tuple[str, ...] = setting((), "columns that are no features, such as numbers of patients")
    categories: int = setting(20, "words of a text column that get a feature of their own; the rest share one",
                              at_least=1)
    checksum: str | None = setting(None, "SHA-256 of the file; a file with another one is refused")
    partition = {"name": "by-attribute", "attribute": CLIENT}  # noqa: RUF012  # where the settings name none

    def load(self, seed: int) -> DataSet:
        return self.prepared(seed).data

    def prepared(self, seed: int) -> Prepared:
        """The data set with what it was made by; read once for several methods, again when the file was changed."""
        path = Path(self.file)
        if not self.file:
            raise SettingError("data.file = '': is missing; give the path of a CSV, Parquet or npz file")
        table.check(path)
        if self.checksum and checksum(path) != self.checksum:
            raise SettingError(f"data.file = {self.file!r}: has changed since the run began (data.checksum); bring "
                               "back the old file, or train anew")
        return _prepared(self, seed, path.stat().st_mtime_ns)


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=1)
def _prepared(source: TableFile, seed: int, changed: int) -> Prepared:
    special = [name for name in (source.label, source.client, source.split) if name]
    for name in source.ignore:
        if name in special:
            raise SettingError(f"data.ignore = {name!r}: is the label, the client or the split; leave it out of ignore")
    file = table.read(Path(source.file), words=special, ignore=source.ignore)
    if not source.label:
        raise SettingError(f"data.label = '': is missing; name the column of the label: {file.listing()}")
    label = file.words(source.label, "data.label")
    positive = positive_of(label, source.positive_label, source.label)
    targets = targets_of(label, positive)
    _complete(targets >= 0, file, source.label, "label")
    owner, names = _owners(file, source.client)
    test = _by_column(file, source.split) if source.split else held_out(targets, owner, source.test_share, seed)
    _both_classes(targets, test, source)
    features = {name: column for name, column in file.columns.items() if name not in special}
    learnt = preparation.learn(features, np.flatnonzero(~test), source.categories, source.label, positive)
    if not learnt.columns:
        reasons = "; ".join(f"{name}: {why}" for name, why in learnt.dropped.items()) or "there are no other columns"
        raise SettingError(f"data.file = {source.file!r}: no column is left as a feature ({reasons}); give at least "
                           "one")
    inputs, classes = torch.from_numpy(learnt.apply(file)), torch.from_numpy(targets)
    train, held = (torch.from_numpy(np.flatnonzero(part)) for part in (~test, test))
    clients = Attribute(names, owner[train], owner[held])
    data = DataSet(Rows(inputs[train], classes[train]), Rows(inputs[held], classes[held]), 2, ("others", positive),
                   {CLIENT: clients} if source.client else {}, {PREPARATION: learnt.to_json()})
    return Prepared(data, learnt, held.numpy())


def positive_of(label: Words, wanted: int | str | None, name: str) -> str:
    """The label of the positives: the one that is wanted, or that of a usual pair."""
    seen, codes = Counter[str](), label.codes[label.codes >= 0]
    for word, n in zip(label.words, np.bincount(codes, minlength=len(label.words)), strict=True):
        seen[_plain(word)] += int(n)
    values = ", ".join(f"{value!r} ({n:,} rows)" for value, n in seen.most_common(SHOWN))
    values += f" and {len(seen) - SHOWN} more" if len(seen) > SHOWN else ""
    if len(seen) < 2:
        raise SettingError(f"data.label = {name!r}: every row has the label {values or 'missing'}, so there is no AUC "
                           "to maximise; give rows of both classes")
    lower = {value.lower(): value for value in seen}
    usual = next((lower[positive] for negative, positive in PAIRS if set(lower) == {negative, positive}), None)
    chosen = _plain(str(wanted)) if wanted is not None else usual
    if chosen is None or chosen not in seen:
        what = f"no row has the label {chosen!r}" if chosen is not None else \
            f"has {len(seen)} values" if len(seen) > 2 else "does not tell which of its two values is the positive one"
        raise SettingError(f"data.label = {name!r}: {what}; its values are {values}: say which is the positive one, "
                           "against all others, with --positive (data.positive_label)")
    return chosen


def targets_of(label: Words, positive: str) -> NDArray[np.int64]:
    """1 for a positive, 0 for a negative, -1 where the label is missing."""
    codes = np.array([*(int(_plain(word) == positive) for word in label.words), -1], dtype=np.int64)
    targets: NDArray[np.int64] = codes[label.codes]
    return targets


def _plain(label: str) -> str:
    """1.0 and 1 are one label."""
    try:
        number = float(label)
    except ValueError:
        return label
    return str(int(number)) if number.is_integer() else label


def _owners(file: Table, client: str) -> tuple[Tensor, tuple[str, ...]]:
    """The number of each row's client, and the clients' names in order."""
    if not client:
        return torch.zeros(file.rows, dtype=torch.int64), ("",)
    words = file.words(client, "data.client")
    _complete(words.codes >= 0, file, client, "client")
    order = np.argsort(np.array(words.words))
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order))
    return torch.from_numpy(number[words.codes]), tuple(words.words[i] for i in order)


def _by_column(file: Table, name: str) -> NDArray[np.bool_]:
    words: Words = file.words(name, "data.split")
    _complete(words.codes >= 0, file, name, "split")
    strange = [word for word in words.words if word.lower() not in PARTS]
    if strange:
        raise SettingError(f"data.split = {name!r}: holds {strange[0]!r}; every row must say train or test")
    return np.array([PARTS[word.lower()] for word in words.words])[words.codes]


def _complete(known: NDArray[np.bool_], file: Table, name: str, setting: str) -> None:
    missing = np.flatnonzero(~known)
    if len(missing):
        raise SettingError(f"data.{setting} = {name!r}: is missing in {len(missing):,} of {file.rows:,} rows, first in "
                           f"row {missing[0] + 1}; fill it in, or leave these rows out of the file")


def held_out(targets: NDArray[np.int64], owner: Tensor, share: float, seed: int) -> NDArray[np.bool_]:
    """Rows for the test: this share of each class, of every client as nearly as whole rows allow.

    Clients are passed in a random order and every (1 / share)-th row is taken, so that classes of which every client
    has a row or two are held out too. A client with one row keeps it; every client keeps one.
    """
    clients = owner.numpy()
    sizes = np.bincount(clients)
    place = torch.argsort(shuffle(len(sizes), seed, 0)).numpy()  # of each client in the random order
    test = np.zeros(len(targets), dtype=bool)
    mixed = shuffle(len(targets), seed, 0).numpy()
    for label in (0, 1):
        rows = mixed[(targets[mixed] == label) & (sizes[clients[mixed]] > 1)]
        rows = rows[np.argsort(place[clients[rows]], kind="stable")]
        wanted = min(max(1, round(share * len(rows))), len(rows) - 1)
        start = keys.uniform(key(seed, 0), label)
        steps = np.floor(np.arange(len(rows) + 1) * wanted / max(1, len(rows)) + start)
        test[rows[np.diff(steps) > 0]] = wanted > 0
    first = np.unique(clients, return_index=True)[1]
    test[first[np.bincount(clients[test], minlength=len(sizes)) == sizes]] = False
    return test


def _both_classes(targets: NDArray[np.int64], test: NDArray[np.bool_], source: TableFile) -> None:
    for part, rows in (("training", ~test), ("test", test)):
        for label, kind in ((1, "positive"), (0, "negative")):
            if not (targets[rows] == label).any():
                remedy = f"mend the column {source.split!r}" if source.split else "give more such rows, or a split"
                raise SettingError(f"data.label = {source.label!r}: no {kind} row is among the {part} rows, so there "
                                   f"is no AUC; {remedy}")
