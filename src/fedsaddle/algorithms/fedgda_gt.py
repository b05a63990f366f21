"""FedGDA-GT: local descent-ascent with gradient tracking and full gradients (Sun and Wei 2022; paper: cdma).

The same correction as CDMA-ONE, but of every client, with full local gradients and one step size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedsaddle.contracts import ALL, Data, Feasible, Federation, Oracle, Point, setting


class Server(NamedTuple):
    z: Point
    round: int


class Go(NamedTuple):
    z: Point
    gradient: Point  # grad f(z_t)


@dataclass(frozen=True)
class FedGDAGT:
    """K local steps along grad f_i(z) - grad f_i(z_t) + grad f(z_t)."""

    eta: float = setting(0.1, "step of x and of y", above=0)
    steps: int = setting(10, "K: local steps in a round", at_least=1)

    def first(self, z: Point, federation: Federation) -> Server:
        return Server(z=z, round=0)

    def round(self, server: Server, federation: Federation) -> Server:
        gradient = federation.average(self.gradient, server.z, federation.everyone(), ALL).mean
        z = federation.average(self.local_steps, Go(server.z, gradient), federation.everyone(), ALL).mean
        return Server(z=z, round=server.round + 1)

    def gradient(self, oracle: Oracle, z: Point, client: tuple[()], data: Data) -> tuple[Point, tuple[()]]:
        return oracle.gradient(z, data.full), client

    def local_steps(self, oracle: Oracle, go: Go, client: tuple[()], data: Data) -> tuple[Feasible, tuple[()]]:
        z, correction = go.z, go.gradient - oracle.gradient(go.z, data.full)
        for _ in range(self.steps):
            z = oracle.project(z.step(oracle.gradient(z, data.full) + correction, self.eta, self.eta))
        return z, client

    def solution(self, server: Server) -> Point:
        return server.z
