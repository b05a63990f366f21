"""Amplified SCAFFOLD: controls over a whole period, whose change then counts more (the baseline of paper cyclic-auc).

c_i and c stay as they are within a period, while each client takes the mean of its raw gradients; at the end
c_i becomes that mean and c the mean of all c_i. Nobody is asked for it: every reply carries the change of the
client's mean since its last reply (at first: since c_i), and the server adds these up until the period ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedsaddle.algorithms import periods
from fedsaddle.contracts import Data, Federation, Number, Oracle, Point, setting


class Server(NamedTuple):
    z: Point
    hold: Point  # where the period started
    c: Point  # mean of all clients' controls
    next_c: Point  # what c becomes if the period ends now
    period: int  # its number
    round: int


class Go(NamedTuple):
    z: Point
    c: Point
    period: Number


class Client(NamedTuple):
    c: Point  # c_i in `period`
    mean: Point  # of its gradients in `period`, or c_i before the first: its next c_i
    gradients: Tensor  # how many are in the mean
    period: Tensor  # the last one in which it answered


class Change(NamedTuple):
    z: Point
    mean: Point  # change of Client.mean


@dataclass(frozen=True)
class AmplifiedSCAFFOLD:
    """Local steps along grad F_i - c_i + c. With periods of one round: SCAFFOLD with eta_g = g."""

    eta: float = setting(0.1, "local step", above=0)
    steps: int = setting(10, "local steps in a round", at_least=1)
    asked: int | None = setting(None, "clients asked in a round; none: everyone", at_least=1)
    amplification: float = periods.amplification()
    period: int | None = periods.period()

    def first(self, z: Point, federation: Federation) -> Server:
        return Server(z=z, hold=z, c=0 * z, next_c=0 * z, period=0, round=0)

    def first_client(self, z: Point) -> Client:
        none = torch.tensor(0, device=z.x.device)
        return Client(c=0 * z, mean=0 * z, gradients=none, period=none)

    def round(self, server: Server, federation: Federation) -> Server:
        length = self.period or federation.cycle
        server = self.enter(server, federation, federation.round // length)  # a period's last round may be skipped
        asked = federation.cohort(self.asked)
        go = Go(server.z, server.c, server.period)
        got = federation.average(self.local_steps, go, asked, batches=self.steps, summed=("mean",))
        next_c = server.next_c + got.sum.mean  # (1/N) sum: clients not seen keep theirs
        server = server._replace(z=server.z + got.mean.z, next_c=next_c, round=server.round + 1)
        return self.enter(server, federation, (federation.round + 1) // length)

    def enter(self, server: Server, federation: Federation, period: int) -> Server:
        """Where another period begins, amplify and renew the controls."""
        if period == server.period:
            return server
        z = periods.amplified(server.z, server.hold, self.amplification, federation)
        return server._replace(z=z, hold=z, c=server.next_c, period=period)

    def local_steps(self, oracle: Oracle, go: Go, client: Client, data: Data) -> tuple[Change, Client]:
        new = client.period != go.period
        ci = Point(*(torch.where(new, mean, c) for mean, c in zip(client.mean, client.c, strict=True)))
        before = torch.where(new, 0, client.gradients)
        z, total = go.z, 0 * go.z
        for batch in data.minibatches:
            g = oracle.gradient(z, batch)
            z = oracle.project(z.step(g - ci + go.c, self.eta, self.eta))
            total = total + g
        gradients = before + len(data.minibatches)
        mean = (before * client.mean + total) / gradients
        return Change(z - go.z, mean - client.mean), Client(ci, mean, gradients, go.period + 0 * client.period)

    def solution(self, server: Server) -> Point:
        return server.z
