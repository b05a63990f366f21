"""DRFA: distributionally robust federated averaging (papers: drfa, Algorithm 1).

min_w max_lambda sum_i lambda_i f_i(w), lambda on the simplex. On a problem with a maximising variable y
the clients take descent-ascent steps, which solves min_x max_{y, lambda} sum_i lambda_i f_i(x, y).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedsaddle.contracts import Cohort, Data, Federation, Number, Oracle, Point, setting
from fedsaddle.maths import projections


class Server(NamedTuple):
    z: Point  # w
    mixture: Tensor  # lambda
    round: int


class Go(NamedTuple):
    z: Point
    snapshot: Number  # t', the step whose iterate is sent back too


class Local(NamedTuple):
    z: Point  # w_i^tau
    snapshot: Point  # w_i^t'


class Loss(NamedTuple):
    value: Tensor


@dataclass(frozen=True)
class DRFA:
    """Clients are drawn by lambda, which rises where the loss of a random snapshot is high."""

    eta: float = setting(0.1, "step of the model", above=0)
    gamma: float = setting(0.008, "step of lambda, per local step", above=0)
    steps: int = setting(10, "tau: local steps in a round", at_least=1)
    asked: int = setting(10, "m: draws by lambda, and clients asked for their loss", at_least=1)
    everyone: bool = setting(False, "all clients train and lambda weighs their models: the limit of many draws")

    def first(self, z: Point, federation: Federation) -> Server:
        n = federation.num_clients
        return Server(z=z, mixture=torch.full((n,), 1 / n, dtype=z.x.dtype, device=z.x.device), round=0)

    def round(self, server: Server, federation: Federation) -> Server:
        drawn, uniform = self.cohorts(server, federation)
        snapshot = federation.randint(1, self.steps + 1)
        model = federation.average(self.local_steps, Go(server.z, snapshot), drawn, batches=self.steps).mean
        losses = federation.collect(self.evaluate, model.snapshot, uniform, batches=1)
        v = torch.zeros_like(server.mixture)
        v[losses.ids] = losses.each.value * federation.num_clients / losses.answered
        mixture = projections.simplex(server.mixture + self.steps * self.gamma * v)
        return Server(z=model.z, mixture=mixture, round=server.round + 1)

    def cohorts(self, server: Server, federation: Federation) -> tuple[Cohort, Cohort]:
        """D, drawn by lambda with replacement, and U, uniform without."""
        if self.everyone:
            asked = federation.everyone()
            return asked._replace(weight=server.mixture.cpu()[asked.ids]), asked
        drawn = federation.cohort(self.asked, weights=server.mixture, replace=True)
        return drawn, federation.cohort(self.asked, weights=torch.ones(federation.num_clients))

    def local_steps(self, oracle: Oracle, go: Go, client: tuple[()], data: Data) -> tuple[Local, tuple[()]]:
        z = snapshot = go.z
        for t, batch in enumerate(data.minibatches, start=1):
            z = oracle.project(z.step(oracle.gradient(z, batch), self.eta, self.eta))
            snapshot = Point(*(torch.where(go.snapshot == t, new, old) for new, old in zip(z, snapshot, strict=True)))
        return Local(z, snapshot), client

    def evaluate(self, oracle: Oracle, z: Point, client: tuple[()], data: Data) -> tuple[Loss, tuple[()]]:
        return Loss(oracle.loss(z, data.minibatches[0])), client

    def solution(self, server: Server) -> Point:
        return server.z
