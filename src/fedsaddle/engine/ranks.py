"""Several processes that carry out one simulation: each runs the same loop and computes its share of every cohort.

Nothing but the sums over clients, and the fields that are collected one by one, is exchanged; the server's state is
computed by every process alike. The processes are local workers (see `crew`) or ranks started by `torchrun`.
"""

from __future__ import annotations

import atexit
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fedsaddle.maths.trees import leaves, with_leaves

if dist.is_available():
    # Its functions have the group that there is when they are defined as a default. Tracing imports it: after a group
    # was made that would hold the group, and its threads, until the interpreter is gone, and may abort the process.
    import torch.distributed.nn.functional


class PartnerLost(RuntimeError):
    """Another process of the run is gone."""


class Ranks:
    """A group of processes; alone, every exchange is nothing."""

    def __init__(self, rank: int = 0, size: int = 1, device: torch.device | None = None) -> None:
        self.rank, self.size, self.device = rank, size, device or torch.device("cpu")

    def shares(self, ids: Tensor, sizes: Tensor | None, owned: bool) -> list[Tensor]:
        """Positions of the clients that each process computes, the same list in every process.

        owned: a client always goes to the same process, which keeps its state. sizes: rows, where they matter: then
        large and small clients are dealt out evenly.
        """
        positions = torch.arange(len(ids))
        if self.size == 1:
            return [positions]
        if owned:
            return [positions[ids % self.size == rank] for rank in range(self.size)]
        if sizes is not None:
            positions = torch.argsort(sizes, stable=True)
        return [positions[rank :: self.size] for rank in range(self.size)]

    def total(self, tree: Any) -> Any:
        """The sum of the trees of all processes, the same bits in each of them."""
        values = leaves(tree)
        if self.size == 1 or not values:
            return tree
        flat = torch.cat([value.reshape(-1) for value in values]).to(self.device)
        self._exchange(lambda: dist.all_reduce(flat))
        parts = flat.split([value.numel() for value in values])
        return with_leaves(tree, [part.reshape(value.shape).to(value.device)
                                  for part, value in zip(parts, values, strict=True)])

    def gathered(self, rows: Tensor, counts: list[int]) -> Tensor:
        """The rows of all processes, one after the other; counts: how many each of them has."""
        if self.size == 1:
            return rows
        longest = max(counts)
        mine = torch.zeros((longest, *rows.shape[1:]), dtype=rows.dtype, device=self.device)
        mine[: len(rows)] = rows
        whole = [torch.empty_like(mine) for _ in counts]
        self._exchange(lambda: dist.all_gather(whole, mine))
        return torch.cat([part[:count] for part, count in zip(whole, counts, strict=True)]).to(rows.device)

    def largest(self, number: float) -> float:
        """Of the numbers of all processes: so that all of them decide alike."""
        if self.size == 1:
            return number
        value = torch.tensor([number], dtype=torch.float64, device=self.device)
        self._exchange(lambda: dist.all_reduce(value, dist.ReduceOp.MAX))
        return float(value)

    def of_the_first(self, text: str) -> str:
        """What the first process says; the others' own text is not looked at."""
        if self.size == 1:
            return text
        letters = text.encode() if self.rank == 0 else b""
        sent = torch.zeros(int(self.largest(len(letters))), dtype=torch.int32)
        sent[: len(letters)] = torch.tensor(list(letters), dtype=torch.int32)
        return bytes(self.total((sent,))[0].tolist()).decode()

    def _exchange(self, call: Any) -> None:
        try:
            call()
        except RuntimeError as error:
            raise PartnerLost("another process of this run is gone (it may have been killed for its memory); go on "
                              "with `fedsaddle resume`, or set run.workers = 1") from error


def _leave() -> None:
    """End the group's threads while there still is an interpreter: else ending the process may abort it."""
    if dist.is_initialized():
        dist.destroy_process_group()


def from_environment(device: torch.device) -> Ranks:
    """The group that `torchrun` has started, if it has."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or "RANK" not in os.environ:
        return Ranks()
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(_leave)
    return Ranks(dist.get_rank(), size, device)
