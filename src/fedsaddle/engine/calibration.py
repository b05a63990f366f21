"""Which way an ask is computed: chosen by trying, once, in the first rounds of a run, and kept from then on.

An ask is first answered eagerly, twice, and the second answer is timed: the first one warms up whatever there is,
unless it takes so long that this does not matter. If enough rounds are to come, the other ways are tried on the next
ask of the same work, results thrown away; a way whose preparation (tracing, compiling) would cost more than it can save
is not tried: compiling takes as long as the code is, which the trace tells, and another chunk as long as the one
before. Once a smaller chunk is plainly slower, still smaller ones are not tried. Where very many are asked, or each has
much to do, some of them tell enough; of very many, before an answer of all is given. The choice changes a result by
rounding only. It is told in words, goes into the run folder, and is taken up again by a resumed run, which is therefore
the same to the last bit.
"""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedsaddle.engine.devices import finished
from fedsaddle.engine.federation import Ask
from fedsaddle.engine.programs.bodies import COMPILED, EAGER, KINDS, TRACED
from fedsaddle.engine.programs.tracing import Untraceable
from fedsaddle.engine.ranks import Ranks

AUTO = "auto"
EXECUTIONS = (AUTO, *KINDS)
CHUNKS = {"cpu": (16, 4, 1), "cuda": ()}  # tried besides what memory allows; small ones keep weights in a CPU's cache
WORTH_TRACING, WORTH_COMPILING = 2.0, 25.0  # seconds still to come, at least,
WORTH = 3.0  # and so many times those of the preparation, of which a new way saves perhaps half
COMPILING = 0.04  # seconds for an operation: 0.04 to 0.05 by benchmarks/speed/compiling.py, beside some to begin with
REPEATS = 2
PLAINLY = 1.5  # times as long
SAMPLE, ENOUGH = 64, 2.0  # clients, or seconds of an eager answer, that are enough to tell
SURE = 5.0  # seconds of an answer, beside which it does not matter what is done for the first time
MANY = 512  # clients of one process, of whom a sample tells before all are answered


class Way(NamedTuple):
    """How the clients of an ask are computed."""

    kind: str  # eager, traced or compiled
    chunk: int  # clients at once


class Computer(Protocol):
    """What can be timed."""

    ranks: Ranks
    device: torch.device

    def automatic(self, ask: Ask) -> int: ...
    def compute(self, ask: Ask, share: Tensor, way: Way, keep: bool = True) -> Any: ...
    def operations(self, ask: Ask) -> int: ...


class Trial(NamedTuple):
    """A way tried; the slowest process counts."""

    seconds: float  # of all clients; infinite: it does not work
    preparation: float
    reason: str  # why it does not work here


