"""CODASCA: stagewise AUC maximisation with control variates (papers: codasca, Algorithms 3 and 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedsaddle.contracts import Data, Federation, Number, Oracle, Point, setting


class Server(NamedTuple):
    z: Point  # (v_r, alpha_r)
    c: Point  # mean of all clients' controls
    centre: Tensor  # v_0 of the stage
    output: Point  # the iterate of round r~, drawn when the stage began
    chosen: int  # r~
    stage: int
    stage_round: int  # rounds done in this stage
    round: int


class Go(NamedTuple):
    z: Point
    c: Point
    centre: Tensor
    eta: Number
    tag: Number  # a control with another tag is of an older stage and reads as zero


class Client(NamedTuple):
    c: Point  # c_i
    tag: Tensor


class Change(NamedTuple):
    z: Point
    c: Point  # c_i' - c_i


@dataclass(frozen=True)
class CODASCA:
    """Local steps along grad F^s - c_i + c, in the primal and in the dual variable."""

    eta: float = setting(0.1, "eta_l: local step of v and alpha in the first stage", above=0)
    eta_global: float = setting(1.0, "eta_g: step along the averaged change", above=0)
    steps: int = setting(32, "I: local steps in a round of the first stage", at_least=1)
    asked: int | None = setting(None, "clients asked in a round; none: everyone", at_least=1)
    proximal: float = setting(0.0, "gamma: weight of gamma/2 |v - v_0|^2, v_0 the start of the stage", at_least=0)
    stage_rounds: int | None = setting(None, "R: rounds in a stage; none: one stage", at_least=1)
    decay: float = setting(1 / 3, "the next stage's eta_l is this times the last one's", above=0, at_most=1)
    growth: float = setting(1.0, "the next stage's I is this times the last one's", at_least=1)
    keep_controls: bool = setting(False, "keep the controls across stages; the paper starts each from zero")
    output: str = setting("last", "a stage ends with its last iterate or, as in the theorem, with that of a random "
                          "round", choices=("last", "random"))

    def first(self, z: Point, federation: Federation) -> Server:
        return Server(z=z, c=0 * z, centre=z.x, output=z, chosen=self.draw(federation), stage=0, stage_round=0, round=0)

    def first_client(self, z: Point) -> Client:
        return Client(c=0 * z, tag=torch.tensor(0, device=z.x.device))

    def draw(self, federation: Federation) -> int:
        return federation.randint(1, (self.stage_rounds or 1) + 1)

    def round(self, server: Server, federation: Federation) -> Server:
        eta, steps = self.eta * self.decay**server.stage, round(self.steps * self.growth**server.stage)
        asked = federation.cohort(self.asked)
        go = Go(server.z, server.c, server.centre, eta, tag=0 if self.keep_controls else server.stage)
        got = federation.average(self.local_steps, go, asked, batches=steps, summed=("c",))
        z = server.z + self.eta_global * got.mean.z
        c = server.c + got.sum.c  # (1/N) sum of c_i' - c_i: the absent keep theirs
        r = server.stage_round + 1
        output = z if r == server.chosen or self.output == "last" else server.output
        server = server._replace(z=z, c=c, output=output, stage_round=r, round=server.round + 1)
        return self.next_stage(server, federation) if r == self.stage_rounds else server

    def next_stage(self, server: Server, federation: Federation) -> Server:
        v = server.output
        c = server.c if self.keep_controls else 0 * v
        chosen = self.draw(federation)
        return server._replace(z=v, c=c, centre=v.x, chosen=chosen, stage=server.stage + 1, stage_round=0)

    def local_steps(self, oracle: Oracle, go: Go, client: Client, data: Data) -> tuple[Change, Client]:
        ci = Point(*(torch.where(client.tag == go.tag, c, 0.0) for c in client.c))
        z, total = go.z, 0 * go.z
        for batch in data.minibatches:
            g = oracle.gradient(z, batch)
            g = Point(g.x + self.proximal * (z.x - go.centre), g.y)  # grad F^s
            z = oracle.project(z.step(g - ci + go.c, go.eta, go.eta))
            total = total + g
        new = total / len(data.minibatches)  # eq. (7); without projections equal to eq. (6)
        return Change(z - go.z, new - ci), Client(new, go.tag + 0 * client.tag)

    def solution(self, server: Server) -> Point:
        return server.output
