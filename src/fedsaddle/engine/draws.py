"""The batches of many clients at once: keyed row numbers, one gather, weights for padding and missing classes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedsaddle.contracts import Batch, Data, Pair
from fedsaddle.data.clients import Clients, Run
from fedsaddle.maths import keys, streams
from fedsaddle.maths.keys import Purpose
from fedsaddle.maths.streams import Reach


class Form(NamedTuple):
    """What all batches of a run have in common."""

    batch_size: int
    noise: int  # uniform numbers per example
    dtype: torch.dtype


class Shape(NamedTuple):
    """Everything about an ask's batches that decides the shapes of tensors."""

    form: Form
    minibatches: int
    inputs: bool  # of the full batch: whether they are wanted
    widths: tuple[int, ...]  # rows of the full batch, for every stratum; empty: none wanted
    reaches: tuple[Reach, ...]  # how far the draws of each stratum look, where that is settled beforehand


class Drawn(NamedTuple):
    """The batches of a chunk of clients: the client axis first, then the minibatches."""

    inputs: tuple[Tensor, ...]  # of every stratum
    targets: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]  # of the rows of any minibatch
    noises: tuple[Tensor, ...]
    full: tuple[Batch, ...]


def keys_of(address: tuple[int, ...], strata: int) -> list[list[int]]:
    """The keys of an ask's draws: rows, noise of minibatches and noise of full batches, for every stratum."""
    ask = keys.address(*address)
    found = []
    for stratum in range(strata):
        place = keys.fold(ask, stratum)
        noises = (keys.fold(keys.fold(place, kind), Purpose.NOISE) for kind in (0, 1))
        found.append([streams.signed(key) for key in (keys.fold(place, Purpose.ROWS), *noises)])
    return found


def draw_batches(clients: Clients, ids: Tensor, shape: Shape, key: Tensor) -> Drawn:
    """The batches of these clients. Nothing is read back from the device where the reaches are settled."""
    runs = clients.strata or (clients.run,)
    full = tuple(_full(clients, run, ids, width, shape, key[stratum])
                 for stratum, (run, width) in enumerate(zip(runs, shape.widths, strict=False)))
    if not shape.minibatches:
        return Drawn((), (), (), (), full)
    reaches = shape.reaches or (None,) * len(runs)
    inputs, targets, weights, noises = zip(*(
        _minibatches(clients, run, ids, shape, far, key[stratum])
        for stratum, (run, far) in enumerate(zip(runs, reaches, strict=True))), strict=True)
    return Drawn(inputs, targets, weights, noises if shape.form.noise else (), full)


def data_of(drawn: Drawn, count: int) -> Data:
    """What the work of one client receives."""

    def batch(stratum: int, k: int) -> Batch:
        noise = drawn.noises[stratum][k] if drawn.noises else ()
        return Batch(drawn.inputs[stratum][k], drawn.targets[stratum][k], drawn.weights[stratum], noise)

    strata = max(len(drawn.inputs), len(drawn.full))
    if strata == 1:
        return Data(tuple(batch(0, k) for k in range(count)), drawn.full[0] if drawn.full else ())
    return Data(tuple(Pair(batch(0, k), batch(1, k)) for k in range(count)), Pair(*drawn.full) if drawn.full else ())


def _minibatches(
    clients: Clients, run: Run, ids: Tensor, shape: Shape, reach: Reach | None, key: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    size, count, rows_each = run.size[ids], shape.minibatches, shape.form.batch_size
    rows = run.start[ids, None] + streams.slots(streams.fold(key[0], ids), size, count * rows_each, reach)
    rows = torch.where(size[:, None] > 0, rows, 0).reshape(len(ids), count, rows_each)
    weight = ((size > 0).to(shape.form.dtype) / rows_each)[:, None].expand(-1, rows_each)
    noise = _noise(ids, count, rows_each, shape.form, key[1])
    return _rows(clients.inputs, rows), _rows(clients.targets, rows), weight, noise


def _full(clients: Clients, run: Run, ids: Tensor, width: int, shape: Shape, key: Tensor) -> Batch:
    form = shape.form
    size, start = run.size[ids][:, None], run.start[ids][:, None]
    slot = torch.arange(width, device=ids.device)
    real = slot < size
    # Padding repeats a real row: its values are finite, and it weighs nothing.
    rows = torch.where(real, start + slot, torch.where(size > 0, start, 0))
    weight = real.to(form.dtype) / size.clamp(min=1)
    noise = _noise(ids, 1, width, form, key[2])[:, 0] if form.noise else ()
    inputs = _rows(clients.inputs, rows) if shape.inputs else weight[..., None][..., :0]
    return Batch(inputs, _rows(clients.targets, rows), weight, noise)


def _rows(table: Tensor, numbers: Tensor) -> Tensor:
    """table[numbers], at the speed of copying whole rows."""
    return table.index_select(0, numbers.reshape(-1)).reshape(*numbers.shape, *table.shape[1:])


def _noise(ids: Tensor, count: int, rows: int, form: Form, key: Tensor) -> Tensor:
    numbers = streams.uniform(streams.fold(key, ids)[:, None],
                              torch.arange(count * rows * form.noise, device=ids.device))
    return numbers.reshape(len(ids), count, rows, form.noise).to(form.dtype)
