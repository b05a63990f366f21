"""Parallel SGDA: one step along the average of full local gradients (the baseline of papers cdma and cd-mage)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedsaddle.contracts import ALL, Data, Federation, Oracle, Point, setting


class Server(NamedTuple):
    z: Point
    round: int


@dataclass(frozen=True)
class ParallelSGDA:
    """x <- x - eta avg grad_x f_i(z), y <- y + gamma avg grad_y f_i(z)."""

    eta: float = setting(0.1, "step of x", above=0)
    gamma: float = setting(0.1, "step of y", above=0)
    asked: int | None = setting(None, "S_hat: clients asked in a round; none: everyone", at_least=1)

    def first(self, z: Point, federation: Federation) -> Server:
        return Server(z=z, round=0)

    def round(self, server: Server, federation: Federation) -> Server:
        asked = federation.cohort(self.asked)
        g = federation.average(self.full_gradient, server.z, asked, ALL).mean
        z = federation.project(server.z.step(g, self.eta, self.gamma))
        return Server(z=z, round=server.round + 1)

    def full_gradient(self, oracle: Oracle, z: Point, client: tuple[()], data: Data) -> tuple[Point, tuple[()]]:
        return oracle.gradient(z, data.full), client

    def solution(self, server: Server) -> Point:
        return server.z
