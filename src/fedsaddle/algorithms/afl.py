"""AFL: agnostic federated learning, one step of the model and of lambda a round (the baseline of paper drfa)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedsaddle.algorithms import mixture
from fedsaddle.algorithms.mixture import Loss, Server
from fedsaddle.contracts import Average, Data, Feasible, Federation, LossValue, Oracle, Point, setting
from fedsaddle.maths import projections


class StepAndLoss(NamedTuple):
    z: Feasible
    value: LossValue


@dataclass(frozen=True)
class AFL:
    """w <- w - eta sum_i lambda_i grad F_i(w), lambda <- P(lambda + gamma (F_1(w), ..., F_N(w)))."""

    eta: float = setting(0.1, "step of the model", above=0)
    gamma: float = setting(0.008, "step of lambda", above=0)
    decay: float = mixture.decay()
    asked: int | None = setting(None, "none: everyone, weighed by lambda; m: that many drawn by lambda, then m for "
                                "their loss at the new model, as paper drfa reads it (DRFA with one step)", at_least=1)
    output: str = setting("last", "what is returned: the last model, or the average of all models",
                          choices=("last", "average"))

    def first(self, z: Point, federation: Federation) -> Server:
        return mixture.first(z, federation, (), self.output)

    def round(self, server: Server, federation: Federation) -> Server:
        z, losses = self.drawn(server, federation, self.asked) if self.asked else self.everyone(server, federation)
        v = mixture.slope(losses, federation, server.mixture)
        weights = projections.simplex(server.mixture + self.gamma * self.decay**server.round * v)
        return Server(z, weights, mixture.averaged(server, z), round=server.round + 1)

    def everyone(self, server: Server, federation: Federation) -> tuple[Point, Average]:
        asked = mixture.weighed(federation.everyone(), server.mixture)
        got = federation.average(self.step_and_loss, server.z, asked, batches=1, collect=("value",))
        return got.mean.z, got

    def drawn(self, server: Server, federation: Federation, size: int) -> tuple[Point, Average]:
        drawn = mixture.trained(federation, server.mixture, size, everyone=False)
        z = federation.average(self.one_step, server.z, drawn, batches=1).mean
        return z, federation.collect(self.evaluate, z, mixture.evaluated(federation, size, everyone=False), batches=1)

    def step_and_loss(
        self, oracle: Oracle, z: Point, client: tuple[()], data: Data
    ) -> tuple[StepAndLoss, tuple[()]]:
        return StepAndLoss(self.one_step(oracle, z, client, data)[0], oracle.loss(z, data.minibatches[0])), client

    def one_step(self, oracle: Oracle, z: Point, client: tuple[()], data: Data) -> tuple[Feasible, tuple[()]]:
        return oracle.project(z.step(oracle.gradient(z, data.minibatches[0]), self.eta, self.eta)), client

    def evaluate(self, oracle: Oracle, z: Point, client: tuple[()], data: Data) -> tuple[Loss, tuple[()]]:
        return Loss(oracle.loss(z, data.minibatches[0])), client

    def solution(self, server: Server) -> Point:
        return mixture.solution(server)
