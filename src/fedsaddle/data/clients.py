"""The clients' data: one table, sorted by client, with the run of rows that belongs to each.

The population is two vectors of numbers, not a list of objects: a million clients cost 16 MB, and
runs may overlap, so that many simulated clients can share few rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsaddle.contracts import Rows, SettingError

CLASSES = ("positives", "negatives")


class Run(NamedTuple):
    """The rows of every client: start[i] .. start[i] + size[i] - 1."""

    start: Tensor
    size: Tensor


@dataclass(frozen=True)
class Clients:
    """All clients' rows. `strata`: for a problem that draws classes apart, one Run per stratum."""

    inputs: Tensor
    targets: Tensor
    run: Run
    strata: tuple[Run, ...] = ()

    @property
    def count(self) -> int:
        return len(self.run.size)

    @property
    def rows(self) -> Rows:
        """Everything pooled, for evaluation."""
        return Rows(self.inputs, self.targets)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Clients:
        """On the device once; floating inputs and targets in the run's precision."""

        def place(values: Tensor) -> Tensor:
            return values.to(device, dtype if values.is_floating_point() else values.dtype)

        runs = [Run(r.start.to(device), r.size.to(device)) for r in (self.run, *self.strata)]
        return replace(self, inputs=place(self.inputs), targets=place(self.targets), run=runs[0],
                       strata=tuple(runs[1:]))

    def stratified(self, strata: tuple[str, ...] = CLASSES) -> Clients:
        """The same rows, each client's positives (target > 0) first, with a Run for positives and for negatives.

        Clients with the same rows still share them; rows that differing runs have in common are there once for each.
        Strata called "rows" hold all rows of a client: they are drawn apart, and may meet.
        """
        if set(strata) == {"rows"}:
            return replace(self, strata=(self.run,) * len(strata))
        if strata != CLASSES:
            raise SettingError(f"problem.strata = {strata}: must be {CLASSES} or {('rows', 'rows')}")
        run, same = _distinct(Run(*(part.cpu() for part in self.run)), len(self.targets))
        ends = run.size.cumsum(0)
        row = torch.arange(int(ends[-1])) + (run.start - ends + run.size).repeat_interleave(run.size)
        positive = (self.targets[row] > 0).cpu()
        before = torch.cat([torch.zeros(1, dtype=torch.int64), positive.cumsum(0)])  # positives among earlier rows
        positives = before[ends] - before[ends - run.size]
        # A positive goes as far ahead as there are negatives of its run before it, a negative behind its positives.
        first = (ends - run.size).repeat_interleave(run.size)
        rank = before[:-1] - before[first]
        place = torch.where(positive, first + rank, torch.arange(len(row)) - rank
                            + positives.repeat_interleave(run.size))
        order = torch.empty_like(row)
        order[place] = row
        start = ends - run.size
        runs = (Run(start[same], positives[same]), Run((start + positives)[same], (run.size - positives)[same]))
        order = order.to(self.inputs.device)
        return Clients(self.inputs[order], self.targets[order], Run(runs[0].start, run.size[same]), runs)


def _distinct(run: Run, rows: int) -> tuple[Run, Tensor | slice]:
    """The runs without repetitions, and where each client's is: many clients may share few rows."""
    if int(run.size.sum()) <= rows:  # nothing to gain
        return run, slice(None)
    longest = int(run.size.max()) + 1
    runs, same = torch.unique(run.start * longest + run.size, return_inverse=True)
    return Run(runs // longest, runs % longest), same


def clients_from_arrays(inputs: Any, targets: Any, client: Any) -> Clients:
    """From arrays of rows: `client[r]` names the owner of row r. Clients are numbered in their names' order."""
    names = np.asarray(client).reshape(-1)
    inputs, targets = as_tensor(inputs), as_tensor(targets)
    if not len(inputs) == len(targets) == len(names):
        raise SettingError(f"clients: {len(inputs)} rows of inputs, {len(targets)} targets and {len(names)} client "
                           "names; give each row one target and one client")
    if not len(inputs):
        raise SettingError("clients: there are no rows at all; give at least one client with one row")
    order = _sorted(names)
    names = names[order]
    new = np.ones(len(names), dtype=bool)  # the first row of its client
    new[1:] = (names[1:] != names[:-1]) & ~((names[1:] != names[1:]) & (names[:-1] != names[:-1]))  # nan is one name
    start = torch.from_numpy(np.flatnonzero(new))
    size = torch.diff(start, append=torch.tensor([len(names)]))
    rows = torch.from_numpy(order)
    return checked(Clients(inputs[rows], targets[rows], Run(start, size)))


def _sorted(names: NDArray[Any]) -> NDArray[np.int64]:
    """The rows in the order of their names, in the given order within one."""
    if np.can_cast(names.dtype, np.int64):  # whole numbers, for which torch is quicker
        return torch.argsort(torch.from_numpy(names.astype(np.int64)), stable=True).numpy()
    return np.argsort(names, kind="stable")


def clients_from_list(parts: Sequence[tuple[Any, Any]]) -> Clients:
    """From one (inputs, targets) pair per client."""
    if not parts:
        raise SettingError("clients: the list is empty; give at least one (inputs, targets) pair")
    inputs, targets = [as_tensor(x) for x, _ in parts], [as_tensor(y) for _, y in parts]
    for i, (x, y) in enumerate(zip(inputs, targets, strict=True)):
        if len(x) != len(y):
            raise SettingError(f"clients: client {i} has {len(x)} rows of inputs and {len(y)} targets; "
                               "give each row one target")
        if x.shape[1:] != inputs[0].shape[1:]:
            raise SettingError(f"clients: a row of client {i} has shape {tuple(x.shape[1:])}, one of client 0 "
                               f"{tuple(inputs[0].shape[1:])}; all clients need the same features")
    size = torch.tensor([len(x) for x in inputs])
    return checked(Clients(torch.cat(inputs), torch.cat(targets), Run(size.cumsum(0) - size, size)))


def checked(clients: Clients) -> Clients:
    """The clients, or an error that names the first bad one."""
    empty = (clients.run.size == 0).nonzero().flatten()
    if len(empty):
        raise SettingError(f"clients: client {int(empty[0])} has no rows ({len(empty)} such clients in all); "
                           "leave clients without data out of the federation")
    for name, values in (("inputs", clients.inputs), ("targets", clients.targets)):
        if values.is_floating_point() and not bool(values.sum().isfinite()):  # a sum may overflow: look closer
            finite = torch.isfinite(values).reshape(len(values), -1).all(1)
            if not bool(finite.all()):
                row = int((~finite).nonzero()[0])
                inside = (clients.run.start <= row) & (row < clients.run.start + clients.run.size)
                owner = inside.nonzero().flatten()
                who = f"client {int(owner[0])}" if len(owner) else "no client"
                raise SettingError(f"clients: {name} hold NaN or infinite values in {int((~finite).sum())} rows, first "
                                   f"in row {row} of the table ({who}); impute or drop them first")
    return clients


def as_tensor(values: Any) -> Tensor:
    """A tensor of an array, in the array's own precision where there is a choice."""
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(np.ascontiguousarray(values))
    return tensor.float() if tensor.dtype == torch.float16 else tensor
