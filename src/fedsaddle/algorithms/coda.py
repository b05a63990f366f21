"""CODA+, CODA and NPA: stagewise AUC maximisation by averaging (papers: codasca, Algorithms 1 and 2, and Table 1).

CODA (Guo et al. 2020) recomputes the dual variable after each stage; NPA (naive parallel, after Liu et al.
2020) communicates after every step and takes that step on a large batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor

from fedsaddle.algorithms import stages
from fedsaddle.algorithms.stages import Go
from fedsaddle.contracts import ALL, Data, Feasible, Federation, Oracle, Point, SettingError, setting

LONGEST = 64  # entries of y up to which its maximiser is recomputed: a client sends that many squared


class Server(NamedTuple):
    z: Point  # (v_t, alpha_t) after communication
    centre: Tensor  # v_0 of the stage
    output: Point  # what the stage returns if it ends now
    round: int


class Local(NamedTuple):
    z: Feasible  # (v_I, alpha_I)
    mean: Point | tuple[()]  # of all I iterates, where the output needs it


class Dual(NamedTuple):
    """f as a function of y: its gradient at the given point and the change of that gradient per unit of y."""

    slope: Tensor
    curvature: Tensor


@dataclass(frozen=True)
class CODA:
    """Descent-ascent in stages, averaged every I steps."""

    eta: float = setting(0.1, "eta_0: step of v and alpha in the first stage", above=0)
    steps: int = stages.steps()
    batches: int = setting(1, "minibatches averaged in a step's gradient: the batch has M = this times run.batch_size "
                           "rows", at_least=1)
    asked: int | None = setting(None, "clients asked in a round; none: everyone", at_least=1)
    proximal: float = stages.proximal()
    stage_rounds: int | None = setting(None, "rounds in the first stage, T_0 / I; none: one stage", at_least=1)
    decay: float = stages.decay(1 / 3)
    growth: float = stages.growth()
    lengthening: float = stages.lengthening(1.0)
    recompute: bool = setting(False, "after each stage everyone is asked for the alpha that is best for the new v")
    output: str = setting("last", "a stage ends with its last iterate or, as in the theorem, with the mean of all "
                          "iterates of all clients: then a client uploads one copy of z more", choices=("last", "mean"))

    def first(self, z: Point, federation: Federation) -> Server:
        if self.recompute and len(z.y) > LONGEST:
            raise SettingError(f"algorithm.recompute = true: y has {len(z.y)} entries, and its maximiser is computed "
                               f"for at most {LONGEST}; use coda+, which does without")
        return Server(z=z, centre=z.x, output=z, round=0)

    def round(self, server: Server, federation: Federation) -> Server:
        now = stages.clock(self, server.round, self.stage_rounds)
        asked = federation.cohort(self.asked)
        go = Go(server.z, server.centre, now.eta)
        got = federation.average(self.local_steps, go, asked, batches=now.steps * self.batches).mean
        output = stages.output(self.output, server.output, got.z, now.turn, mean=got.mean)
        if now.last:  # the output starts the next stage
            start = self.best_dual(output, federation) if self.recompute else output
            return Server(z=start, centre=start.x, output=start, round=server.round + 1)
        return Server(z=got.z, centre=server.centre, output=output, round=server.round + 1)

    def local_steps(self, oracle: Oracle, go: Go, client: tuple[()], data: Data) -> tuple[Local, tuple[()]]:
        z, total = go.z, 0 * go.z
        for t in range(0, len(data.minibatches), self.batches):
            g = reduce(add, (oracle.gradient(z, batch) for batch in data.minibatches[t : t + self.batches]))
            g = stages.pulled(g / self.batches, z, go.centre, self.proximal)
            z = oracle.project(z.step(g, go.eta, go.eta))
            total = total + z if self.output == "mean" else total
        iterates = len(data.minibatches) // self.batches
        return Local(z, total / iterates if self.output == "mean" else ()), client

    def best_dual(self, z: Point, federation: Federation) -> Point:
        """argmax_y f(x, y) where f is quadratic in y, as AUC's is; elsewhere one step of Newton's method."""
        if not len(z.y):
            return z
        f = federation.average(self.expand_dual, z, federation.everyone(), ALL).mean
        root, failed = torch.linalg.cholesky_ex(-(f.curvature + f.curvature.T) / 2)
        if int(failed):
            raise SettingError("algorithm.recompute = true: the objective is not strongly concave in y, so there is "
                               "no maximiser to compute; use coda+, which does without")
        return Point(z.x, z.y + torch.cholesky_solve(f.slope[:, None], root)[:, 0])

    def expand_dual(self, oracle: Oracle, z: Point, client: tuple[()], data: Data) -> tuple[Dual, tuple[()]]:
        slope = oracle.gradient(z, data.full).y
        units = torch.eye(len(z.y), dtype=z.y.dtype, device=z.y.device)
        changes = [oracle.gradient(Point(z.x, z.y + unit), data.full).y - slope for unit in units]
        return Dual(slope, torch.stack(changes)), client

    def solution(self, server: Server) -> Point:
        return server.output
