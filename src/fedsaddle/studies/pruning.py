"""When a run of a search is given up: its best value so far is worse than the median of the others' at that round.

What the others have measured is read from their folders, so it does not matter which process carries them out, nor
whether they ran in this search or before it was resumed.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsaddle.studies.curves import looks


@dataclass(frozen=True)
class Pruning:
    """The median rule."""

    trials: str  # the folder under which all trials lie
    measure: str  # set and name
    higher: bool = True
    after: int = 1  # rounds in which nothing is given up
    least: int = 4  # others that must have come as far

    def hopeless(self, folder: Path, record: dict[str, Any]) -> str:
        """Why the run in this folder is not worth going on with after this record; empty: it is."""
        if record["round"] < self.after:
            return ""
        own = self._best(folder, record["round"])
        others = [self._best(path.parent, record["round"]) for path in Path(self.trials).rglob("records.jsonl")
                  if path.parent != folder]
        known = [value for value in others if not math.isnan(value)]
        if math.isnan(own) or len(known) < self.least:
            return ""
        median = statistics.median(known)
        if (own < median) if self.higher else (own > median):
            return f"{self.measure} {own:.4g} after round {record['round']}: worse than the median {median:.4g}"
        return ""

    def _best(self, folder: Path, round: int) -> float:
        """The best value until this round; nan where the run has not come as far."""
        found = looks(_evaluations(folder), self.measure, 1)
        if not found or found[-1].round < round:
            return math.nan
        values = [look.value for look in found if look.round <= round and not math.isnan(look.value)]
        return (max if self.higher else min)(values) if values else math.nan


def _evaluations(folder: Path) -> list[dict[str, Any]]:
    """Records with measures; the others, ten times as many, are not worth parsing for every run and evaluation."""
    path = folder / "records.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines if '"measures"' in line]
