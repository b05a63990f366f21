"""CODASCA: stagewise AUC maximisation with control variates (papers: codasca, Algorithms 3 and 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedsaddle.algorithms import stages
from fedsaddle.contracts import Data, Federation, Number, Oracle, Point, SettingError, setting


class Server(NamedTuple):
    z: Point  # (v_r, alpha_r)
    c: Point  # mean of all clients' controls
    centre: Tensor  # v_0 of the stage
    output: Point  # the iterate of round r~, drawn when the stage began
    chosen: int  # r~
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
    steps: int = stages.steps()
    asked: int | None = setting(None, "clients asked in a round; none: everyone", at_least=1)
    proximal: float = stages.proximal()
    stage_rounds: int | None = setting(None, "R: rounds in the first stage; none: one stage", at_least=1)
    decay: float = stages.decay(1 / 3)
    growth: float = stages.growth()
    lengthening: float = stages.lengthening(1.0)
    keep_controls: bool = setting(False, "keep the controls across stages; the paper starts each from zero")
    output: str = setting("last", "a stage ends with its last iterate or, as in the theorem, with that of a random "
                          "round", choices=("last", "random"))

    def __post_init__(self) -> None:
        if self.output == "random" and self.stage_rounds is None:
            raise SettingError("algorithm.output = 'random': the round is drawn out of the stage's, and this stage "
                               "never ends; set stage_rounds, or output to 'last'")

    def first(self, z: Point, federation: Federation) -> Server:
        return Server(z=z, c=0 * z, centre=z.x, output=z, chosen=self.draw(0, federation), round=0)

    def first_client(self, z: Point) -> Client:
        return Client(c=0 * z, tag=torch.tensor(0, device=z.x.device))

    def draw(self, elapsed: int, federation: Federation) -> int:
        return federation.randint(1, (stages.clock(self, elapsed, self.stage_rounds).length or 1) + 1)

    def round(self, server: Server, federation: Federation) -> Server:
        now = stages.clock(self, server.round, self.stage_rounds)
        asked = federation.cohort(self.asked)
        go = Go(server.z, server.c, server.centre, now.eta, tag=0 if self.keep_controls else now.stage)
        got = federation.average(self.local_steps, go, asked, batches=now.steps, summed=("c",))
        z = federation.project(server.z + self.eta_global * got.mean.z)
        c = server.c + got.sum.c  # (1/N) sum of c_i' - c_i: the absent keep theirs
        output = stages.output(self.output, server.output, z, now.turn, chosen=server.chosen)
        server = server._replace(z=z, c=c, output=output, round=server.round + 1)
        return self.next_stage(server, federation) if now.last else server

    def next_stage(self, server: Server, federation: Federation) -> Server:
        start = server.output
        c = server.c if self.keep_controls else 0 * start
        return server._replace(z=start, c=c, centre=start.x, chosen=self.draw(server.round, federation))

    def local_steps(self, oracle: Oracle, go: Go, client: Client, data: Data) -> tuple[Change, Client]:
        ci = Point(*(torch.where(client.tag == go.tag, c, 0.0) for c in client.c))
        z, total = go.z, 0 * go.z
        for batch in data.minibatches:
            g = stages.pulled(oracle.gradient(z, batch), z, go.centre, self.proximal)  # grad F^s
            z = oracle.project(z.step(g - ci + go.c, go.eta, go.eta))
            total = total + g
        new = total / len(data.minibatches)  # eq. (7); without projections equal to eq. (6)
        return Change(z - go.z, new - ci), Client(new, go.tag + 0 * client.tag)

    def solution(self, server: Server) -> Point:
        return server.output
