"""vmap(grad) written by hand: all clients of the cohort take a step at once, eagerly. All four methods."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import nets
import torch
import work as shared
from plain import simplex
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

Weights = dict[str, Tensor]


class Vectorised:
    """The server's model and the rounds of every method; a leading axis counts the clients of a chunk."""

    def __init__(self, work: SimpleNamespace) -> None:
        self.work, self.device = work, torch.device(work.device)
        self.inputs, self.targets, self.starts = nets.data(work)
        self.laps = shared.Laps(work)
        self.net = nets.started(nets.build(work), work)
        self.server: Weights = {name: p.detach().clone() for name, p in self.net.named_parameters()}
        self.before = self.server
        self.dice = torch.Generator(self.device).manual_seed(work.seed)
        self.control = {name: torch.zeros_like(p) for name, p in self.server.items()}
        kept = work.clients if work.method == "codasca" else 0
        self.controls = {name: p.new_zeros((kept, *p.shape)) for name, p in self.server.items()}
        self.mixture = torch.full((work.clients,), 1 / work.clients, device=self.device)
        self.chunk = shared.chunk(work)
        self.gradients = vmap(grad(self.loss))
        self.gradients_at = vmap(grad(self.loss), in_dims=(None, 0, 0))

    def loss(self, weights: Weights, inputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(self.net, weights, (inputs,)), targets)

    def cohort(self) -> tuple[Tensor, ...]:
        size, clients = self.work.cohort, self.work.clients
        if size * 20 > clients:
            ids = torch.randperm(clients, generator=self.dice, device=self.device)[:size]
        else:  # more draws than needed, then the distinct ones among them
            drawn = torch.randint(clients, (2 * size,), generator=self.dice, device=self.device)
            distinct = torch.unique(drawn)
            ids = distinct[torch.randperm(len(distinct), generator=self.dice, device=self.device)[:size]]
        return ids.split(self.chunk)

    def batches(self, ids: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Minibatches: [client, step, row, ...]."""
        need, rows = count * self.work.batch, self.work.rows
        epochs = -(-need // rows)
        keys = torch.rand(len(ids), epochs, rows, generator=self.dice, device=self.device)
        order = keys.argsort(-1).reshape(len(ids), -1)[:, :need] + self.starts[ids, None]
        order = order.reshape(len(ids), count, self.work.batch)
        return self.inputs[order], self.targets[order]

    def spread(self, ids: Tensor) -> Weights:
        return {name: p.expand(len(ids), *p.shape) for name, p in self.server.items()}

    def zeros(self) -> Weights:
        return {name: torch.zeros_like(p) for name, p in self.server.items()}

    def step(self, z: Weights, direction: Weights) -> Weights:
        return {name: p - self.work.lr * direction[name] for name, p in z.items()}

    def fedavg(self) -> None:
        total = self.zeros()
        for ids in self.cohort():
            x, y = self.batches(ids, self.work.steps)
            z = self.spread(ids)
            for k in range(self.work.steps):
                z = self.step(z, self.gradients(z, x[:, k], y[:, k]))
            total = added(total, z)
        self.server = {name: p / self.work.cohort for name, p in total.items()}

    def cdma_one(self) -> None:
        w = self.zeros()
        for ids in self.cohort():
            rows = self.starts[ids, None] + torch.arange(self.work.rows, device=self.device)
            x, y = self.inputs[rows], self.targets[rows]
            now = self.gradients_at(self.server, x, y)
            if self.work.previous:  # alpha = 1: its weight 1 - alpha is 0
                old = self.gradients_at(self.before, x, y)
                now = {name: g - 0.0 * old[name] for name, g in now.items()}
            w = added(w, now)
        w = {name: p / self.work.cohort for name, p in w.items()}
        total = self.zeros()
        for ids in self.cohort():
            x, y = self.batches(ids, self.work.steps)
            z = self.spread(ids)
            for k in range(self.work.steps):
                g, g0 = self.gradients(z, x[:, k], y[:, k]), self.gradients_at(self.server, x[:, k], y[:, k])
                z = self.step(z, {name: g[name] - g0[name] + w[name] for name in z})
            total = added(total, z)
        self.before, self.server = self.server, {name: p / self.work.cohort for name, p in total.items()}

    def codasca(self) -> None:
        total, change = self.zeros(), self.zeros()
        for ids in self.cohort():
            x, y = self.batches(ids, self.work.steps)
            own = {name: c[ids] for name, c in self.controls.items()}
            z, mean = self.spread(ids), {name: torch.zeros_like(c) for name, c in own.items()}
            for k in range(self.work.steps):
                g = self.gradients(z, x[:, k], y[:, k])
                z = self.step(z, {name: g[name] - own[name] + self.control[name] for name in z})
                mean = {name: m + g[name] / self.work.steps for name, m in mean.items()}
            total, change = added(total, z), added(change, {name: m - own[name] for name, m in mean.items()})
            for name, m in mean.items():
                self.controls[name][ids] = m
        self.server = {name: p / self.work.cohort for name, p in total.items()}
        self.control = {name: c + change[name] / self.work.clients for name, c in self.control.items()}

    def drfa(self) -> None:
        drawn = torch.multinomial(self.mixture, self.work.cohort, replacement=True, generator=self.dice)
        clients, times = torch.unique(drawn, return_counts=True)
        share = times.to(self.mixture.dtype) / self.work.cohort
        moment = int(torch.randint(self.work.steps, (), generator=self.dice, device=self.device))
        total, snapshot = self.zeros(), self.zeros()
        for ids, weight in zip(clients.split(self.chunk), share.split(self.chunk), strict=True):
            x, y = self.batches(ids, self.work.steps)
            z = self.spread(ids)
            for k in range(self.work.steps):
                z = self.step(z, self.gradients(z, x[:, k], y[:, k]))
                if k == moment:
                    snapshot = added(snapshot, z, weight)
            total = added(total, z, weight)
        self.server = total
        slope = torch.zeros_like(self.mixture)
        for ids in self.cohort():
            x, y = self.batches(ids, 1)
            losses = vmap(self.loss, in_dims=(None, 0, 0))(snapshot, x[:, 0], y[:, 0])
            slope[ids] = losses * self.work.clients / self.work.cohort
        self.mixture = simplex(self.mixture + self.work.steps * shared.GAMMA * slope)


def added(total: Weights, parts: Weights, weight: Tensor | None = None) -> Weights:
    """The total and the sum over clients of the parts."""
    return {name: t + (parts[name].sum(0) if weight is None else torch.tensordot(weight, parts[name], 1))
            for name, t in total.items()}


@torch.no_grad()
def main() -> None:
    work = shared.spec()
    torch.set_num_threads(1)
    run = Vectorised(work)
    method: Any = getattr(run, work.method.replace("-", "_"))
    run.laps.run(method, lambda: nets.wait(work))
    run.net.load_state_dict(run.server)
    run.laps.report({"torch": torch.__version__}, nets.loss_of(run.net, run.inputs, run.targets), chunk=run.chunk,
                    **nets.device_memory(work))


if __name__ == "__main__":
    main()
