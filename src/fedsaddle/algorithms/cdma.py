"""CDMA: cross-device minimax averaging (papers: cdma, Algorithms 1 and 2; CDMA-NC, CDMA-ONE, CDMA-ADA).

The paper cd-mage has the same methods under the names CD-MA, CD-MAGE and CD-MAGE+ (its Algorithms 1 to 4).
CDMA-NC with every client is Local SGDA.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from fedsaddle.contracts import ALL, Data, Feasible, Federation, Number, Oracle, Point, setting


class Server(NamedTuple):
    z: Point
    previous: Point  # z_{t-1}
    w: Point  # (u_t, v_t), the global correction
    round: int


class Look(NamedTuple):
    """Phase 1: send the change of your gradient."""

    z: Point
    previous: Point
    alpha: Number


class Go(NamedTuple):
    """Phase 2: take K local steps along the corrected direction."""

    z: Point
    w: Point
    eta: Number
    gamma: Number


@dataclass(frozen=True)
class CDMA:
    """beta = 0 is CDMA-NC; beta = 1 with alpha = 1 is CDMA-ONE; beta = 1 with alpha_t < 1 is CDMA-ADA."""

    eta: float = setting(0.1, "c_eta: step of x, eta_t = min(eta_cap, c_eta gamma_t / c_gamma)", above=0)
    gamma: float = setting(0.1, "c_gamma: step of y, gamma_t = min(gamma_cap, c_gamma / (t+1)^rho)", above=0)
    steps: int = setting(12, "K: local steps in a round", at_least=1)
    asked: int | None = setting(None, "S_hat: clients asked in each phase; none: everyone", at_least=1)
    resample: bool = setting(True, "phase 2 asks other clients; false: those of phase 1, as the authors' code does")
    beta: int = setting(1, "1: correct the local directions, 0: do not", choices=(0, 1))
    c_alpha: float = setting(5.0, "weight of new gradients, alpha_t = min(1, c_alpha (gamma_t / c_gamma)^2)", above=0)
    rho: float = setting(1 / 3, "decay of the steps and of alpha; 0: constant", at_least=0)
    eta_cap: float = setting(math.inf, "the largest eta_t", above=0)
    gamma_cap: float = setting(math.inf, "the largest gamma_t; a cap that binds holds eta_t and alpha_t too", above=0)

    def first(self, z: Point, federation: Federation) -> Server:
        return Server(z=z, previous=z, w=0 * z, round=0)

    def schedule(self, t: int) -> tuple[float, float, float]:
        """alpha_t, eta_t and gamma_t. Without caps both steps are their constant over (t+1)^rho."""
        gamma = min(self.gamma_cap, self.gamma / (t + 1) ** self.rho)
        decay = gamma / self.gamma
        alpha = min(1.0, self.c_alpha * decay**2) if t > 0 else 1.0  # w_0 is a plain average
        return alpha, min(self.eta_cap, self.eta * decay), gamma

    def round(self, server: Server, federation: Federation) -> Server:
        alpha, eta, gamma = self.schedule(server.round)
        w, asked = server.w, federation.cohort(self.asked)
        if self.beta:
            g = federation.average(self.collect_gradient, Look(server.z, server.previous, alpha), asked, ALL)
            w = (1 - alpha) * w + g.mean
            asked = federation.cohort(self.asked) if self.resample else asked
        z = federation.average(self.local_steps, Go(server.z, w, eta, gamma), asked, batches=self.steps)
        return Server(z=z.mean, previous=server.z, w=w, round=server.round + 1)

    def collect_gradient(self, oracle: Oracle, look: Look, client: tuple[()], data: Data) -> tuple[Point, tuple[()]]:
        now, before = oracle.gradient(look.z, data.full), oracle.gradient(look.previous, data.full)
        return now - (1 - look.alpha) * before, client

    def local_steps(self, oracle: Oracle, go: Go, client: tuple[()], data: Data) -> tuple[Feasible, tuple[()]]:
        z = go.z
        for batch in data.minibatches:
            d = oracle.gradient(z, batch)
            if self.beta:
                d = d + go.w - oracle.gradient(go.z, batch)  # one minibatch in both terms
            z = oracle.project(z.step(d, go.eta, go.gamma))
        return z, client

    def solution(self, server: Server) -> Point:
        return server.z
