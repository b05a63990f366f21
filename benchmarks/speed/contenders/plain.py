"""The plain loop: one client after the other, nn.Module, torch.optim.SGD, nothing else. All four methods."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import nets
import torch
import work as shared
from torch import Tensor
from torch.nn import functional

Weights = list[Tensor]


class Loop:
    """The server's model, one working copy of it, and the rounds of every method."""

    def __init__(self, work: SimpleNamespace) -> None:
        self.work = work
        self.inputs, self.targets, starts = nets.data(work)
        self.starts = starts.tolist()
        self.laps = shared.Laps(work)
        self.net, self.anchor = (nets.started(nets.build(work), work) for _ in range(2))
        self.params, self.anchored = list(self.net.parameters()), list(self.anchor.parameters())
        self.server = [p.detach().clone() for p in self.params]
        self.before = self.server
        self.optimiser = torch.optim.SGD(self.params, lr=work.lr, fused=True)
        self.dice = torch.Generator().manual_seed(work.seed)
        self.control = [torch.zeros_like(p) for p in self.server]
        self.controls: dict[int, Weights] = {}
        self.mixture = torch.full((work.clients,), 1 / work.clients, device=work.device)

    def cohort(self) -> list[int]:
        size, clients = self.work.cohort, self.work.clients
        if size * 20 > clients:
            return torch.randperm(clients, generator=self.dice)[:size].tolist()
        drawn: dict[int, None] = {}  # distinct numbers out of very many
        while len(drawn) < size:
            drawn[int(torch.randint(clients, (), generator=self.dice))] = None
        return list(drawn)

    def batches(self, client: int, count: int) -> list[tuple[Tensor, Tensor]]:
        """Minibatches out of the client's rows, shuffled anew whenever all have been used."""
        need = count * self.work.batch
        order = torch.cat([torch.randperm(self.work.rows, generator=self.dice)
                           for _ in range(-(-need // self.work.rows))])[:need]
        rows = (order + self.starts[client]).to(self.work.device)
        parts = self.inputs[rows].split(self.work.batch), self.targets[rows].split(self.work.batch)
        return list(zip(*parts, strict=True))

    def full(self, client: int) -> tuple[Tensor, Tensor]:
        rows = slice(self.starts[client], self.starts[client] + self.work.rows)
        return self.inputs[rows], self.targets[rows]

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        torch._foreach_copy_(self.params, weights)

    def backward(self, inputs: Tensor, targets: Tensor) -> None:
        self.optimiser.zero_grad()
        functional.cross_entropy(self.net(inputs), targets).backward()

    def gradient(self, net: Any, params: Weights, inputs: Tensor, targets: Tensor) -> Weights:
        return list(torch.autograd.grad(functional.cross_entropy(net(inputs), targets), params))

    def zeros(self) -> Weights:
        return [torch.zeros_like(p) for p in self.server]

    def fedavg(self) -> None:
        total = self.zeros()
        for client in self.cohort():
            self.load(self.server)
            for batch in self.batches(client, self.work.steps):
                self.backward(*batch)
                self.optimiser.step()
            torch._foreach_add_(total, [p.detach() for p in self.params])
        self.server = [t / self.work.cohort for t in total]

    def cdma_one(self) -> None:
        """Phase 1: w, the mean gradient on all rows. Phase 2: steps along g(z) - g(z_0) + w."""
        w = self.zeros()
        for client in self.cohort():
            rows = self.full(client)
            self.load(self.server)
            now = self.gradient(self.net, self.params, *rows)
            if self.work.previous:  # alpha = 1: its weight 1 - alpha is 0
                self.load(self.before)
                torch._foreach_add_(now, self.gradient(self.net, self.params, *rows), alpha=0.0)
            torch._foreach_add_(w, now, alpha=1 / self.work.cohort)
        total = self.zeros()
        with torch.no_grad():
            torch._foreach_copy_(self.anchored, self.server)
        for client in self.cohort():
            self.load(self.server)
            for batch in self.batches(client, self.work.steps):
                self.backward(*batch)
                grads = [p.grad for p in self.params]
                torch._foreach_sub_(grads, self.gradient(self.anchor, self.anchored, *batch))
                torch._foreach_add_(grads, w)
                self.optimiser.step()
            torch._foreach_add_(total, [p.detach() for p in self.params])
        self.before, self.server = self.server, [t / self.work.cohort for t in total]

    def codasca(self) -> None:
        """Steps along g - c_i + c; c_i becomes the mean of the client's gradients."""
        total, change = self.zeros(), self.zeros()
        for client in self.cohort():
            own = self.controls.get(client) or self.zeros()
            shift = torch._foreach_sub(self.control, own)
            mean = self.zeros()
            self.load(self.server)
            for batch in self.batches(client, self.work.steps):
                self.backward(*batch)
                grads = [p.grad for p in self.params]
                torch._foreach_add_(mean, grads, alpha=1 / self.work.steps)
                torch._foreach_add_(grads, shift)
                self.optimiser.step()
            torch._foreach_add_(total, [p.detach() for p in self.params])
            torch._foreach_add_(change, torch._foreach_sub(mean, own))
            self.controls[client] = mean
        self.server = [t / self.work.cohort for t in total]
        torch._foreach_add_(self.control, change, alpha=1 / self.work.clients)

    def drfa(self) -> None:
        """Clients drawn by lambda; lambda rises where the loss of a snapshot, taken at a random step, is high."""
        drawn = torch.multinomial(self.mixture.cpu(), self.work.cohort, replacement=True, generator=self.dice)
        clients, times = torch.unique(drawn, return_counts=True)
        moment = int(torch.randint(self.work.steps, (), generator=self.dice))
        total, snapshot = self.zeros(), self.zeros()
        for client, often in zip(clients.tolist(), times.tolist(), strict=True):
            self.load(self.server)
            for step, batch in enumerate(self.batches(client, self.work.steps)):
                self.backward(*batch)
                self.optimiser.step()
                if step == moment:
                    torch._foreach_add_(snapshot, [p.detach() for p in self.params], alpha=often)
            torch._foreach_add_(total, [p.detach() for p in self.params], alpha=often)
        self.server = [t / self.work.cohort for t in total]
        self.load([s / self.work.cohort for s in snapshot])
        asked = self.cohort()
        with torch.no_grad():
            losses = torch.stack([functional.cross_entropy(self.net(x), y)
                                  for client in asked for x, y in self.batches(client, 1)])
        slope = torch.zeros_like(self.mixture)
        slope[asked] = losses * self.work.clients / len(asked)
        self.mixture = simplex(self.mixture + self.work.steps * shared.GAMMA * slope)


def simplex(v: Tensor) -> Tensor:
    """The nearest point with non-negative entries that sum to one."""
    ordered = torch.sort(v, descending=True).values
    excess = ordered.cumsum(0) - 1
    support = int((ordered * torch.arange(1, len(v) + 1, device=v.device) > excess).sum())
    return (v - excess[support - 1] / support).clamp(min=0)


def main() -> None:
    work = shared.spec()
    torch.set_num_threads(1)
    loop = Loop(work)
    loop.laps.run(getattr(loop, work.method.replace("-", "_")), lambda: nets.wait(work))
    loop.load(loop.server)
    loss = nets.loss_of(loop.net, loop.inputs, loop.targets)
    loop.laps.report({"torch": torch.__version__}, loss, **nets.device_memory(work))


if __name__ == "__main__":
    main()
