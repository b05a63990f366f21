"""CyCP-Minimax and RS-Minimax: stages of descent-ascent, group after group (papers: cyclic-auc, Algorithms 1 and 2).

Under cyclic participation a round asks the active group and an epoch visits every group: CyCP-Minimax. Under
uniform participation every client can be asked and an epoch is one round: RS-Minimax.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedsaddle.algorithms import stages
from fedsaddle.algorithms.stages import Go
from fedsaddle.contracts import Data, Feasible, Federation, Oracle, Point, setting


class Server(NamedTuple):
    z: Point  # (v^{e,k}, alpha^{e,k}), the average of the last group
    centre: Tensor  # v_0^s
    output: Point  # what the stage returns if it ends now
    stage: int  # s
    groups: int  # averages that went into the output
    round: int


@dataclass(frozen=True)
class CyCPMinimax:
    """The average of a group is the start of the next group; stages change the step and their own length."""

    eta: float = setting(0.1, "eta_0: step of v and alpha in the first stage", above=0)
    steps: int = stages.steps()
    asked: int | None = stages.of_the_group()
    proximal: float = stages.proximal()
    stage_epochs: int | None = stages.epochs()
    decay: float = stages.decay(0.5)
    growth: float = stages.growth()
    lengthening: float = stages.lengthening(2.0)
    output: str = stages.of_groups()

    def first(self, z: Point, federation: Federation) -> Server:
        return Server(z=z, centre=z.x, output=z, stage=0, groups=0, round=0)

    def round(self, server: Server, federation: Federation) -> Server:
        # Epochs follow the groups, so rounds that nobody answered count.
        now = stages.clock(self, federation.round // federation.cycle, self.stage_epochs)
        if now.stage > server.stage:
            start = server.output
            server = server._replace(z=start, centre=start.x, stage=now.stage, groups=0)
        asked = federation.cohort(self.asked)
        go = Go(server.z, server.centre, now.eta)
        z = federation.average(self.local_steps, go, asked, batches=now.steps).mean
        groups = server.groups + 1
        output = stages.output(self.output, server.output, z, groups, mean=z)
        return server._replace(z=z, output=output, groups=groups, round=server.round + 1)

    def local_steps(self, oracle: Oracle, go: Go, client: tuple[()], data: Data) -> tuple[Feasible, tuple[()]]:
        z = go.z
        for batch in data.minibatches:
            g = stages.pulled(oracle.gradient(z, batch), z, go.centre, self.proximal)
            z = oracle.project(z.step(g, go.eta, go.eta))
        return z, client

    def solution(self, server: Server) -> Point:
        return server.output
