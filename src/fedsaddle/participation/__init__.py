"""Participation = who can be asked (one selection) + who answers (a chain of responses). Registries of both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fedsaddle.participation.responses import Deadline, DropOuts, Everyone, FirstResponders, Latencies, Response
from fedsaddle.participation.selection import Cyclic, Selection, Trace, Uniform, Weighted

SELECTIONS: dict[str, type] = {
    "uniform": Uniform,
    "weighted": Weighted,
    "cyclic": Cyclic,
    "trace": Trace,
}
RESPONSES: dict[str, type] = {
    "everyone": Everyone,
    "drop-outs": DropOuts,
    "latencies": Latencies,
    "first-responders": FirstResponders,
    "deadline": Deadline,
}


@dataclass(frozen=True)
class Participation:
    """Any selection with any chain of responses, in the order in which they apply."""

    select: Selection = field(default_factory=Uniform)
    respond: tuple[Response, ...] = ()


def as_participation(*parts: Any) -> Participation:
    """A participation from its parts: a selection, responses, or a Participation as it is."""
    if len(parts) == 1 and isinstance(parts[0], Participation):
        return parts[0]
    selections = [part for part in parts if hasattr(part, "pool")]
    if len(selections) > 1:
        raise ValueError(f"participation: {len(selections)} selections {selections}; give one")
    responses = tuple(part for part in parts if not hasattr(part, "pool"))
    return Participation(selections[0] if selections else Uniform(), responses)
