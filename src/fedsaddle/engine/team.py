"""The processes of one run in step: who computes, who writes, when all of them hand in their client states."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any

from torch import Tensor

from fedsaddle.contracts import Algorithm
from fedsaddle.engine.crew import Crew, worthwhile
from fedsaddle.engine.federation import EngineFederation
from fedsaddle.engine.ranks import Ranks
from fedsaddle.engine.training import Plan, Progress, Record, rounds

LONG = 10.0  # seconds of a round of which starting up is a small part
GO, SAVE, END = 0, 1, 2  # what the first process says after every round


class Team:
    """This process, the others of its run, and the workers that it may hire."""

    def __init__(self, algorithm: Algorithm, federation: EngineFederation, plan: Plan, workers: int | None) -> None:
        self.algorithm, self.federation, self.plan = algorithm, federation, plan
        self.engine: Any = federation.engine
        self.crew = Crew(workers)
        single = getattr(federation.answering, "single", False)
        if single or not hasattr(self.engine, "join") or self.engine.device.type != "cpu" or self.ranks.size > 1:
            self.crew.settled = True
        self.warm = False  # a round has been carried out
        self.known: Any = None  # the last report that was asked for

    @property
    def ranks(self) -> Ranks:
        found: Ranks = getattr(self.engine, "ranks", None) or Ranks()
        return found

    def __enter__(self) -> Team:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.crew.dismiss()
        if hasattr(self.engine, "ranks") and self.crew.hired:
            self.engine.ranks = Ranks()

    def gather(self, progress: Progress, record: Record | None = None) -> None:
        """Hire workers, if this is the time for it: at the start where they are wanted, or after a warm round."""
        crew, left = self.crew, self.plan.rounds - progress.round
        if crew.settled or left <= 0:
            return
        if crew.wanted is not None:
            self._hire(progress, crew.wanted, None)
        elif record and not record["skipped"] and not self.warm and record["seconds"] < LONG:
            self.warm = True
        elif record and not record["skipped"]:
            asked, seconds = max(ask["answered"] for ask in record["asks"]), record["seconds"]
            crew.settled = True
            if left * seconds > crew.worth and crew.size(asked) > 1:
                self._hire(progress, crew.size(asked), record)

    def _hire(self, progress: Progress, size: int, record: Record | None) -> None:
        def join(ranks: Ranks) -> bool:
            if record and not worthwhile(ranks, record["floats_up"] // max(1, record["answered"]), record["seconds"]):
                return False
            self.engine.join(ranks)
            return True

        def serve(ranks: Ranks) -> None:
            if join(ranks):
                self.follow(progress, from_start=False)

        if not join(self.crew.hire(size, serve)):
            self.crew.dismiss()

    def command(self, code: int) -> bool:
        """Whether the first process wants the states now; the others say GO and hear what it says."""
        return self._agreed(code) != GO

    def states(self) -> dict[str, Tensor]:
        """Of all clients. Every process takes part."""
        found: dict[str, Tensor] = self.engine.dump()
        return found

    def follow(self, progress: Progress, from_start: bool = True) -> Progress:
        """The whole run, in a process that is not the first."""
        if from_start and self.command(GO):
            self.states()
        for after, _ in rounds(self.algorithm, self.federation, progress, self.plan, None):
            progress, code = after, self._agreed(GO)
            if code != GO:
                self.states()
            if code == END:
                break
        return progress

    def _agreed(self, code: int) -> int:
        if self.ranks.size == 1 or (self.crew.hired and self.engine.states.stateless):
            return code  # workers without states are simply ended
        return int(self.ranks.largest(code))

    def recall(self, report: dict[str, Any]) -> None:
        """Take up what a run has found out about itself before it was stopped: what the first process knows of it."""
        if not hasattr(self.engine, "calibration"):
            return
        report = json.loads(self.ranks.of_the_first(json.dumps(report)))
        self.engine.calibration.load(report.get("works", {}))
        processes = report.get("processes")
        if isinstance(processes, int) and processes > 0 and self.crew.wanted is None and not self.crew.settled:
            self.crew.wanted, self.crew.settled = processes, processes == 1
        self.known = self.report()

    def report(self) -> dict[str, Any]:
        works = self.engine.calibration.report if hasattr(self.engine, "calibration") else {}
        return {"processes": self.ranks.size, "works": {name: dict(found) for name, found in works.items()}}

    def news(self) -> bool:
        """Whether the report has changed since it was looked at."""
        now = self.report()
        changed, self.known = now != self.known and bool(now["works"]), now
        return changed
