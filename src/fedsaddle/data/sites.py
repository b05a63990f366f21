"""Rows that stay at their sites: what the server says of them, and the file that a site has."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedsaddle.contracts import SettingError, setting
from fedsaddle.data import table
from fedsaddle.data.clients import Clients, Run, as_tensor, checked
from fedsaddle.data.dataset import DataSet
from fedsaddle.data.delimited import Numbers

ARRAYS = ("inputs", "targets")


@dataclass(frozen=True)
class SitesData:
    """Every client is a site with rows of its own, which a server asks with `fedsaddle server`."""

    classes: int = setting(2, "number of classes, 0 where the targets are none", at_least=0)
    test: str = setting("", "a file at the server with held-out rows to measure on, like a site's; empty: none")
    label: str = setting("", "column of the label in that file, where it is a table")

    def load(self, seed: int) -> DataSet:
        raise SettingError("data.name = 'sites': the rows are at their sites; start `fedsaddle server` with this file, "
                           "and `fedsaddle node` at every site")


def load_site(file: Path, label: str | None = None) -> Clients:
    """The rows of a site as those of a single client.

    An npz file with the arrays inputs and targets; or a table (CSV, Parquet, npz) of numbers with a column of labels.
    Features are taken as they are: prepare them alike at all sites.
    """
    if not file.exists():
        raise SettingError(f"--data {str(file)!r}: there is no such file; give a CSV, Parquet or npz file")
    inputs, targets = _arrays(file) if file.suffix == ".npz" and not label else _table(file, label)
    size = torch.tensor([len(targets)])
    return checked(Clients(inputs, targets, Run(torch.zeros_like(size), size)))


def _arrays(file: Path) -> tuple[Tensor, Tensor]:
    try:
        with np.load(file, allow_pickle=False) as found:
            missing = [name for name in ARRAYS if name not in found]
            if missing:
                raise SettingError(f"--data {str(file)!r}: has no array {missing[0]!r}; give the arrays inputs and "
                                   "targets, or a table with --label")
            inputs, targets = (as_tensor(found[name]) for name in ARRAYS)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        if isinstance(error, SettingError):
            raise
        raise SettingError(f"--data {str(file)!r}: cannot be read ({type(error).__name__}); give an npz file without "
                           "objects in it") from error
    if inputs.dim() < 1 or len(inputs) != len(targets):
        raise SettingError(f"--data {str(file)!r}: {len(inputs)} inputs and {len(targets)} targets; give each row one")
    return inputs, targets


def _table(file: Path, label: str | None) -> tuple[Tensor, Tensor]:
    if not label:
        raise SettingError("--label: is missing; say which column of the table is the label")
    found = table.read(file)
    wanted = found.column(label, "--label")
    if not isinstance(wanted, Numbers):
        raise SettingError(f"--label {label!r}: holds words; code the classes as 0, 1, 2, ... alike at all sites")
    columns = []
    for name, column in found.columns.items():
        if name == label:
            continue
        if not isinstance(column, Numbers):
            raise SettingError(f"--data {str(file)!r}: column {name!r} holds words; code it in numbers, alike at all "
                               "sites")
        columns.append(torch.as_tensor(np.asarray(column.values, dtype=np.float32)))
    if not columns:
        raise SettingError(f"--data {str(file)!r}: has no columns beside the label")
    values = np.asarray(wanted.values, dtype=np.float64)
    if not np.isfinite(values).all() or (values != np.round(values)).any():
        raise SettingError(f"--label {label!r}: must hold whole numbers in every row")
    return torch.stack(columns, 1), torch.as_tensor(values.astype(np.int64))
