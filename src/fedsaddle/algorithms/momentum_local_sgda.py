"""Momentum Local SGDA: local steps along moving averages of the gradients (Sharma et al. 2022; paper: cdma)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedsaddle.contracts import Data, Feasible, Federation, Oracle, Point, setting


class Local(NamedTuple):
    """What travels both ways: the variables and the directions, averaged together."""

    z: Feasible
    d: Point  # (d_x, d_y)


class Server(NamedTuple):
    z: Point
    d: Point
    round: int


@dataclass(frozen=True)
class MomentumLocalSGDA:
    """K local steps: z moves along d, then d <- (1 - momentum) d + momentum grad F(z)."""

    eta: float = setting(0.1, "alpha eta_x: step of x along d_x", above=0)
    gamma: float = setting(0.1, "alpha eta_y: step of y along d_y", above=0)
    steps: int = setting(12, "K: local steps in a round", at_least=1)
    asked: int | None = setting(None, "clients asked in a round; none: everyone", at_least=1)
    momentum: float = setting(0.1, "alpha beta: weight of the new gradient in d; 1: no memory", above=0, at_most=1)

    def first(self, z: Point, federation: Federation) -> Server:
        """Everyone is asked once for a minibatch gradient: d_0."""
        d = federation.average(self.gradient, z, federation.everyone(), batches=1).mean
        return Server(z=z, d=d, round=0)

    def round(self, server: Server, federation: Federation) -> Server:
        asked = federation.cohort(self.asked)
        got = federation.average(self.local_steps, Local(server.z, server.d), asked, batches=self.steps).mean
        return Server(z=got.z, d=got.d, round=server.round + 1)

    def gradient(self, oracle: Oracle, z: Point, client: tuple[()], data: Data) -> tuple[Point, tuple[()]]:
        return oracle.gradient(z, data.minibatches[0]), client

    def local_steps(self, oracle: Oracle, start: Local, client: tuple[()], data: Data) -> tuple[Local, tuple[()]]:
        z, d = start
        for batch in data.minibatches:
            z = oracle.project(z.step(d, self.eta, self.gamma))
            d = (1 - self.momentum) * d + self.momentum * oracle.gradient(z, batch)
        return Local(z, d), client

    def solution(self, server: Server) -> Point:
        return server.z
