"""Local SGDA+: the ascent direction is taken at a frozen copy of x (Deng and Mahdavi 2021; papers: cdma, cd-mage)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedsaddle.contracts import Data, Feasible, Federation, Oracle, Point, setting


class Server(NamedTuple):
    z: Point
    snapshot: Tensor  # the frozen x
    round: int


class Go(NamedTuple):
    z: Point
    snapshot: Tensor


@dataclass(frozen=True)
class LocalSGDAPlus:
    """K local steps: x <- x - eta grad_x F(x, y), y <- y + gamma grad_y F(snapshot, y)."""

    eta: float = setting(0.1, "step of x", above=0)
    gamma: float = setting(0.1, "step of y", above=0)
    steps: int = setting(12, "K: local steps in a round", at_least=1)
    asked: int | None = setting(None, "clients asked in a round; none: everyone", at_least=1)
    refresh: int = setting(1, "R: the frozen x is renewed at the start of every R-th round", at_least=1)

    def first(self, z: Point, federation: Federation) -> Server:
        return Server(z=z, snapshot=z.x, round=0)

    def round(self, server: Server, federation: Federation) -> Server:
        snapshot = server.z.x if server.round % self.refresh == 0 else server.snapshot
        asked = federation.cohort(self.asked)
        z = federation.average(self.local_steps, Go(server.z, snapshot), asked, batches=self.steps).mean
        return Server(z=z, snapshot=snapshot, round=server.round + 1)

    def local_steps(self, oracle: Oracle, go: Go, client: tuple[()], data: Data) -> tuple[Feasible, tuple[()]]:
        z = go.z
        for batch in data.minibatches:
            d = Point(oracle.gradient(z, batch).x, oracle.gradient(Point(go.snapshot, z.y), batch).y)
            z = oracle.project(z.step(d, self.eta, self.gamma))
        return z, client

    def solution(self, server: Server) -> Point:
        return server.z
