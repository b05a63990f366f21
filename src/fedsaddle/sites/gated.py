"""Two more ways to answer, both by an engine of this process: with the gate of the sites, and as a record says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fedsaddle.contracts import Point
from fedsaddle.engine.federation import PREPARATION, Ask, Replies, Simulated, restricted
from fedsaddle.engine.ledger import Size
from fedsaddle.maths.trees import map_leaves, named_leaves
from fedsaddle.participation.responses import Response
from fedsaddle.participation.selection import Selection
from fedsaddle.sites.admission import Admission, Gate, expected_of
from fedsaddle.sites.asking import Among, combined


class Gated:
    """A simulation whose replies pass the same gate as those of sites, one by one.

    All replies of a cohort are in memory at once, and one process computes them.
    """

    single = True

    def __init__(self, engine: Any, chain: tuple[Response, ...], admission: Admission, listed: int = 0) -> None:
        """listed: asks of at most so many clients are recorded with their numbers."""
        self.engine, self.plain, self.admission = engine, Simulated(engine, chain, listed), admission
        self.strikes: dict[int, int] = {}
        self.norms: dict[str, Any] = {}

    def among(self, select: Selection, round: int, number: int) -> Selection:
        aside = [client for client, count in self.strikes.items() if count >= self.admission.strikes]
        if not aside:
            return select
        everyone = torch.arange(self.engine.clients.count)
        return Among(select, everyone[~torch.isin(everyone, torch.tensor(aside))])

    def replies(self, ask: Ask) -> Replies:
        who, out, closed = self.plain.answers(ask)
        late, answering = len(out), torch.arange(len(ask.ids)) if who is None else who
        if not len(answering):
            return self.plain.replies(ask)
        asked = restricted(ask, answering)
        before = self.engine.states_of(asked.ids)
        outcome = self.engine.run(asked._replace(collect=("*",), summed=()))
        trees = [map_leaves(lambda leaf, row=row: leaf[row], outcome.each) for row in range(len(answering))]
        reasons = self._reasons(asked, trees)
        good = torch.tensor([not reason for reason in reasons])
        if not bool(good.all()):
            self.engine.put_back(asked.ids[~good], map_leaves(lambda leaf: leaf[~good.to(leaf.device)], before))
        refused = [{"node": f"client {int(client)}", "reason": reason}
                   for client, reason in zip(asked.ids, reasons, strict=True) if reason]
        who = answering[good]
        details = {**self.plain.details(ask, who, out), "refused": refused}
        if not len(who):
            return Replies(None, who, late, outcome.size, closed, details)
        kept = [tree for tree, reason in zip(trees, reasons, strict=True) if not reason]
        return Replies(combined(restricted(ask, who), kept), who, late, outcome.size, closed, details)

    def _reasons(self, ask: Ask, trees: Sequence[Any]) -> list[str]:
        oracle, name = self.engine.oracle, getattr(ask.work, "__name__", "work")
        gate = Gate(self.admission, lambda z: oracle.project(Point(*z)), dict(getattr(oracle.problem, "ranges", {})))
        gate.norms = self.norms  # the gate is new where the problem is; what it has seen stays
        expected, found = expected_of(ask.work, trees[0]), []
        for client, tree in zip(ask.ids.tolist(), trees, strict=True):
            reply = {field: leaf.cpu() for field, leaf in named_leaves(tree)}
            reason = gate.examine(name, reply, expected, int(self.engine.clients.run.size[client]))
            self.strikes[client] = self.strikes.get(client, 0) + 1 if reason else 0
            if not reason:
                gate.accepted(name, reply)
            found.append(reason)
        return found


class Recorded:
    """A simulation in which exactly those answer who answered in a run across sites."""

    single = True

    def __init__(self, engine: Any, records: Sequence[dict[str, Any]]) -> None:
        self.engine, self.rest = engine, Simulated(engine, ())
        self.records = {record["round"] - 1: record for record in records}

    def among(self, select: Selection, round: int, number: int) -> Selection:
        for ask in self.records[round]["asks"] if round in self.records else ():
            present = ask.get("present", {}).get(str(number))
            if present is not None:
                return Among(select, torch.tensor(present, dtype=torch.int64))
        return select

    def replies(self, ask: Ask) -> Replies:
        round, number = ask.address[1:]
        if round == PREPARATION:
            return self.rest.replies(ask)
        asks = self.records[round]["asks"]
        if number >= len(asks):  # nobody was there to be asked
            return Replies(None, torch.zeros(0, dtype=torch.int64), 0, Size(0, 0), 0.0)
        found = asks[number]
        if found["asked_clients"] != ask.ids.tolist():
            raise ValueError(f"round {round}: the record asked {found['asked_clients']}, here it is {ask.ids.tolist()}")
        who = torch.isin(ask.ids, torch.tensor(found["clients"])).nonzero().flatten()
        if found["answered"] == 0:
            return Replies(None, who[:0], 0, Size(0, 0), 0.0)
        outcome = self.engine.run(restricted(ask, who))
        return Replies(outcome, who, 0, outcome.size, 0.0)
