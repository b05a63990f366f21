"""FedAvg and Amplified FedAvg: local steps, then the mean; after a period its whole change counts more.

The baselines of papers drfa and cyclic-auc. CyCP-FedAvg is FedAvg with cyclic participation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedsaddle.algorithms import periods
from fedsaddle.contracts import Data, Feasible, Federation, Oracle, Point, setting


class Server(NamedTuple):
    z: Point
    hold: Point  # where the period started
    period: int  # its number
    round: int


@dataclass(frozen=True)
class FedAvg:
    """Local steps, then the mean; a period's change is amplified at its end (in FedAvg by 1: not at all).

    Groups of clients that take turns (CyCP-FedAvg) are a participation: select = "cyclic".
    """

    eta: float = setting(0.1, "local step", above=0)
    steps: int = setting(10, "local steps in a round", at_least=1)
    asked: int | None = setting(None, "clients asked in a round; none: everyone", at_least=1)
    amplification: float = periods.amplification()
    period: int | None = periods.period()

    def first(self, z: Point, federation: Federation) -> Server:
        return Server(z=z, hold=z, period=0, round=0)

    def round(self, server: Server, federation: Federation) -> Server:
        length = self.period or federation.cycle
        server = self.enter(server, federation, federation.round // length)  # a period's last round may be skipped
        z = federation.average(self.local_steps, server.z, federation.cohort(self.asked), batches=self.steps).mean
        server = server._replace(z=z, round=server.round + 1)
        return self.enter(server, federation, (federation.round + 1) // length)

    def enter(self, server: Server, federation: Federation, period: int) -> Server:
        """Amplify where another period begins."""
        if period == server.period:
            return server
        z = periods.amplified(server.z, server.hold, self.amplification, federation)
        return server._replace(z=z, hold=z, period=period)

    def local_steps(self, oracle: Oracle, z: Point, client: tuple[()], data: Data) -> tuple[Feasible, tuple[()]]:
        for batch in data.minibatches:
            z = oracle.project(z.step(oracle.gradient(z, batch), self.eta, self.eta))
        return z, client

    def solution(self, server: Server) -> Point:
        return server.z
