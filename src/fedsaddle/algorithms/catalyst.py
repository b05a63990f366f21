"""Catalyst-Scaffold-S: stages of a proximal problem, rounds of random length (Hou et al. 2021; papers: cdma, cd-mage).

A stage adds theta/2 |x - xbar|^2 - theta/2 |y - ybar|^2 to every f_i, zbar being z at the start of the stage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from fedsaddle.contracts import ALL, Data, Feasible, Federation, Oracle, Point, setting


class Server(NamedTuple):
    z: Point
    centre: Point  # zbar
    stage_steps: int  # local steps done in this stage
    round: int


class Go(NamedTuple):
    z: Point
    c: Point  # the mean of the full gradients at z
    centre: Point


@dataclass(frozen=True)
class CatalystScaffoldS:
    """Local steps along grad F_i(z) - grad F_i(z_t) + c and the pull of the stage's proximal term."""

    eta: float = setting(0.1, "eta_l: local step of x and of y", above=0)
    eta_global: float = setting(1.0, "eta_g / eta_l: how far to go along a client's change", above=0)
    steps: int = setting(12, "K: mean number of local steps in a round", at_least=1)
    asked: int | None = setting(None, "clients asked in each phase; none: everyone", at_least=1)
    resample: bool = setting(True, "the steps are other clients'; false: of those asked first, as in the code of cdma")
    theta: float = setting(0.0, "weight of the proximal term", at_least=0)
    stage_steps: int = setting(2000, "K_0: local steps after which the proximal centre moves", at_least=1)
    random_steps: bool = setting(True, "a local step ends the round with probability 1/K; otherwise always the K-th")

    def first(self, z: Point, federation: Federation) -> Server:
        return Server(z=z, centre=z, stage_steps=0, round=0)

    def round(self, server: Server, federation: Federation) -> Server:
        asked = federation.cohort(self.asked)
        c = federation.average(self.gradient, server.z, asked, ALL).mean
        steps = self.draw(federation)
        asked = federation.cohort(self.asked) if self.resample else asked
        z = federation.average(self.local_steps, Go(server.z, c, server.centre), asked, batches=steps).mean
        done = server.stage_steps + steps
        if done >= self.stage_steps:  # the next stage
            return Server(z=z, centre=z, stage_steps=0, round=server.round + 1)
        return Server(z=z, centre=server.centre, stage_steps=done, round=server.round + 1)

    def draw(self, federation: Federation) -> int:
        """kappa: geometric with mean K, one for all clients of the round."""
        if not self.random_steps or self.steps == 1:
            return self.steps
        return 1 + math.floor(math.log1p(-federation.uniform()) / math.log1p(-1 / self.steps))

    def gradient(self, oracle: Oracle, z: Point, client: tuple[()], data: Data) -> tuple[Point, tuple[()]]:
        return oracle.gradient(z, data.full), client

    def local_steps(self, oracle: Oracle, go: Go, client: tuple[()], data: Data) -> tuple[Feasible, tuple[()]]:
        z = go.z
        for batch in data.minibatches:
            d = oracle.gradient(z, batch) - oracle.gradient(go.z, batch) + go.c
            pull = self.theta * (z - go.centre)
            z = oracle.project(z.step(Point(d.x + pull.x, d.y - pull.y), self.eta, self.eta))
        return oracle.project(go.z + self.eta_global * (z - go.z)), client

    def solution(self, server: Server) -> Point:
        return server.z
