"""The reference: one client at a time, plain Python draws, no padding, no tricks. The oracle for the other engines."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from fedsaddle.contracts import Batch, Data, Draw, Pair, Problem
from fedsaddle.data.clients import Clients, Run
from fedsaddle.engine.federation import Ask, Outcome, sort_fields
from fedsaddle.engine.ledger import size_of
from fedsaddle.engine.oracle import ProblemOracle
from fedsaddle.maths import keys
from fedsaddle.maths.keys import Purpose
from fedsaddle.maths.trees import fill, map_leaves, named_leaves


class Reference:
    """An Engine that computes one client after the other."""

    def __init__(self, problem: Problem, clients: Clients, batch_size: int, dtype: torch.dtype) -> None:
        self.device, self.dtype, self.batch_size = clients.inputs.device, dtype, batch_size
        self.clients = clients
        self.pose(problem)
        self.open(())

    def pose(self, problem: Problem) -> None:
        self.noise, self.oracle = getattr(problem, "noise", 0), ProblemOracle(problem)

    def open(self, first_client: Any) -> None:
        self.first: Any = first_client
        self.kept: dict[int, Any] = {}
        self.pending: dict[int, Any] = {}

    def alone(self) -> AbstractContextManager[None]:
        return nullcontext()

    def expect(self, rounds: int) -> None:
        """Nothing is prepared here."""

    @torch.no_grad()
    def run(self, ask: Ask) -> Outcome:
        replies = []
        ask = ask._replace(message=map_leaves(lambda leaf: leaf.to(self.device), ask.message))
        for position, client in enumerate(ask.ids.tolist()):
            own = {name: map_leaves(lambda leaf, at=position: leaf[at], getattr(ask.message, name))
                   for name in ask.personal}
            message = ask.message._replace(**own) if own else ask.message
            state = self.pending.get(client, self.kept.get(client, self.first))
            reply, self.pending[client] = ask.work(self.oracle, message, state, self.data(client, ask))
            replies.append(reply)
        where = sort_fields(replies[0]._fields, ask.collect, ask.summed)
        parts: dict[str, list[Any]] = {kind: [] for kind in ("mean", "sum", "each")}
        for name, kind in where.items():
            values = [getattr(reply, name) for reply in replies]
            for other, fields in parts.items():
                fields.append(_combined(kind, values, ask) if other == kind else None)
        form = type(replies[0])
        return Outcome(form(*parts["mean"]), form(*parts["sum"]), form(*parts["each"]), size_of(replies[0]))

    def data(self, client: int, ask: Ask) -> Data:
        """The client's own rows, drawn as `keys.slots` says."""
        runs = self.clients.strata or (self.clients.run,)
        drawn = [self._minibatches(run, client, ask.draw, (*ask.address, s)) for s, run in enumerate(runs)]
        full = [self._full(run, client, (*ask.address, s)) for s, run in enumerate(runs)] if ask.draw.full else []
        if self.clients.strata:
            return Data(tuple(Pair(*pair) for pair in zip(*drawn, strict=True)), Pair(*full) if full else ())
        return Data(tuple(drawn[0]), full[0] if full else ())

    def _minibatches(self, run: Run, client: int, draw: Draw, address: tuple[int, ...]) -> list[Batch]:
        start, size, per_batch = int(run.start[client]), int(run.size[client]), self.batch_size
        key = keys.fold(keys.address(*address, Purpose.ROWS), client)
        slots = keys.slots(key, size, draw.minibatches * per_batch) if size else [0] * draw.minibatches * per_batch
        result = []
        for k in range(draw.minibatches):
            rows = [start + row if size else 0 for row in slots[k * per_batch : (k + 1) * per_batch]]
            result.append(self._batch(rows, 1 / per_batch if size else 0.0, client, (*address, 0), k * per_batch))
        return result

    def _full(self, run: Run, client: int, address: tuple[int, ...]) -> Batch:
        start, size = int(run.start[client]), int(run.size[client])
        if not size:
            return self._batch([0], 0.0, client, (*address, 1), 0)
        return self._batch(list(range(start, start + size)), 1 / size, client, (*address, 1), 0)

    def _batch(self, rows: list[int], weight: float, client: int, address: tuple[int, ...], first: int) -> Batch:
        noise: Any = ()
        if self.noise:
            key = keys.fold(keys.address(*address, Purpose.NOISE), client)
            numbers = [[keys.uniform(key, (first + r) * self.noise + j) for j in range(self.noise)]
                       for r in range(len(rows))]
            noise = torch.tensor(numbers, dtype=self.dtype, device=self.device)
        weights = torch.full((len(rows),), weight, dtype=self.dtype, device=self.device)
        return Batch(self.clients.inputs[rows], self.clients.targets[rows], weights, noise)

    def commit(self) -> None:
        self.kept.update(self.pending)
        self.pending = {}

    def rollback(self) -> None:
        self.pending = {}

    def states_of(self, ids: Tensor) -> Any:
        """As an ask would find them now."""
        found = [self.pending.get(client, self.kept.get(client, self.first)) for client in ids.tolist()]
        return map_leaves(lambda *leaf: torch.stack(leaf), *found)

    def put_back(self, ids: Tensor, states: Any) -> None:
        """The replies of these were not used after all."""
        for row, client in enumerate(ids.tolist()):
            self.pending[client] = map_leaves(lambda leaf, row=row: leaf[row], states)

    def dump(self) -> dict[str, Tensor]:
        if not self.kept or not list(named_leaves(self.first)):
            return {}
        stacked = map_leaves(lambda *leaf: torch.stack(leaf), *self.kept.values())
        return {"ids": torch.tensor(list(self.kept)), **dict(named_leaves(stacked))}

    def load(self, tensors: dict[str, Tensor]) -> None:
        for row, client in enumerate(tensors.get("ids", torch.zeros(0)).tolist()):
            values = {name: tensors[name][row].to(self.device) for name, _ in named_leaves(self.first)}
            self.kept[int(client)] = fill(self.first, values)


def _combined(kind: str, values: list[Any], ask: Ask) -> Any:
    if kind == "each":
        return map_leaves(lambda *leaf: torch.stack(leaf), *values)
    weights = ask.weight / ask.weight.sum() if kind == "mean" else ask.objective
    total = map_leaves(lambda leaf: leaf * weights[0].item(), values[0])
    for weight, value in zip(weights[1:].tolist(), values[1:], strict=True):
        total = map_leaves(lambda t, leaf, w=weight: t + leaf * w, total, value)
    return total
