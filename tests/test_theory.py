"""What the theorems predict on the quadratic, whose saddle is known."""

from __future__ import annotations

import pytest
import torch

from fedsaddle.algorithms import make
from fedsaddle.data.synthetic import quadratic_clients
from fedsaddle.problems.quadratic import Quadratic, coefficients
from fedsaddle.runs import train


def distance(name, rounds, **settings):
    """Relative distance to the saddle with all clients and full rows (one row a client, so gradients are exact)."""
    clients = quadratic_clients(10, 1, 4, 3, heterogeneity=2.0, noise=0.0, coupling=1.0, seed=1)
    problem = Quadratic(4, 3, mean=coefficients(clients, torch.ones(10), 4, 3))
    result = train(make(name, **settings), problem, clients, rounds=rounds, batch_size=1, dtype="float64",
                   evaluate_every=rounds)
    return result.measures["train"]["distance"]


def test_corrected_methods_reach_the_saddle():
    assert distance("cdma-one", 100, eta=0.1, gamma=0.1, steps=5) < 1e-6
    assert distance("cdma-ada", 300, eta=0.2, gamma=0.2, steps=5, rho=0.1) < 1e-4
    assert distance("codasca", 200, eta=0.05, steps=5) < 1e-6


def test_the_uncorrected_method_stops_at_a_floor_that_grows_with_local_steps():
    floors = [distance("cdma-nc", rounds, eta=0.1, gamma=0.1, steps=K)
              for K, rounds in ((1, 400), (2, 150), (5, 80), (20, 40))]
    assert floors[0] < 1e-8  # one step of everyone is plain gradient descent-ascent
    assert floors[0] < floors[1] < floors[2] < floors[3]
    assert floors[1] > 1e-3 and floors[3] > 3 * floors[1]
    longer = distance("cdma-nc", 80, eta=0.1, gamma=0.1, steps=20)
    assert longer == pytest.approx(floors[3], rel=1e-3)  # more rounds do not help


def test_the_saddle_belongs_to_the_client_weights():
    clients = quadratic_clients(6, (1, 30), 3, 2, heterogeneity=1.0, noise=0.3, coupling=1.0, seed=3)
    for kind, weights in (("equal", torch.ones(6)), ("size", clients.run.size)):
        problem = Quadratic(3, 2, mean=coefficients(clients, weights, 3, 2))
        result = train(make("parallel-sgda", eta=0.2, gamma=0.2), problem, clients, rounds=300, weights=kind,
                       dtype="float64", evaluate_every=300)
        assert result.measures["train"]["distance"] < 1e-8
