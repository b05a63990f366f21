"""Keyed random numbers in plain Python integers: the definition that `streams` computes for whole cohorts.

Every draw has an address (seed, round, ask, purpose, client); its key is a hash of it, and the j-th
number of a stream is splitmix64 of the key and j. Nothing is stored, so nothing can be lost or shared.
"""

from __future__ import annotations

from enum import IntEnum

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15  # splitmix64's increment
MIX1, MIX2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
SALT = 0xD1B54A32D192ED03  # keeps addresses apart from the numbers of a stream


class Purpose(IntEnum):
    """What a draw is for; part of its address, so no two uses share a stream."""

    COHORT = 1
    SERVER = 2
    ROWS = 3
    NOISE = 4
    ENOUGH = 5
    ARRIVAL = 6
    DROP = 7
    LATENCY = 8
    PARTITION = 9
    INITIAL = 10


def mix(value: int) -> int:
    value &= MASK
    value = ((value ^ (value >> 30)) * MIX1) & MASK
    value = ((value ^ (value >> 27)) * MIX2) & MASK
    return value ^ (value >> 31)


def fold(key: int, value: int) -> int:
    """The key of a sub-address."""
    return mix(key ^ mix(value * GAMMA + SALT))


def address(*parts: int) -> int:
    """The key of an address such as (seed, round, ask, purpose)."""
    key = SALT
    for part in parts:
        key = fold(key, int(part))
    return key


def bits(key: int, counter: int) -> int:
    """The counter-th 64 random bits of a stream."""
    return mix(key + (counter + 1) * GAMMA)


def uniform(key: int, counter: int = 0) -> float:
    """The counter-th number of a stream, on [0, 1)."""
    return (bits(key, counter) >> 11) * 2.0**-53


def randint(key: int, low: int, high: int, counter: int = 0) -> int:
    """low <= value < high."""
    return low + int(uniform(key, counter) * (high - low))


SPARSE = 8  # a client with more than SPARSE times the rows needed is drawn by rejection, the others by shuffling


def slots(key: int, rows: int, count: int) -> list[int]:
    """`count` row numbers out of 0..rows-1: reshuffled epochs, one after the other, a batch may straddle two.

    Many more rows than needed: the first distinct ones of a stream, which is the same in law and cheaper.
    """
    if rows > SPARSE * count:
        distinct: dict[int, None] = {}
        counter = 0
        while len(distinct) < count:
            distinct[int(uniform(key, counter) * rows)] = None
            counter += 1
        return list(distinct)
    order: list[int] = []
    for epoch in range(-(-count // rows)):
        rank = [(bits(key, epoch * rows + row) >> 24, row) for row in range(rows)]
        order += [row for _, row in sorted(rank)]
    return order[:count]
