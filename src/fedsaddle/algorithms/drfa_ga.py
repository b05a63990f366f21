"""DRFA-GA: local steps by clients drawn by lambda, a full gradient step of lambda (papers: drfa, Algorithm 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from fedsaddle.algorithms import mixture, regularisers
from fedsaddle.algorithms.mixture import Loss, Server
from fedsaddle.algorithms.regularisers import Pull
from fedsaddle.contracts import ALL, Data, Feasible, Federation, Oracle, Point, setting
from fedsaddle.maths import projections


class Local(NamedTuple):
    z: Feasible  # w_i^tau
    iterates: Any  # mean of w_i^1, ..., w_i^tau, or ()


@dataclass(frozen=True)
class DRFAGA:
    """Every client evaluates the model that the round starts from, on all its data."""

    eta: float = setting(0.1, "step of the model", above=0)
    gamma: float = setting(0.08, "step of lambda, per round", above=0)
    steps: int = setting(10, "tau: local steps in a round", at_least=1)
    asked: int = setting(10, "m: draws by lambda", at_least=1)
    everyone: bool = setting(False, "all clients train and lambda weighs their models: the limit of many draws")
    output: str = mixture.output()
    average_from: int = setting(0, "rounds before the average begins; in Theorem 5 half of them", at_least=0)
    regulariser: str = setting("squared", "D: half the squared distance to the prior, or the KL divergence from it",
                               choices=("none", "squared", "kl"))
    strength: float = regularisers.strength()
    prior: tuple[float, ...] = regularisers.prior()

    def first(self, z: Point, federation: Federation) -> Server:
        return mixture.first(z, federation, self.prior, self.output)

    def round(self, server: Server, federation: Federation) -> Server:
        drawn = mixture.trained(federation, server.mixture, self.asked, self.everyone)
        model = federation.average(self.local_steps, server.z, drawn, batches=self.steps).mean
        losses = federation.collect(self.evaluate, server.z, federation.everyone(), ALL)
        f = mixture.slope(losses, federation, server.mixture)
        prior = regularisers.distribution(self.prior, federation.num_clients, server.z.x)
        g = regularisers.gradient(server.mixture, Pull(self.regulariser, self.strength, prior))
        weights = projections.simplex(server.mixture + self.gamma * (f + g))
        average = mixture.averaged(server, model.iterates, self.average_from)
        return Server(model.z, weights, average, round=server.round + 1)

    def local_steps(self, oracle: Oracle, z: Point, client: tuple[()], data: Data) -> tuple[Local, tuple[()]]:
        total = 0 * z
        for batch in data.minibatches:
            z = oracle.project(z.step(oracle.gradient(z, batch), self.eta, self.eta))
            total = total + z
        return Local(z, total / len(data.minibatches) if self.output == "average" else ()), client

    def evaluate(self, oracle: Oracle, z: Point, client: tuple[()], data: Data) -> tuple[Loss, tuple[()]]:
        return Loss(oracle.loss(z, data.full)), client

    def solution(self, server: Server) -> Point:
        return mixture.solution(server)
