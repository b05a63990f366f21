"""Clients made up for tests and for the theory's figures: quadratic saddles with a known solution."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedsaddle.contracts import SettingError
from fedsaddle.data.clients import Clients, clients_from_arrays

Array = NDArray[np.float64]
LOW, HIGH = 0.5, 2.0  # eigenvalues of every A and C


def quadratic_clients(
    clients: int, rows: int | tuple[int, int], dimension_x: int = 10, dimension_y: int = 10,
    heterogeneity: float = 1.0, noise: float = 0.5, coupling: float = 1.0, seed: int = 0,
) -> Clients:
    """Rows of the problem `quadratic`, each strongly convex in x and strongly concave in y.

    heterogeneity: how far clients lie apart, 0 for identical ones; noise: how far the rows of a client do;
    coupling: size of B; rows: how many a client has, or (fewest, most) for sizes drawn uniformly.
    """
    fewest, most = (rows, rows) if isinstance(rows, int) else rows
    if clients < 1 or not 1 <= fewest <= most:
        raise SettingError(f"quadratic_clients: {clients} clients with {rows} rows; give at least one client, and rows "
                           "as a number from 1 on or as (fewest, most)")
    if min(heterogeneity, noise) < 0:
        raise SettingError(f"quadratic_clients: heterogeneity {heterogeneity} and noise {noise} are sizes; "
                           "give 0 or more")
    random = np.random.Generator(np.random.Philox(seed))
    owner = np.repeat(np.arange(clients), random.integers(fewest, most + 1, clients))
    parts = {}
    for name, m in (("A", dimension_x), ("C", dimension_y)):
        common = _definite(random, m)
        own = _mix(common, _definite_many(random, clients, m), heterogeneity)
        parts[name] = _mix(own[owner], _definite_many(random, len(owner), m), noise).reshape(len(owner), -1)
    size = coupling / np.sqrt(max(dimension_x, dimension_y))
    for name, length, scale in (("B", dimension_x * dimension_y, size), ("ac", dimension_x + dimension_y, 1.0)):
        own = random.normal(size=length) + heterogeneity * random.normal(size=(clients, length))
        parts[name] = scale * (own[owner] + noise * random.normal(size=(len(owner), length)))
    return clients_from_arrays(np.concatenate([parts["A"], parts["B"], parts["C"]], 1), parts["ac"], owner)


def _definite(random: np.random.Generator, m: int) -> Array:
    """A matrix with eigenvalues spread over [LOW, HIGH] in random directions."""
    directions, _ = np.linalg.qr(random.normal(size=(m, m)))
    matrix: Array = directions * np.linspace(LOW, HIGH, m) @ directions.T
    return (matrix + matrix.T) / 2  # the product is symmetric up to rounding only


def _definite_many(random: np.random.Generator, count: int, m: int) -> Array:
    """Matrices of eigenvalue LOW but for one random direction, where it is HIGH: cheap, and far apart."""
    direction = random.normal(size=(count, m))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    matrices: Array = LOW * np.eye(m) + (HIGH - LOW) * (direction[:, :, None] * direction[:, None, :])
    return matrices


def _mix(common: Array, own: Array, amount: float) -> Array:
    """A convex combination, which keeps the eigenvalues in their range however large the amount."""
    return (common + amount * own) / (1 + amount)
