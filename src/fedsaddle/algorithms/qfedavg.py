"""q-FedAvg: fair averaging, min_w mean_i F_i(w)^(q+1) / (q+1) (the baseline of paper drfa)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedsaddle.contracts import Data, Draw, Federation, Oracle, Point, setting

SMALLEST = 1e-10  # a loss counts as at least this much: F^(q-1) has a pole at 0 for q < 1


class Server(NamedTuple):
    z: Point
    round: int


class Fair(NamedTuple):
    change: Point  # Delta_i
    h: Tensor  # h_i


@dataclass(frozen=True)
class QFedAvg:
    """A client counts by its loss to the power q; q = 0 is FedAvg. For losses that are not negative."""

    eta: float = setting(0.1, "local step; 1 / eta stands for the Lipschitz constant L", above=0)
    q: float = setting(0.2, "how much a client with a high loss counts; 0: no more than the others", at_least=0)
    steps: int = setting(10, "local steps in a round", at_least=1)
    asked: int | None = setting(None, "clients asked in a round; none: everyone", at_least=1)

    def first(self, z: Point, federation: Federation) -> Server:
        return Server(z=z, round=0)

    def round(self, server: Server, federation: Federation) -> Server:
        asked = federation.cohort(self.asked)
        got = federation.average(self.local_steps, server.z, asked, Draw(self.steps, full=True)).mean
        z = server.z - got.change / got.h.clamp(min=torch.finfo(got.h.dtype).tiny)  # every loss 0: stand still
        return Server(z=z, round=server.round + 1)

    def local_steps(self, oracle: Oracle, start: Point, client: tuple[()], data: Data) -> tuple[Fair, tuple[()]]:
        F = oracle.loss(start, data.full).clamp(min=SMALLEST)
        z, L = start, 1 / self.eta
        for batch in data.minibatches:
            z = oracle.project(z.step(oracle.gradient(z, batch), self.eta, self.eta))
        D = L * (start - z)
        square = (D.x**2).sum() + (D.y**2).sum()
        h = self.q * F ** (self.q - 1) * square + L * F**self.q
        return Fair(F**self.q * D, h), client

    def solution(self, server: Server) -> Point:
        return server.z
