"""Medicare fraud (papers: cyclic-auc): claims of Part B by provider and year, labelled by the list of exclusions LEIE.

One client per state; training, validation and test follow each other in time.
"""

from __future__ import annotations

import csv
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from fedsaddle.contracts import Rows, SettingError, setting
from fedsaddle.data.dataset import Attribute, DataSet, standardised
from fedsaddle.data.store import File, Form, Shelf, kept, load, stamp, where

NPI, STATE = "Rndrng_NPI", "Rndrng_Prvdr_State_Abrvtn"
MEASURES = ("Tot_", "Drug_", "Med_", "Bene_")  # how the names of numeric columns begin
STATES = (
    "AK", "AL", "AR", "AZ", "CA", "CO", "CT", "DE", "FL", "GA", "HI", "IA", "ID", "IL", "IN", "KS", "KY", "LA", "MA",
    "MD", "ME", "MI", "MN", "MO", "MS", "MT", "NC", "ND", "NE", "NH", "NJ", "NM", "NV", "NY", "OH", "OK", "OR", "PA",
    "RI", "SC", "SD", "TN", "TX", "UT", "VA", "VT", "WA", "WI", "WV", "WY",
)
FRAUD = ("1128a1", "1128a2", "1128a3", "1128b4", "1128b7")
ADVICE = ("the files 'by Provider' of Medicare Physician & Other Practitioners from https://data.cms.gov, and "
          "https://oig.hhs.gov/exclusions/downloadables/UPDATED.csv")


def _shelf(years: tuple[int, ...]) -> Shelf:
    claims = tuple(File(f"*_D{year % 100:02d}_Prov.csv") for year in years)
    return Shelf("medicare", (Form((File("UPDATED.csv"), *claims), lambda *paths: paths),), ADVICE)


@dataclass(frozen=True)
class Medicare:
    """Providers of Medicare Part B in a year, in the 50 states; 1 is a provider who was later excluded for fraud.

    Features: all totals and beneficiaries' figures that every year has, log(1 + value), standardised by the training
    rows; a suppressed figure counts as 0. The attribute is state.
    """

    training: tuple[int, ...] = setting((2017, 2018, 2019, 2020), "years to train on")
    test: int = setting(2022, "year to evaluate on; the paper tunes on 2021")
    rules: tuple[str, ...] = setting(FRAUD, "sections of the law that count as fraud, as LEIE writes them")
    folder: str = where()
    shelf = _shelf((2017, 2018, 2019, 2020, 2022))

    def load(self, seed: int) -> DataSet:
        if not self.training or self.test <= max(self.training):
            raise SettingError(f"data.test = {self.test}: must come after the years of data.training, "
                               f"{', '.join(map(str, self.training))}")
        years = (*self.training, self.test)
        excluded, *claims = load(_shelf(years), self.folder, lambda paths: paths)
        made = kept("medicare", (years, self.rules, stamp(excluded, *claims)),
                    lambda: _read(dict(zip(years, claims, strict=True)), excluded, self.rules))
        values, fraud, state, year = (torch.from_numpy(made[name]) for name in ("values", "fraud", "state", "year"))
        last = year == self.test
        parts = [Rows(values[part], fraud[part]) for part in (~last, last)]
        data = DataSet(parts[0], parts[1], 2, ("other", "fraud"),
                       {"state": Attribute(STATES, state[~last], state[last])})
        return standardised(data)


def _read(claims: dict[int, Path], excluded: Path, rules: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    until = exclusions(excluded, rules)
    heads = [_head(path) for path in claims.values()]
    columns = [name for name in heads[0] if name.startswith(MEASURES) and all(name in head for head in heads)
               and not name.endswith("_Ind")]  # indicators of suppression are words
    values, rows = array("f"), array("q")
    place = {state: number for number, state in enumerate(STATES)}
    for year, path in track(claims.items(), "reading claims", console=Console(stderr=True), transient=True):
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as stream:
            lines = csv.reader(stream)
            head = next(lines)
            npi, state, taken = head.index(NPI), head.index(STATE), [head.index(name) for name in columns]
            for line in lines:
                if line[state] in place:
                    values.extend(map(_number, (line[i] for i in taken)))
                    rows.extend((until.get(line[npi], 0) >= year, place[line[state]], year))
    if not rows:
        raise SettingError(f"data 'medicare': {', '.join(map(str, claims.values()))} hold no provider of a state; put "
                           "the files 'by Provider' there")
    table = np.frombuffer(rows, np.int64).reshape(-1, 3)
    logs = np.log1p(np.maximum(np.frombuffer(values, np.float32), 0)).reshape(-1, len(columns))
    return {"values": logs, **{name: table[:, i].copy() for i, name in enumerate(("fraud", "state", "year"))}}


def exclusions(path: Path, rules: tuple[str, ...]) -> dict[str, int]:
    """Provider number -> year of the last exclusion for one of the rules. Claims up to then count as fraud."""
    until: dict[str, int] = {}
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as stream:
        for row in csv.DictReader(stream):
            try:
                npi, rule, year = row["NPI"].strip(), row["EXCLTYPE"].strip(), int(row["EXCLDATE"][:4])
            except (KeyError, TypeError, ValueError) as error:
                raise SettingError(f"data 'medicare': {path} has a line {row}; it needs the columns NPI, EXCLTYPE and "
                                   "EXCLDATE (YYYYMMDD) of LEIE") from error
            if rule in rules and npi.strip("0"):  # who has no number is listed with zeros
                until[npi] = max(year, until.get(npi, 0))
    return until


def _head(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as stream:
        head = next(csv.reader(stream), [])
    missing = [name for name in (NPI, STATE) if name not in head]
    if missing:
        raise SettingError(f"data 'medicare': {path} has no column {missing[0]}; put the file 'by Provider' there")
    return head


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
