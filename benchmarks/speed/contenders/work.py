"""What the contenders share: the work, its rows, its first weights, the clock and the line they print. NumPy alone.

A contender is a script that gets one JSON object with the fields of `STANDARD` that differ, does the rounds and prints
one JSON line. Rows, first weights and the amount of work are the same for all of them; who is asked and in which order
a client's rows come is drawn by each for itself.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

STANDARD: dict[str, Any] = {
    "method": "fedavg", "model": "mlp", "hidden": 200, "clients": 500, "rows": 120, "cohort": 16, "steps": 12,
    "batch": 10, "lr": 0.1, "table": 60_000, "seed": 0, "device": "cpu",
    "warmup": 5, "rounds": 10,  # most rounds of each; fewer where the seconds below are used up
    "warmup_seconds": 60.0, "seconds": 20.0,
    "exact": False,  # all rounds whatever they take, and the loss at the end
    "previous": True,  # cdma-one: whether the gradient at z_{t-1} is computed, whose weight is 0 in this method
    "matmul": "default",  # precision of JAX
    "run": {},  # settings of FedSaddle's [run]
}
SHAPES = {"linear": (784,), "mlp": (784,), "lenet5": (1, 28, 28), "resnet20": (3, 32, 32)}
CLASSES, HELD = 10, 500  # rows at the beginning of the table on which the loss at the end is measured
GAMMA = 0.008  # DRFA's step of lambda
CHUNK_BYTES = {"cpu": 256 << 20, "cuda": 24 << 30}


def spec(given: str | None = None) -> SimpleNamespace:
    """The work, from the command line."""
    fields = json.loads(given or sys.argv[1])
    unknown = set(fields) - set(STANDARD)
    if unknown:
        raise SystemExit(f"unknown fields {sorted(unknown)}; known are {sorted(STANDARD)}")
    return SimpleNamespace(**{**STANDARD, **fields})


def table(work: SimpleNamespace) -> tuple[np.ndarray, np.ndarray]:
    """Normal inputs and random classes, written in place so that making them leaves no peak in memory."""
    draw = np.random.default_rng(work.seed)
    inputs = np.empty((work.table, *SHAPES[work.model]), np.float32)
    for part in np.array_split(inputs, max(1, work.table // 1000)):
        draw.standard_normal(dtype=np.float32, out=part)
    return inputs, draw.integers(0, CLASSES, work.table)


def starts(work: SimpleNamespace) -> np.ndarray:
    """The first row of every client; where the table is too small for all, clients share rows."""
    return np.arange(work.clients, dtype=np.int64) * work.rows % (work.table - work.rows + 1)


def layout(work: SimpleNamespace) -> list[tuple[str, tuple[int, ...]]]:
    """Kind and shape of every parameter, in the order of the PyTorch modules."""
    kind = work.model
    if kind == "lenet5":
        sizes = [(6, 1, 5, 5), (16, 6, 5, 5), (120, 256), (84, 120), (CLASSES, 84)]
        return [part for shape in sizes for part in (("weight", shape), ("bias", shape[:1]))]
    if kind == "resnet20":
        convolutions = [(16, 3, 3, 3)]
        for width, before in ((16, 16), (32, 16), (64, 32)):
            for block in range(3):
                convolutions += [(width, before if block == 0 else width, 3, 3), (width, width, 3, 3)]
        body = [part for shape in convolutions
                for part in (("weight", shape), ("scale", shape[:1]), ("bias", shape[:1]))]
        return [*body, ("weight", (CLASSES, 64)), ("bias", (CLASSES,))]
    sizes = [784, CLASSES] if kind == "linear" else [784, work.hidden, work.hidden, CLASSES]
    return [part for before, after in pairwise(sizes)
            for part in (("weight", (after, before)), ("bias", (after,)))]


def first_weights(work: SimpleNamespace) -> list[np.ndarray]:
    draw = np.random.default_rng(work.seed + 1)

    def one(kind: str, shape: tuple[int, ...]) -> np.ndarray:
        if kind != "weight":
            return np.full(shape, 1.0 if kind == "scale" else 0.0, np.float32)
        return (draw.standard_normal(shape) / prod(shape[1:]) ** 0.5).astype(np.float32)

    return [one(*part) for part in layout(work)]


def parameters(work: SimpleNamespace) -> int:
    return sum(prod(shape) for _, shape in layout(work))


def chunk(work: SimpleNamespace) -> int:
    """Clients that hand-written vectorised contenders compute at once: their rows and eight copies of their weights."""
    rows = (work.steps * work.batch + (work.rows if work.method == "cdma-one" else 0)) * prod(SHAPES[work.model])
    each = 4 * (4 * rows + 8 * parameters(work))
    return max(1, min(work.cohort, CHUNK_BYTES[work.device] // each))


LAP, SHORT = 20, 0.02  # rounds waited for together, where one takes less than so many seconds


class Laps:
    """Seconds a round, those of the warm-up apart."""

    def __init__(self, work: SimpleNamespace) -> None:
        self.work, self.warm, self.measured = work, [], []
        self.began = time.perf_counter()
        self.setup: float | None = None
        self.memory_before = resident()

    def start(self) -> None:
        """The rounds begin now."""
        self.setup = time.perf_counter() - self.began

    def add(self, seconds: float) -> bool:
        """A round is done. Whether it was the last one."""
        work = self.work
        if self.setup is None:
            self.setup = time.perf_counter() - self.began - seconds
        warmed = len(self.warm) >= work.warmup or (
            not work.exact and sum(self.warm) > work.warmup_seconds)
        (self.measured if warmed else self.warm).append(seconds)
        over = not work.exact and sum(self.measured) * self.lap() > work.seconds
        return bool(self.measured) and (len(self.measured) >= work.rounds or over)

    def run(self, one_round: Callable[[], Any], wait: Callable[[], Any] = lambda: None) -> None:
        """Rounds until there are enough. `wait`: for what the device has not done yet."""
        self.start()
        enough = False
        while not enough:
            lap, began = self.lap(), time.perf_counter()
            for _ in range(lap):
                one_round()
            wait()
            enough = self.add((time.perf_counter() - began) / lap)

    def lap(self) -> int:
        """Rounds measured together. On a GPU short rounds are queued behind each other, by everyone who can."""
        last = (self.measured or self.warm or [1.0])[-1]
        return LAP if self.work.device == "cuda" and not self.work.exact and last < SHORT else 1

    def report(self, versions: dict[str, str], loss: float | None = None, **more: Any) -> None:
        """The line that the driver reads."""
        most = [resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        print(json.dumps({
            "seconds": self.measured, "warmup": self.warm, "setup": self.setup, "loss": loss,
            "peak_mb": most[0], "children_peak_mb": most[1], "before_mb": self.memory_before,
            "versions": {"python": sys.version.split()[0], **versions}, **more,
        }), flush=True)


def resident() -> float:
    """Megabytes of this process that are in memory now."""
    with contextlib.suppress(OSError), open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20
    return 0.0
