"""DRFA and DRFA-Prox: distributionally robust federated averaging (papers: drfa, Algorithms 1 and 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from fedsaddle.algorithms import mixture, regularisers
from fedsaddle.algorithms.mixture import Loss, Server
from fedsaddle.algorithms.regularisers import Pull
from fedsaddle.contracts import Data, Feasible, Federation, Number, Oracle, Point, setting


class Go(NamedTuple):
    z: Point
    snapshot: Number  # t', the step whose iterate is sent back too


class Local(NamedTuple):
    z: Feasible  # w_i^tau
    snapshot: Feasible  # w_i^t'
    iterates: Any  # mean of w_i^1, ..., w_i^tau, or ()


@dataclass(frozen=True)
class DRFA:
    """Clients are drawn by lambda, which rises where the loss of a random snapshot is high.

    In DRFA-Prox a regulariser pulls lambda back to a prior.
    """

    eta: float = setting(0.1, "step of the model", above=0)
    gamma: float = setting(0.008, "step of lambda, per local step", above=0)
    decay: float = mixture.decay()
    steps: int = setting(10, "tau: local steps in a round", at_least=1)
    asked: int = setting(10, "m: draws by lambda, and clients asked for their loss", at_least=1)
    everyone: bool = setting(False, "all clients train and lambda weighs their models: the limit of many draws")
    output: str = mixture.output()
    regulariser: str = setting("none", "D: half the squared distance to the prior, the KL divergence from it, the "
                               "p-norm distance, optimal transport", choices=("none", *regularisers.PROXIMAL))
    strength: float = regularisers.strength()
    prior: tuple[float, ...] = regularisers.prior()
    norm: float = setting(2.0, "p of the p-norm distance", at_least=1, at_most=100)
    metric: str = setting("discrete", "distances between clients for transport: discrete (all 1), line (|i - j| / N) "
                          "or the path of a CSV file with a row of distances per client")

    def first(self, z: Point, federation: Federation) -> Server:
        if self.regulariser == "transport" and self.metric != "discrete":
            regularisers.cost(self.metric, federation.num_clients)  # a wrong file is found here
        return mixture.first(z, federation, self.prior, self.output)

    def round(self, server: Server, federation: Federation) -> Server:
        drawn = mixture.trained(federation, server.mixture, self.asked, self.everyone)
        snapshot = federation.randint(1, self.steps + 1)
        model = federation.average(self.local_steps, Go(server.z, snapshot), drawn, batches=self.steps).mean
        uniform = mixture.evaluated(federation, self.asked, self.everyone)
        losses = federation.collect(self.evaluate, model.snapshot, uniform, batches=1)
        v = mixture.slope(losses, federation, server.mixture)
        step = self.steps * self.gamma * self.decay**server.round
        weights = regularisers.ascend(server.mixture + step * v, step, self.pull(server, federation))
        return Server(model.z, weights, mixture.averaged(server, model.iterates), round=server.round + 1)

    def pull(self, server: Server, federation: Federation) -> Pull:
        prior = regularisers.distribution(self.prior, federation.num_clients, server.z.x)
        return Pull(self.regulariser, self.strength, prior, self.norm, self.metric)

    def local_steps(self, oracle: Oracle, go: Go, client: tuple[()], data: Data) -> tuple[Local, tuple[()]]:
        z = snapshot = go.z
        total = 0 * z
        for t, batch in enumerate(data.minibatches, start=1):
            z = oracle.project(z.step(oracle.gradient(z, batch), self.eta, self.eta))
            snapshot = Point(*(torch.where(go.snapshot == t, new, old) for new, old in zip(z, snapshot, strict=True)))
            total = total + z
        return Local(z, snapshot, total / len(data.minibatches) if self.output == "average" else ()), client

    def evaluate(self, oracle: Oracle, z: Point, client: tuple[()], data: Data) -> tuple[Loss, tuple[()]]:
        return Loss(oracle.loss(z, data.minibatches[0])), client

    def solution(self, server: Server) -> Point:
        return mixture.solution(server)
