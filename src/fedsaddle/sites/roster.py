"""Who takes part: the nodes of a run, each one client, known by name and by the identity that the wire vouches for."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedsaddle.contracts import SettingError, setting
from fedsaddle.report.folder import replace_file

MOST_ROWS = 10**9
DTYPES = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64, "int32": torch.int32,
          "uint8": torch.uint8, "bool": torch.bool, "int16": torch.int16, "int8": torch.int8}


@dataclass(frozen=True)
class Patience:
    """How the server deals with real nodes: the section [sites] of a settings file."""

    nodes: tuple[str, ...] = setting((), "names of the nodes, in the order of their client numbers; empty: the first "
                                         "ones to come, by their names")
    at_least: int = setting(1, "replies without which a round is skipped", at_least=1)
    deadline: float = setting(600.0, "seconds after which an ask goes on with whoever has answered", above=0)
    start_seconds: float = setting(600.0, "seconds to wait for all nodes before the first round", above=0)


class Shape(NamedTuple):
    """What the rows of a node look like."""

    inputs: tuple[int, ...]
    dtype: torch.dtype
    targets: tuple[int, ...]
    target_dtype: torch.dtype


class Member(NamedTuple):
    """A node of the run."""

    name: str
    node: str  # its identity on the wire
    rows: int
    shape: Shape
    group: int | None = None


@dataclass
class Watched:
    """What is known about a node while a run goes on."""

    name: str
    state: str = "away"  # away, free, asked, slow, set aside
    seen: float = 0.0  # when it last answered, of the wall clock
    latency: float = 0.0  # seconds of its last answer
    work: float = 0.0  # how many of them it worked, as it says itself
    bytes_up: int = 0
    bytes_down: int = 0
    answered: int = 0
    late: int = 0
    refused: int = 0
    strikes: int = 0  # bad replies in a row
    last_reason: str = ""

    def heard(self, latency: float, size: int) -> None:
        self.seen, self.latency, self.bytes_up = time.time(), latency, self.bytes_up + size


class BadHello(ValueError):
    """An introduction that is none. The text says why."""


def introduced(header: dict[str, Any], node: str) -> Member:
    """The member that a hello speaks of; every value is checked."""
    name, rows, group = header.get("name"), header.get("rows"), header.get("group")
    if not (isinstance(name, str) and 0 < len(name) <= 64 and name.isprintable()):
        raise BadHello("its name is none")
    if not isinstance(rows, int) or isinstance(rows, bool) or not 0 < rows <= MOST_ROWS:
        raise BadHello(f"it claims {str(rows)[:20]} rows")
    if group is not None and (not isinstance(group, int) or isinstance(group, bool) or not 0 <= group < 10**6):
        raise BadHello("its group is no number")
    targets = header.get("targets")
    if not isinstance(targets, list) or len(targets) != 2:
        raise BadHello("it does not say what its targets are")
    return Member(name, node, rows, Shape(_sizes(header.get("shape")), _dtype(header.get("dtype")),
                                          _sizes(targets[0]), _dtype(targets[1])), group)


def _sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > 8 or not all(isinstance(n, int) and 0 < n < 10**7 for n in value):
        raise BadHello("the shape of its rows is none")
    return tuple(value)


def _dtype(value: Any) -> torch.dtype:
    if not isinstance(value, str) or value not in DTYPES:
        raise BadHello("the type of its rows is not known")
    return DTYPES[value]


def numbered(members: Sequence[Member], names: Sequence[str]) -> list[Member]:
    """The members in the order of their client numbers: as named, else in groups and by name."""
    by_name: dict[str, Member] = {}
    for member in members:
        if member.name in by_name:
            raise SettingError(f"sites: two nodes call themselves {member.name!r}; give every node its own --name")
        by_name[member.name] = member
    missing = [name for name in names if name not in by_name]
    if missing:
        raise SettingError(f"sites.nodes: {', '.join(missing)} did not come; start them, or take them out of the list")
    found = [by_name[name] for name in names] if names else \
        sorted(members, key=lambda member: (member.group if member.group is not None else 0, member.name))
    if not found:
        raise SettingError("sites: no node came; start some with `fedsaddle node`")
    for member in found[1:]:
        if member.shape != found[0].shape:
            raise SettingError(f"sites: the rows of {member.name!r} are {_told(member.shape)}, those of "
                               f"{found[0].name!r} {_told(found[0].shape)}; prepare the data alike at all sites")
    return found


def _told(shape: Shape) -> str:
    return f"{list(shape.inputs)} {str(shape.dtype).removeprefix('torch.')} with targets " \
           f"{list(shape.targets)} {str(shape.target_dtype).removeprefix('torch.')}"


def save(path: Path, members: Sequence[Member]) -> None:
    """Who has which number stays so when the server starts again."""
    rows = [{"name": m.name, "node": m.node, "rows": m.rows, "group": m.group, "shape": list(m.shape.inputs),
             "dtype": str(m.shape.dtype).removeprefix("torch."),
             "targets": [list(m.shape.targets), str(m.shape.target_dtype).removeprefix("torch.")]} for m in members]
    replace_file(path, (json.dumps(rows, indent=1) + "\n").encode())


def load(path: Path) -> list[Member]:
    return [introduced(row, row["node"]) for row in json.loads(path.read_text())]
