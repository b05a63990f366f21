"""The simulation: the clients of an ask run together, in chunks, with running sums.

Memory is bounded by the chunk. Draws are keyed by client, so neither the chunk nor the way in which it is computed
changes a result beyond rounding. Clients are cut into chunks by size where all their rows are needed, to waste little
padding; where rows interact, as in batch norm, clients of different sizes never share a chunk, so that no statistic
sees padding.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsaddle.contracts import Problem
from fedsaddle.data.clients import Clients
from fedsaddle.engine.calibration import AUTO, Calibration, Way, power_of_two
from fedsaddle.engine.devices import sent
from fedsaddle.engine.draws import Form, Shape, keys_of
from fedsaddle.engine.federation import Ask, Outcome, sort_fields
from fedsaddle.engine.ledger import Size, size_of
from fedsaddle.engine.oracle import ProblemOracle
from fedsaddle.engine.programs.bodies import COMPILED, EAGER, TRACED, Bodies, Task
from fedsaddle.engine.programs.capture import Captured
from fedsaddle.engine.programs.compiling import keep_freed_memory
from fedsaddle.engine.programs.tracing import Untraceable
from fedsaddle.engine.ranks import Ranks
from fedsaddle.engine.states import ClientStates
from fedsaddle.engine.sums import EACH, Sums, reduced, reply_size
from fedsaddle.maths.nets import mixes_rows
from fedsaddle.maths.streams import Reach, reach
from fedsaddle.maths.trees import leaves, map_leaves, with_leaves

CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 4 << 30}  # what a chunk's data and variables may take,
SHARE_OF_A_GPU = 16  # or that part of its memory, where it is more: several runs may use it
CHUNK_CLIENTS = 4096
WIDTHS = {TRACED: 8, COMPILED: 4}  # a power of two is cut into so many steps, of which the upper half counts


class Chunk(NamedTuple):
    """Who is computed, and what for; small, and on the host until it is needed."""

    ids: Tensor
    keys: Tensor  # of the draws
    mean_weight: Tensor
    sum_weight: Tensor


class Simulation:
    """An Engine that computes many clients at once."""

    def __init__(self, problem: Problem, clients: Clients, batch_size: int, dtype: torch.dtype,
                 chunk: int | None = None, execution: str = AUTO, ranks: Ranks | None = None,
                 resident: int | None = None) -> None:
        """resident: bytes of client states in memory; those beyond are in files in `folder`."""
        self.resident = resident
        self.folder: Path | None = None
        self.device, self.dtype, self.batch_size = clients.inputs.device, dtype, batch_size
        self.calibration, self.ranks = Calibration(execution, chunk), ranks or Ranks()
        self.clients = clients
        self.runs = clients.strata or (clients.run,)
        self.sizes = [run.size.cpu() for run in self.runs]  # rows of every client, on the host
        self.rows = clients.run.size.cpu()
        self.most = [max(1, int(size.max())) for size in self.sizes]
        self.pose(problem)
        self.open(())
        if self.device.type == "cpu":
            keep_freed_memory()

    def pose(self, problem: Problem) -> None:
        self.form = Form(self.batch_size, getattr(problem, "noise", 0), self.dtype)
        self.oracle = ProblemOracle(problem)
        self.bodies = Bodies(self.oracle)
        self.captured: dict[Any, tuple[Captured, Any, Size]] = {}
        self.reaches: dict[int, tuple[Reach, ...]] = {}
        self.unpadded = mixes_rows(problem)

    def open(self, first_client: Any) -> None:
        self.states = ClientStates(first_client, self.clients.count, self.device, self.resident, self.folder)

    def settle_in(self, folder: Path) -> None:
        """Where large files of the run may lie."""
        self.folder = folder
        self.states.settle_in(folder)

    def join(self, ranks: Ranks) -> None:
        """Become one of several processes, which have had the same states until now."""
        self.ranks = ranks
        self.calibration.seconds.clear()  # of an eager answer by other shares
        if not self.states.stateless and ranks.size > 1:
            self.states.keep_only(lambda ids: ids % ranks.size == ranks.rank)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Asks in here are this process's own affair: those of an evaluation, which the others know nothing of."""
        ranks, self.ranks = self.ranks, Ranks()
        try:
            yield
        finally:
            self.ranks = ranks

    def expect(self, rounds: int) -> None:
        self.calibration.rounds = rounds

    def run(self, ask: Ask) -> Outcome:
        sizes = self.rows[ask.ids] if ask.draw.full else None
        shares = self.ranks.shares(ask.ids, sizes, owned=not self.states.stateless)
        mine = shares[self.ranks.rank]
        way = self.calibration.way(self, ask, mine)
        began = time.perf_counter()
        sums = self.compute(ask, mine, way or Way(EAGER, self.calibration.chunk or self.automatic(ask)))
        if way is None:
            self.calibration.tell(self, ask, time.perf_counter() - began)
        return sums.outcome(self.ranks, shares)

    @torch.no_grad()
    def compute(self, ask: Ask, share: Tensor, way: Way, keep: bool = True) -> Sums:
        """The replies of the clients at these positions, summed up; their states are written, if they are to be kept.

        A process without a share computes one client that weighs nothing: its reply tells the shapes. A way that does
        not work is given up for the eager one, unless it is only tried (nothing is kept): then that is an error.
        """
        sums, keys = Sums(ask), torch.tensor(keys_of(ask.address, len(self.runs)))
        idle = not share.shape[0]
        weights = (0 * ask.weight,) * 2 if idle else (ask.weight / ask.weight.sum(), ask.objective)
        share = torch.zeros(1, dtype=torch.int64) if idle else share
        alone = self.ranks.size == 1 and share.shape[0] == ask.ids.shape[0]
        for part in self._chunks(ask, share, way):
            count = part.shape[0]
            whole = part if way.kind == EAGER else _padded(part, way, share.shape[0], self.device.type)
            if alone and whole is share:  # everyone at once, in order
                chunk = Chunk(ask.ids, keys, *weights)
            else:
                chunk = Chunk(ask.ids[whole], keys, *(_for_the_first(count, weight[whole]) for weight in weights))
            try:
                kept, state, size = self._replies(ask, whole, way, chunk)
            except Untraceable as error:
                if not keep:
                    raise
                way = self.calibration.give_up(ask, way, error)
                kept, state, size = self._replies(ask, whole, way, chunk)
            if count < whole.shape[0]:
                state = _cut(state, count)
                kept = _first_of_each(ask, kept, count)
            if keep and not idle and not self.states.stateless:
                self.states.write(chunk.ids[:count], state)
            sums.add(part, _first_of_each(ask, kept, 0) if idle else kept, size)
        return sums

    def operations(self, ask: Ask) -> int:
        """How long the code of its work is, once it has been traced."""
        return self.bodies.operations(ask.work)

    def commit(self) -> None:
        self.states.commit()

    def rollback(self) -> None:
        self.states.rollback()

    def states_of(self, ids: Tensor) -> Any:
        """As an ask would find them now."""
        return () if self.states.stateless else self.states.read(ids)

    def put_back(self, ids: Tensor, states: Any) -> None:
        """The replies of these were not used after all."""
        if not self.states.stateless:
            self.states.write(ids, states)

    def dump(self) -> dict[str, Tensor]:
        """The states of all clients, whichever process keeps them; every process must call it."""
        mine = self.states.dump()
        if self.ranks.size == 1 or self.states.stateless:
            return mine
        mine = mine or self.states.nothing()
        counts = [int(n) for n in self.ranks.gathered(torch.tensor([self.states.visited]), [1] * self.ranks.size)]
        return {name: self.ranks.gathered(rows, counts) for name, rows in mine.items()} if sum(counts) else {}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.states.load(tensors)
        self.join(self.ranks)

    def _replies(self, ask: Ask, part: Tensor, way: Way, chunk: Chunk) -> tuple[Any, Any, Size]:
        """Reduced replies and new states of a chunk of clients, and the size of one reply."""
        states = () if self.states.stateless else self.states.read(chunk.ids)
        shape, message = self._shape(ask, part, way), self._message(ask, part)
        task = Task(ask.work, ask.personal, shape, part.shape[0])
        if self.device.type == "cuda" and way.kind != EAGER and not task.long:
            return self._replayed(ask, way, task, chunk, message, states)
        chunk, message = map_leaves(lambda leaf: sent(leaf, self.device), (chunk, message))
        return self._step(ask, way, task, chunk, message, states)

    def _step(self, ask: Ask, way: Way, task: Task, chunk: Chunk, message: Any, states: Any) -> tuple[Any, Any, Size]:
        """Draw the batches, do the work, reduce the replies; everything on the device."""
        drawn = self.bodies.batches(way.kind, self.clients, task.shape, chunk.ids, chunk.keys)
        reply, state = self.bodies.body(way.kind, task, message, states, drawn)(message, states, drawn)
        weights = chunk.mean_weight.to(self.dtype), chunk.sum_weight.to(self.dtype)
        return reduced(ask, reply, *weights), state, reply_size(reply, task.clients)

    def _replayed(
        self, ask: Ask, way: Way, task: Task, chunk: Chunk, message: Any, states: Any,
    ) -> tuple[Any, Any, Size]:
        """The same as a CUDA graph."""
        given = (chunk, message, states)
        name = (self.bodies.key(way.kind, task, message, states), ask.collect, ask.summed)
        if name not in self.captured:
            form: list[Any] = []

            def flat(*values: Tensor) -> Sequence[Tensor]:
                kept, state, size = self._step(ask, way, task, *with_leaves(given, values))
                form[:] = [(kept, state), size]
                return leaves((kept, state))

            graph = Captured(flat, leaves(given))
            self.captured[name] = graph, map_leaves(lambda _: 0, form[0]), form[1]
        graph, tree, size = self.captured[name]
        kept, state = with_leaves(tree, graph(*leaves(given)))
        return kept, state, size

    def _message(self, ask: Ask, part: Tensor) -> Any:
        own = {name: map_leaves(lambda leaf: leaf[part.to(leaf.device)], getattr(ask.message, name))
               for name in ask.personal}
        return ask.message._replace(**own) if own else ask.message

    def _shape(self, ask: Ask, part: Tensor, way: Way) -> Shape:
        """Shapes of the chunk's batches; a full batch is padded a little more where a program can then be reused."""
        widths = [max(1, int(size[ask.ids[part]].max())) for size in self.sizes] if ask.draw.full else []
        if way.kind != EAGER and not self.unpadded:
            widths = [min(power_of_two(width), most) for width, most in zip(widths, self.most, strict=False)]
        settled = self._reaches(ask.draw.minibatches * self.batch_size) if self.device.type == "cuda" else ()
        return Shape(self.form, ask.draw.minibatches, ask.draw.inputs, tuple(widths), settled)

    def _reaches(self, count: int) -> tuple[Reach, ...]:
        if count not in self.reaches:
            self.reaches[count] = tuple(reach(size, count) for size in self.sizes)
        return self.reaches[count]

    def _chunks(self, ask: Ask, share: Tensor, way: Way) -> Iterator[Tensor]:
        """Positions in the ask, chunk by chunk."""
        if not ask.draw.full:
            yield from share.split(way.chunk) if share.shape[0] > way.chunk else (share,)
            return
        order = share[torch.argsort(self.rows[ask.ids[share]], stable=True)]
        for alike in self._alike(ask, order) if self.unpadded else [order]:
            yield from alike.split(way.chunk)

    def _alike(self, ask: Ask, order: Tensor) -> Iterator[Tensor]:
        """Positions of clients with equally many rows, in every stratum."""
        sizes = torch.stack([size[ask.ids[order]] for size in self.sizes], 1)
        for size in torch.unique(sizes, dim=0):
            yield order[(sizes == size).all(1)]

    def automatic(self, ask: Ask) -> int:
        """As many clients at once as memory allows; where that is not all of them, in chunks of equal size."""
        largest = int(self.rows[ask.ids].max()) if ask.draw.full else 0
        rows = ask.draw.minibatches * self.batch_size + largest
        row = self.clients.inputs[0].numel() * self.clients.inputs.element_size()
        # A row's activations are taken to need as much as the row again; a work to hold eight copies of its message.
        per_client = 2 * rows * row + 8 * size_of(ask.message).bytes if ask.draw.inputs else 64 * rows
        most = CHUNK_CLIENTS if ask.draw.inputs else 1 << 16
        chunk = max(1, min(_chunk_bytes(self.device) // max(1, per_client), most))
        share = -(-len(ask.ids) // self.ranks.size)
        return -(-share // -(-share // chunk)) if share > chunk else chunk


def _chunk_bytes(device: torch.device) -> int:
    part = torch.cuda.get_device_properties(device).total_memory // SHARE_OF_A_GPU if device.type == "cuda" else 0
    return max(CHUNK_BYTES[device.type], part)


def _padded(part: Tensor, way: Way, clients: int, device: str) -> Tensor:
    """A short chunk filled up with one of its own clients, whose further replies nobody uses.

    So that not every number of clients needs a program of its own: of those between 8 and 16, say, every second has
    one, or every fourth where it has to be compiled or captured.
    """
    step = max(1, power_of_two(clients) // WIDTHS[COMPILED if device == "cuda" else way.kind])
    full, count = min(way.chunk, -(-clients // step) * step), part.shape[0]
    return torch.cat([part, part[:1].expand(full - count)]) if count < full else part


def _for_the_first(count: int, weight: Tensor) -> Tensor:
    """The weights with those after the first so many set to zero."""
    return weight if count == weight.shape[0] else torch.where(torch.arange(len(weight)) < count, weight, 0.0)


def _first_of_each(ask: Ask, kept: Any, count: int) -> Any:
    """Collected fields cut to so many clients."""
    where = sort_fields(kept._fields, ask.collect, ask.summed)
    return type(kept)(*(_cut(value, count) if where[name] == EACH else value
                        for name, value in zip(kept._fields, kept, strict=True)))


def _cut(tree: Any, count: int) -> Any:
    return map_leaves(lambda leaf: leaf[:count], tree)

