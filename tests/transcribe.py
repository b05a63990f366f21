"""What a NumPy transcription of a method needs: who was asked, their batches, the server's dice, the states.

The numbers of an ask are recorded from the reference engine; the arithmetic is the transcription's own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedsaddle.contracts import NobodyAnswered
from fedsaddle.engine.federation import Ask
from fedsaddle.engine.reference import Reference
from fedsaddle.maths.trees import map_leaves
from fedsaddle.participation import Participation
from fedsaddle.testing import job


class Asked(NamedTuple):
    """One ask: the clients that answered, how much each counts, and their data in NumPy."""

    clients: list[int]
    weight: np.ndarray  # in the mean, adding up to one
    share: np.ndarray  # the objective's weight w_i of each
    times: np.ndarray  # how often each was drawn
    data: list[Any]  # Data of NumPy arrays, one per client
    message: Any


class Played(NamedTuple):
    """One round."""

    asks: list[Asked]
    dice: list[float]  # what the server's randint and uniform gave, in order
    server: Any  # the state after the round, in NumPy
    skipped: bool


class Recording(NamedTuple):
    first: Any  # the server's first state, in NumPy
    rounds: list[Played]
    clients: dict[int, Any]  # client states at the end


def play(algorithm: Any, case: Any, rounds: int, participation: Participation | None = None) -> Recording:
    """Run an algorithm one client at a time in float64 and write everything down."""
    start = job(algorithm, case, participation or Participation(), engine="reference", rounds=rounds)
    federation, engine = start.federation, start.federation.engine
    assert isinstance(engine, Reference)
    asks: list[Asked] = []
    dice: list[float] = []
    run, average, randint, uniform = engine.run, federation.average, federation.randint, federation.uniform

    def recorded_run(ask: Ask) -> Any:
        data = [as_numpy(engine.data(client, ask)) for client in ask.ids.tolist()]
        weight = ask.weight.numpy() / ask.weight.numpy().sum()
        asks.append(Asked(ask.ids.tolist(), weight, ask.objective.numpy(), np.zeros(0), data, as_numpy(ask.message)))
        return run(ask)

    def recorded_average(*args: Any, **kwargs: Any) -> Any:
        got = average(*args, **kwargs)
        asks[-1] = asks[-1]._replace(times=got.times.numpy())
        return got

    def rolled(die: Any) -> Any:
        def roll(*args: Any) -> Any:
            dice.append(die(*args))
            return dice[-1]
        return roll

    engine.run, federation.average = recorded_run, recorded_average
    federation.randint, federation.uniform = rolled(randint), rolled(uniform)
    server, played = start.progress.server, []
    first = as_numpy(server)
    for number in range(rounds):
        asks.clear()
        dice.clear()
        federation.begin(number)
        skipped = False
        try:
            server = algorithm.round(server, federation)
            federation.commit()
        except NobodyAnswered:
            skipped = True
        played.append(Played(list(asks), list(dice), as_numpy(server), skipped))
    return Recording(first, played, {i: as_numpy(state) for i, state in engine.kept.items()})


def as_numpy(tree: Any) -> Any:
    """The same tree with NumPy arrays for tensors."""
    return map_leaves(lambda leaf: leaf.detach().numpy().copy() if isinstance(leaf, Tensor) else leaf, tree)


def quadratic_gradient(x: np.ndarray, y: np.ndarray, batch: Any) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of f = mean over rows of 1/2 x'Ax + x'By - 1/2 y'Cy + a'x - c'y, coefficients read from the rows."""
    m, n = len(x), len(y)
    coefficients, linear = batch.weight @ batch.inputs, batch.weight @ batch.targets
    A = coefficients[: m * m].reshape(m, m)
    B = coefficients[m * m : m * m + m * n].reshape(m, n)
    C = coefficients[m * m + m * n :].reshape(n, n)
    a, c = linear[:m], linear[m:]
    return (A + A.T) / 2 @ x + B @ y + a, B.T @ x - (C + C.T) / 2 @ y - c


def quadratic_loss(x: np.ndarray, y: np.ndarray, batch: Any) -> float:
    m, n = len(x), len(y)
    coefficients, linear = batch.weight @ batch.inputs, batch.weight @ batch.targets
    A = coefficients[: m * m].reshape(m, m)
    B = coefficients[m * m : m * m + m * n].reshape(m, n)
    C = coefficients[m * m + m * n :].reshape(n, n)
    return float(x @ A @ x / 2 + x @ B @ y - y @ C @ y / 2 + linear[:m] @ x - linear[m:] @ y)
