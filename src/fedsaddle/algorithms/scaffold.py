"""SCAFFOLD: local steps corrected by control variates, option II (Karimireddy et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedsaddle.contracts import Data, Federation, Oracle, Point, setting


class Server(NamedTuple):
    z: Point
    c: Point  # mean of all clients' controls
    round: int


class Go(NamedTuple):
    z: Point
    c: Point


class Client(NamedTuple):
    c: Point  # c_i


class Change(NamedTuple):
    z: Point
    c: Point  # c_i' - c_i


@dataclass(frozen=True)
class SCAFFOLD:
    """Local steps along grad F_i - c_i + c; c_i becomes the mean of the client's gradients in the round."""

    eta: float = setting(0.1, "eta_l: local step", above=0)
    eta_global: float = setting(1.0, "eta_g: step along the averaged change", above=0)
    steps: int = setting(10, "local steps in a round", at_least=1)
    asked: int | None = setting(None, "clients asked in a round; none: everyone", at_least=1)

    def first(self, z: Point, federation: Federation) -> Server:
        return Server(z=z, c=0 * z, round=0)

    def first_client(self, z: Point) -> Client:
        return Client(c=0 * z)

    def round(self, server: Server, federation: Federation) -> Server:
        asked = federation.cohort(self.asked)
        got = federation.average(self.local_steps, Go(server.z, server.c), asked, batches=self.steps, summed=("c",))
        z = federation.project(server.z + self.eta_global * got.mean.z)
        c = server.c + got.sum.c  # (1/N) sum of c_i' - c_i: the absent keep theirs
        return Server(z=z, c=c, round=server.round + 1)

    def local_steps(self, oracle: Oracle, go: Go, client: Client, data: Data) -> tuple[Change, Client]:
        z, total = go.z, 0 * go.z
        for batch in data.minibatches:
            g = oracle.gradient(z, batch)
            z = oracle.project(z.step(g - client.c + go.c, self.eta, self.eta))
            total = total + g
        new = total / len(data.minibatches)  # without projections c_i - c + (z - z_i) / (K eta_l)
        return Change(z - go.z, new - client.c), Client(new)

    def solution(self, server: Server) -> Point:
        return server.z
