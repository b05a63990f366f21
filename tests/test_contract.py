"""Every algorithm of the registry passes the contract battery; so does one that is added at run time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import pytest

from fedsaddle import algorithms, testing
from fedsaddle.algorithms import ALGORITHMS, Entry, make
from fedsaddle.contracts import Point, setting


@pytest.mark.parametrize("check", ["engines_agree", "repeats", "resumes", "pure", "participations", "traced",
                                   "workers"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_contract(name, check):
    for case in ALGORITHMS[name].cases:
        getattr(testing, f"check_{check}")(testing.trial(name), testing.CASES[case]())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_registry_tells_the_truth(name):
    testing.check_settings(testing.trial(name))
    entry = ALGORITHMS[name]
    for case in ALGORITHMS[name].cases:
        testing.check_uploads(testing.trial(name, asked=None), testing.CASES[case](), entry.copies, entry.scalars,
                              entry.scores)


class Server(NamedTuple):
    z: Point
    round: int


@dataclass(frozen=True)
class HalfSteps:
    """A method that is not ours: Parallel SGDA that halves its step every ten rounds."""

    eta: float = setting(0.1, "first step", above=0)

    def first(self, z, federation):
        return Server(z, 0)

    def round(self, server, federation):
        eta = self.eta / 2 ** (server.round // 10)
        z = federation.average(self.step, Message(server.z, eta), federation.cohort(4), 1).mean
        return Server(z, server.round + 1)

    def step(self, oracle, message, client, data):
        return message.z.step(oracle.gradient(message.z, data.minibatches[0]), message.eta, message.eta), client

    def solution(self, server):
        return server.z


class Message(NamedTuple):
    z: Point
    eta: object


def test_an_algorithm_added_at_run_time_passes(monkeypatch):
    entry = Entry(HalfSteps, "none", algorithms.SADDLE, 1)
    monkeypatch.setitem(ALGORITHMS, "half-steps", entry)
    testing.check_algorithm(make("half-steps", eta=0.05))
    testing.check_uploads(make("half-steps"), testing.quadratic_case(), 1, 0)


class Impure(HalfSteps):
    """Branches on a tensor."""

    def step(self, oracle, message, client, data):
        if message.eta > 0.01:
            return message.z, client
        return super().step(oracle, message, client, data)


class Forgetful(HalfSteps):
    """Keeps a counter that no checkpoint knows."""

    steps_taken: ClassVar = [0]

    def round(self, server, federation):
        self.steps_taken[0] += 1
        return super().round(server._replace(round=self.steps_taken[0]), federation)


@pytest.mark.parametrize("broken, error", [(Impure, RuntimeError), (Forgetful, AssertionError)])
def test_the_battery_catches_broken_methods(broken, error):
    with pytest.raises(error):
        testing.check_algorithm(broken())
