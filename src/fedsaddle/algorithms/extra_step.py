"""Extra Step Local SGD: local extragradient steps (Beznosikov, Samokhin and Gasnikov 2020; papers: cdma, cd-mage)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedsaddle.contracts import Data, Feasible, Federation, Oracle, Point, setting


class Server(NamedTuple):
    z: Point
    round: int


@dataclass(frozen=True)
class ExtraStepLocalSGD:
    """A local step looks ahead along one minibatch and moves, from where it stood, along another one taken there."""

    eta: float = setting(0.1, "eta_l: step of x and of y", above=0)
    steps: int = setting(12, "K: local steps in a round, each with two minibatches", at_least=1)
    asked: int | None = setting(None, "clients asked in a round; none: everyone", at_least=1)

    def first(self, z: Point, federation: Federation) -> Server:
        return Server(z=z, round=0)

    def round(self, server: Server, federation: Federation) -> Server:
        asked = federation.cohort(self.asked)
        z = federation.average(self.local_steps, server.z, asked, batches=2 * self.steps).mean
        return Server(z=z, round=server.round + 1)

    def local_steps(self, oracle: Oracle, z: Point, client: tuple[()], data: Data) -> tuple[Feasible, tuple[()]]:
        for batch, other in zip(data.minibatches[::2], data.minibatches[1::2], strict=True):
            ahead = oracle.project(z.step(oracle.gradient(z, batch), self.eta, self.eta))
            z = oracle.project(z.step(oracle.gradient(ahead, other), self.eta, self.eta))
        return z, client

    def solution(self, server: Server) -> Point:
        return server.z
