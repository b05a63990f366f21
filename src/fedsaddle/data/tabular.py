"""Tables by name: mammography and campaign of ADBench, and the census data Adult of UCI."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsaddle.contracts import Rows, setting
from fedsaddle.data.dataset import Attribute, DataSet, split, standardised
from fedsaddle.data.formats import arrays, unpacked
from fedsaddle.data.store import File, Form, Shelf, load, where

ADBENCH = "https://github.com/Minqi824/ADBench/raw/main/adbench/datasets/Classical/"
UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
ADULT = (
    File("adult.data", f"{UCI}adult.data", "sha256:5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
    File("adult.test", f"{UCI}adult.test", "sha256:a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
)
NUMBERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
COLUMNS = ("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship",
           "race", "gender", "capital-gain", "capital-loss", "hours-per-week", "native-country")


def _adbench(name: str, number: int) -> Shelf:
    published = f"{number}_{name}.npz"

    def read(path: Path) -> list[NDArray[Any]]:
        return arrays(path, "X", "y")

    return Shelf(name, (Form((File(f"{name}.npz"),), read), Form((File(published, ADBENCH + published),), read)))


def _detection(shelf: Shelf, folder: str, test_share: float, seed: int) -> DataSet:
    def made(content: list[NDArray[Any]]) -> DataSet:
        inputs, targets = torch.from_numpy(content[0].astype(np.float64)), torch.from_numpy(content[1].astype(np.int64))
        return split(inputs, targets.reshape(-1), test_share, seed)

    return standardised(load(shelf, folder, made))


@dataclass(frozen=True)
class Mammography:
    """11,183 spots in mammograms with 6 measurements, standardised by the training rows; 2.3 % are calcifications."""

    test_share: float = setting(0.25, "share of each class kept for the test", above=0.0, at_most=0.9)
    folder: str = where()
    shelf = _adbench("mammography", 23)

    def load(self, seed: int) -> DataSet:
        return _detection(self.shelf, self.folder, self.test_share, seed)


@dataclass(frozen=True)
class Campaign:
    """41,188 calls of a bank with 62 features, standardised by the training rows; 11.3 % led to a deposit."""

    test_share: float = setting(0.25, "share of each class kept for the test", above=0.0, at_most=0.9)
    folder: str = where()
    shelf = _adbench("campaign", 5)

    def load(self, seed: int) -> DataSet:
        return _detection(self.shelf, self.folder, self.test_share, seed)


def _adult_files(train: Path, test: Path) -> tuple[list[list[str]], list[list[str]]]:
    return _people(train), _people(test)


def _people(path: Path) -> list[list[str]]:
    """Rows of 14 features and the income, as text."""
    lines = csv.reader(io.StringIO(unpacked(path).decode("utf-8")), skipinitialspace=True)
    rows = [line for line in lines if line and not line[0].startswith("|")]  # the test file begins with a remark
    for number, row in enumerate(rows, start=1):
        if len(row) != len(COLUMNS) + 1:
            raise ValueError(f"row {number} of {path.name} has {len(row)} columns instead of {len(COLUMNS) + 1}")
    if not rows:
        raise ValueError(f"{path.name} holds no rows")
    return rows


@dataclass(frozen=True)
class Adult:
    """48,842 people of the 1994 census, 16,281 of them for the test; 1 is an income above 50,000 dollars.

    14 features, standardised by the training rows; unknown values are a category of their own. Attributes: every
    category, such as gender and race.
    """

    categories: str = setting("codes", "how a category becomes numbers: its code, one feature as in the drfa paper, or "
                              "one-hot, a feature for each value", choices=("codes", "one-hot"))
    folder: str = where()
    shelf = Shelf("adult", (Form(ADULT, _adult_files),))

    def load(self, seed: int) -> DataSet:
        return load(self.shelf, self.folder, self._made)

    def _made(self, content: tuple[list[list[str]], list[list[str]]]) -> DataSet:
        train, test = content
        table = np.array([*train, *test])
        income = torch.from_numpy(np.char.startswith(table[:, -1], ">50K").astype(np.int64))
        features, attributes = [], {}
        for name, values in zip(COLUMNS, table.T[:-1], strict=True):
            if name in NUMBERS:
                features.append(values.astype(np.float64)[:, None])
                continue
            names, codes = np.unique(values, return_inverse=True)
            number = torch.from_numpy(codes.reshape(-1).astype(np.int64))
            attributes[name] = Attribute(tuple(names.tolist()), number[: len(train)], number[len(train) :])
            hot = self.categories == "one-hot"
            features.append(np.eye(len(names))[codes.reshape(-1)] if hot else codes.reshape(-1, 1).astype(np.float64))
        inputs = torch.from_numpy(np.concatenate(features, 1))
        data = DataSet(Rows(inputs[: len(train)], income[: len(train)]),
                       Rows(inputs[len(train) :], income[len(train) :]), 2, ("<=50K", ">50K"), attributes)
        return standardised(data)