class Calibration:
    """The ways of a run's works. execution and chunk: what the user has fixed."""

    def __init__(self, execution: str = AUTO, chunk: int | None = None) -> None:
        self.execution, self.chunk = execution, chunk
        self.rounds = 0  # still to come
        self.settled: dict[str, Way] = {}
        self.warm: set[str] = set()  # answered once
        self.seconds: dict[str, float] = {}  # of an eager answer
        self.report: dict[str, dict[str, Any]] = {}  # what was tried, for the run folder

    def way(self, computer: Computer, ask: Ask, share: Tensor) -> Way | None:
        """None: not known yet; answer eagerly and tell how long it took."""
        name = name_of(ask)
        if name not in self.settled:
            if self.execution != AUTO:
                self.settle(name, Way(self.execution, self._chunk(computer, ask)), "as the settings say")
            elif name in self.seconds or len(ask.ids) >= MANY * computer.ranks.size:
                self._try(computer, ask, share, name)
            else:
                return None
        return self.settled[name]

    def tell(self, computer: Computer, ask: Ask, seconds: float) -> None:
        """How long the eager answer took; the slowest process counts."""
        name, slowest = name_of(ask), computer.ranks.largest(seconds)
        if name in self.warm or slowest > SURE:
            self.seconds[name] = slowest
        self.warm.add(name)

    def settle(self, name: str, way: Way, why: str, **more: Any) -> None:
        self.settled[name] = way
        self.report[name] = {"kind": way.kind, "chunk": way.chunk, "why": why, **more}

    def give_up(self, ask: Ask, way: Way, error: Untraceable) -> Way:
        """The way does not work for this ask after all; the one that does."""
        self.settle(name_of(ask), Way(EAGER, way.chunk), f"{way.kind} does not work: {error}")
        return self.settled[name_of(ask)]

    def load(self, report: dict[str, dict[str, Any]]) -> None:
        """Take up what a run has found before."""
        for name, found in report.items() if isinstance(report, dict) else ():
            if not isinstance(found, dict):
                continue
            kind, chunk, why = found.get("kind"), found.get("chunk"), found.get("why")
            if kind in KINDS and isinstance(chunk, int) and chunk > 0 and isinstance(why, str):
                self.settle(name, Way(kind, chunk), why, **{k: found[k] for k in ("clients", "seconds") if k in found})

    def _chunk(self, computer: Computer, ask: Ask) -> int:
        return self.chunk or computer.automatic(ask)

    def _try(self, computer: Computer, ask: Ask, share: Tensor, name: str) -> None:
        """Time the ways that may be worth it on some of the clients; all processes come to the same end."""
        chunk = self._chunk(computer, ask)
        if name not in self.seconds:
            self.seconds[name] = self._trial(computer, ask, share, Way(EAGER, chunk)).seconds
        best, least = Way(EAGER, chunk), self.seconds[name]
        tried: dict[str, Any] = {}
        # A chunk is never filled up further than a share; the same number in every process, or they would part ways.
        most = power_of_two(-(-len(ask.ids) // computer.ranks.size))
        smaller = () if self.chunk else tuple(c for c in CHUNKS[computer.device.type] if c < min(chunk, most))
        for kind, worth in ((EAGER, WORTH_TRACING), (TRACED, WORTH_TRACING), (COMPILED, WORTH_COMPILING)):
            preparation = computer.ranks.largest(COMPILING * computer.operations(ask)) if kind == COMPILED else 0.0
            before = math.inf  # seconds of a larger chunk
            for candidate in (Way(kind, c) for c in (chunk, *(() if kind == EAGER else smaller))):
                if self.rounds * least < max(worth, WORTH * preparation):
                    continue
                seconds, preparation, reason = self._trial(computer, ask, share, candidate)
                if math.isinf(seconds):
                    tried[kind] = f"does not work: {reason or 'not in another process'}"
                    break
                tried[f"{kind} {candidate.chunk}"] = round(seconds, 6)
                if seconds > PLAINLY * before:
                    break
                before = seconds
                if kind == EAGER or seconds < least:
                    best, least = candidate, seconds
        self.settle(name, best, "quickest of those tried" if len(tried) > 1 else "too little to do to try others",
                    clients=len(share), seconds=tried)

    def _trial(self, computer: Computer, ask: Ask, share: Tensor, way: Way) -> Trial:
        """Time an answer of some, in full chunks where there are as many, after one that prepares it."""
        known = self.seconds.get(name_of(ask), 0.0)
        enough = min(SAMPLE, int(len(share) * ENOUGH / known)) if known else SAMPLE
        sample = share[: way.chunk * max(1, enough // way.chunk)]
        part = max(1, len(sample)) / max(1, len(share))
        seconds, preparation, reason = math.inf, 0.0, ""
        try:
            preparation = _seconds(computer, ask, sample, way)
            seconds = min(_seconds(computer, ask, sample, way) for _ in range(REPEATS))
        except Untraceable as error:
            reason = str(error)
        largest = computer.ranks.largest
        return Trial(largest(seconds / part), largest(preparation), reason)


def _seconds(computer: Computer, ask: Ask, share: Tensor, way: Way) -> float:
    finished(computer.device)
    began = time.perf_counter()
    computer.compute(ask, share, way, keep=False)
    finished(computer.device)
    return time.perf_counter() - began


def power_of_two(number: int) -> int:
    """The next one that is not smaller."""
    return 1 << (number - 1).bit_length()


def name_of(ask: Ask) -> str:
    """The same for all asks that one choice is made for."""
    work = getattr(ask.work, "__qualname__", type(ask.work).__name__)
    rows = " and all rows" if ask.draw.full else ""
    return f"{work}, {ask.draw.minibatches} minibatches{rows}"

