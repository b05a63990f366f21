"""CyCP-Pairwise and RS-Pairwise: pairs of rows across clients (papers: cyclic-auc, Algorithms 3 and 4).

Under cyclic participation the old scores are those of the last epoch, a visit to every group: CyCP-Pairwise. Under
uniform participation an epoch is one round: RS-Pairwise. The first epoch only scores, and fills the pools.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedsaddle.algorithms import pools, stages
from fedsaddle.algorithms.pools import Pools
from fedsaddle.contracts import Data, Feasible, Federation, Number, Oracle, Point, RowScores, Scores, setting


class Server(NamedTuple):
    z: Point  # w^{e,k}, the average of the last group
    output: Point  # what the stage returns if it ends now
    old: Pools  # H^{e-1}
    new: Pools  # H^e, so far
    epoch: int
    begun: int  # the epoch of the first steps; -1: no scores yet
    stage: int
    groups: int  # averages that went into the output
    round: int


class Go(NamedTuple):
    z: Point
    eta: Number
    positives: Scores  # R_1, for each client its own, in the order of its steps
    negatives: Scores  # R_2


class Local(NamedTuple):
    z: Feasible | tuple[()]  # nothing where the client only scores
    positives: RowScores  # [steps, rows, ...]; NaN where there is no such row
    negatives: RowScores


@dataclass(frozen=True)
class CyCPPairwise:
    """A client's own rows are active in its gradients; the rows of others are passive, by their last scores."""

    eta: float = setting(0.1, "eta_0: step in the first stage", above=0)
    steps: int = stages.steps()
    asked: int | None = stages.of_the_group()
    stage_epochs: int | None = stages.epochs()
    decay: float = stages.decay(0.5)
    growth: float = stages.growth()
    lengthening: float = stages.lengthening(2.0)
    output: str = stages.of_groups()

    def first(self, z: Point, federation: Federation) -> Server:
        none = pools.empty(z)
        return Server(z, output=z, old=none, new=none, epoch=0, begun=-1, stage=0, groups=0, round=0)

    def round(self, server: Server, federation: Federation) -> Server:
        server = self.next_epoch(server, federation.round // federation.cycle)
        asked = federation.cohort(self.asked)
        if server.begun < 0:
            got = federation.collect(self.score, server.z, asked, batches=self.steps)
            return server._replace(new=pools.added(server.new, got.each, asked, got.ids))
        now = stages.clock(self, server.epoch - server.begun, self.stage_epochs)
        if now.stage > server.stage:
            server = server._replace(z=server.output, stage=now.stage, groups=0)
        r1, r2 = (pools.drawn(pool, asked, federation, now.steps) for pool in server.old)
        got = federation.average(self.local_steps, Go(server.z, now.eta, r1, r2), asked, batches=now.steps,
                                 personal=("positives", "negatives"), collect=("positives", "negatives"))
        z, groups = got.mean.z, server.groups + 1
        output = stages.output(self.output, server.output, z, groups, mean=z)
        new = pools.added(server.new, got.each, asked, got.ids)
        return server._replace(z=z, output=output, new=new, groups=groups, round=server.round + 1)

    def next_epoch(self, server: Server, epoch: int) -> Server:
        """H^e becomes H^{e-1}, by the federation's clock: the last round of an epoch may have been skipped."""
        if epoch == server.epoch:
            return server
        old = pools.renewed(server.old, server.new)
        begun = epoch if old.full and server.begun < 0 else server.begun
        return server._replace(old=old, new=pools.empty(server.z), epoch=epoch, begun=begun)

    def score(self, oracle: Oracle, z: Point, client: tuple[()], data: Data) -> tuple[Local, tuple[()]]:
        return Local((), *pools.known([oracle.scores(z, pair) for pair in data.minibatches], data)), client

    def local_steps(self, oracle: Oracle, go: Go, client: tuple[()], data: Data) -> tuple[Local, tuple[()]]:
        z, scores = go.z, []
        for t, pair in enumerate(data.minibatches):
            r1, r2 = (Scores(r.value[t], r.weight[t]) for r in (go.positives, go.negatives))
            g, h = oracle.active(z, pair, (r1, r2))
            z = oracle.project(z.step(g, go.eta, go.eta))
            scores.append(h)
        return Local(z, *pools.known(scores, data)), client

    def solution(self, server: Server) -> Point:
        return server.output
