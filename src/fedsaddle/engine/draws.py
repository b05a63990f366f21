"""The batches of many clients at once: keyed row numbers, one gather, weights for padding and missing classes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedsaddle.contracts import Batch, Data, Draw, Pair
from fedsaddle.data.clients import Clients, Run
from fedsaddle.maths import keys, streams
from fedsaddle.maths.keys import Purpose


class Form(NamedTuple):
    """What all batches of a run have in common."""

    batch_size: int
    noise: int  # uniform numbers per example
    dtype: torch.dtype


def batches(clients: Clients, ids: Tensor, draw: Draw, form: Form, address: tuple[int, ...]) -> Data:
    """What the works of these clients receive; every leaf has the client axis first."""
    runs = clients.strata or (clients.run,)
    drawn = [_minibatches(clients, run, ids, draw.minibatches, form, (*address, stratum))
             for stratum, run in enumerate(runs)]
    full = [_full(clients, run, ids, form, (*address, stratum)) for stratum, run in enumerate(runs)] \
        if draw.full else []
    if clients.strata:
        return Data(tuple(Pair(*pair) for pair in zip(*drawn, strict=True)), Pair(*full) if full else ())
    return Data(tuple(drawn[0]), full[0] if full else ())


def _minibatches(
    clients: Clients, run: Run, ids: Tensor, count: int, form: Form, address: tuple[int, ...]
) -> list[Batch]:
    if not count:
        return []
    size, rows_each = run.size[ids], form.batch_size
    key = streams.fold(keys.address(*address, Purpose.ROWS), ids)
    rows = run.start[ids, None] + streams.slots(key, size, count * rows_each)
    rows = torch.where(size[:, None] > 0, rows, 0).reshape(len(ids), count, rows_each)
    inputs, targets = clients.inputs[rows], clients.targets[rows]
    weight = ((size > 0).to(form.dtype) / rows_each)[:, None].expand(-1, rows_each)
    noise = _noise(ids, count, rows_each, form, (*address, 0)) if form.noise else None
    return [Batch(inputs[:, k], targets[:, k], weight, () if noise is None else noise[:, k]) for k in range(count)]


def _full(clients: Clients, run: Run, ids: Tensor, form: Form, address: tuple[int, ...]) -> Batch:
    size, start = run.size[ids][:, None], run.start[ids][:, None]
    slot = torch.arange(max(1, int(size.max())), device=ids.device)
    real = slot < size
    # Padding repeats a real row: its values are finite, and it weighs nothing.
    rows = torch.where(real, start + slot, torch.where(size > 0, start, 0))
    weight = real.to(form.dtype) / size.clamp(min=1)
    noise = _noise(ids, 1, len(slot), form, (*address, 1))[:, 0] if form.noise else ()
    return Batch(clients.inputs[rows], clients.targets[rows], weight, noise)


def _noise(ids: Tensor, count: int, rows: int, form: Form, address: tuple[int, ...]) -> Tensor:
    key = streams.fold(keys.address(*address, Purpose.NOISE), ids)
    numbers = streams.uniform(key[:, None], torch.arange(count * rows * form.noise, device=ids.device))
    return numbers.reshape(len(ids), count, rows, form.noise).to(form.dtype)
