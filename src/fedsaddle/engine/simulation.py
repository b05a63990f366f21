"""The simulation: the clients of an ask run together under `vmap`, in chunks, with running sums.

Memory is bounded by the chunk. Draws are keyed by client, so the chunk never changes a result beyond
rounding. Clients are cut into chunks by size where all their rows are needed, to waste little padding; where rows
interact, as in batch norm, clients of different sizes never share a chunk, so that no statistic sees padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedsaddle.contracts import Data, Problem
from fedsaddle.data.clients import Clients
from fedsaddle.engine.draws import Form, batches
from fedsaddle.engine.federation import Ask, Outcome, sort_fields
from fedsaddle.engine.ledger import Size, size_of
from fedsaddle.engine.oracle import ProblemOracle
from fedsaddle.engine.states import ClientStates
from fedsaddle.maths.trees import leaves, map_leaves
from fedsaddle.models.checks import mixes_rows

CHUNK_BYTES = 256 << 20  # what a chunk's data and variables may take when the chunk is chosen automatically
CHUNK_CLIENTS = {"cpu": 64, "cuda": 4096}


class Simulation:
    """An Engine that computes many clients at once."""

    def __init__(self, problem: Problem, clients: Clients, batch_size: int, dtype: torch.dtype,
                 chunk: int | None = None) -> None:
        self.device, self.dtype, self.batch_size, self.chunk = clients.inputs.device, dtype, batch_size, chunk
        self.clients = clients
        self.pose(problem)
        self.open(())

    def pose(self, problem: Problem) -> None:
        self.form = Form(self.batch_size, getattr(problem, "noise", 0), self.dtype)
        self.oracle = ProblemOracle(problem)
        self.unpadded = mixes_rows(problem)

    def open(self, first_client: Any) -> None:
        self.states = ClientStates(first_client, self.clients.count, self.device)

    @torch.no_grad()
    def run(self, ask: Ask) -> Outcome:
        sums = _Sums(ask, self.device, self.dtype)
        for part in self._chunks(ask):
            ids = ask.ids[part].to(self.device)
            data = batches(self.clients, ids, ask.draw, self.form, ask.address)
            reply, state = self._vectorised(ask, part, self.states.read(ids), data)
            self.states.write(ids, state)
            sums.add(part, reply)
        return sums.outcome()

    def commit(self) -> None:
        self.states.commit()

    def rollback(self) -> None:
        self.states.rollback()

    def dump(self) -> dict[str, Tensor]:
        return self.states.dump()

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.states.load(tensors)

    def _vectorised(self, ask: Ask, part: Tensor, states: Any, data: Data) -> tuple[Any, Any]:
        message, axes = ask.message, None
        if ask.personal:
            own = {name: map_leaves(lambda leaf: leaf[part.to(leaf.device)], getattr(message, name))
                   for name in ask.personal}
            message = message._replace(**own)
            axes = type(message)(*(0 if name in ask.personal else None for name in message._fields))

        def one(message: Any, state: Any, data: Data) -> tuple[Any, Any]:
            return ask.work(self.oracle, message, state, data)

        stateful = 0 if leaves(states) else None
        result: tuple[Any, Any] = vmap(one, in_dims=(axes, stateful, 0))(message, states, data)
        return result

    def _chunks(self, ask: Ask) -> Iterator[Tensor]:
        """Positions in the ask, chunk by chunk."""
        sizes = self.clients.run.size[ask.ids.to(self.device)].cpu()
        order = torch.argsort(sizes, stable=True) if ask.draw.full else torch.arange(len(ask.ids))
        chunk = self.chunk or self._automatic(ask, sizes)
        for alike in self._alike(ask, order) if ask.draw.full and self.unpadded else [order]:
            yield from alike.split(chunk)

    def _alike(self, ask: Ask, order: Tensor) -> Iterator[Tensor]:
        """Positions of clients with equally many rows, in every stratum."""
        runs = self.clients.strata or (self.clients.run,)
        sizes = torch.stack([run.size[ask.ids.to(self.device)].cpu() for run in runs], 1)[order]
        for size in torch.unique(sizes, dim=0):
            yield order[(sizes == size).all(1)]

    def _automatic(self, ask: Ask, sizes: Tensor) -> int:
        rows = ask.draw.minibatches * self.batch_size + (int(sizes.max()) if ask.draw.full else 0)
        row = self.clients.inputs[0].numel() * self.clients.inputs.element_size()
        # A row's activations are taken to need as much as the row again; a work to hold eight copies of its message.
        per_client = 2 * rows * row + 8 * size_of(ask.message).bytes
        return max(1, min(CHUNK_BYTES // max(1, per_client), CHUNK_CLIENTS[self.device.type]))


class _Sums:
    """Running sums over chunks, and the collected fields in the ask's order."""

    def __init__(self, ask: Ask, device: torch.device, dtype: torch.dtype) -> None:
        self.ask, self.device, self.dtype = ask, device, dtype
        self.mean_weight = (ask.weight / ask.weight.sum()).to(device, dtype)
        self.sum_weight = ask.objective.to(device, dtype)
        self.totals: dict[str, Any] = {}
        self.parts: dict[str, list[Any]] = {}
        self.order: list[Tensor] = []

    def add(self, part: Tensor, reply: Any) -> None:
        self.type, self.order = type(reply), [*self.order, part]
        self.where = sort_fields(reply._fields, self.ask.collect, self.ask.summed)
        self.size = Size(*(total // len(part) for total in size_of(reply)))
        for name, kind in self.where.items():
            value = getattr(reply, name)
            if kind == "each":
                self.parts.setdefault(name, []).append(value)
                continue
            weight = (self.mean_weight if kind == "mean" else self.sum_weight)[part.to(self.device)]
            total = map_leaves(lambda leaf, w=weight: torch.tensordot(w, leaf.to(self.dtype), 1), value)
            self.totals[name] = map_leaves(torch.add, self.totals[name], total) if name in self.totals else total

    def outcome(self) -> Outcome:
        back = torch.argsort(torch.cat(self.order)).to(self.device)
        for name, values in self.parts.items():
            self.totals[name] = map_leaves(lambda *leaf: torch.cat(leaf)[back], *values)

        def fields(kind: str) -> Any:
            return self.type(*(self.totals[name] if kind == k else None for name, k in self.where.items()))

        return Outcome(fields("mean"), fields("sum"), fields("each"), self.size)
