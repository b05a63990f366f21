"""The coordinator: asks the sites over a wire, uses the first enough good replies, and says which states stand.

It is to a federation what an engine is in simulation. Everything here is transport-neutral.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from fedsaddle.contracts import Algorithm, Problem
from fedsaddle.data.clients import Clients
from fedsaddle.engine.federation import PREPARATION, Ask, Outcome, Replies, restricted
from fedsaddle.engine.oracle import ProblemOracle
from fedsaddle.maths.trees import fill
from fedsaddle.participation.responses import Response
from fedsaddle.participation.selection import Selection
from fedsaddle.sites import asking, works
from fedsaddle.sites.admission import Admission, Expected, Gate
from fedsaddle.sites.asking import Among, Identity, Open, SitesFailed, Trials, combined, message_of, waiting
from fedsaddle.sites.forms import leaves_of
from fedsaddle.sites.parcels import packed
from fedsaddle.sites.roster import Member, Patience, Watched
from fedsaddle.sites.standing import Standing
from fedsaddle.sites.store import Token
from fedsaddle.sites.wire import Delivery, Parcel, Wire

GRACE = 30.0  # seconds after which an answer that the transport owes us is given up
TURN = 0.5  # seconds that are waited at once
Say = Callable[[str], None]


class Coordinator:
    """An Engine and an Answering over a wire."""

    def __init__(self, wire: Wire, members: Sequence[Member], identity: Identity, algorithm: Algorithm,
                 problem: Problem, sample: Clients, batch_size: int, dtype: torch.dtype,
                 respond: tuple[Response, ...] = (), patience: Patience | None = None,
                 admission: Admission | None = None, say: Say = lambda text: None) -> None:
        """sample: a client with rows of the sites' shape, of which nothing is used but shapes."""
        self.wire, self.members, self.identity, self.algorithm = wire, list(members), identity, algorithm
        self.sample, self.batch_size, self.dtype, self.device = sample, batch_size, dtype, torch.device("cpu")
        self.patience, self.admission, self.say = patience or Patience(), admission or Admission(), say
        self.enough, self.deadline = waiting(respond, self.patience)
        self.session = random.SystemRandom().randrange(1 << 31)
        self.number = 0
        self.client_of = {member.node: client for client, member in enumerate(self.members)}
        self.watched = [Watched(member.name) for member in self.members]
        self.open_asks: dict[str, Open] = {}  # by ticket
        self.came_late: list[int] = []  # whose answers came after their ask, since the last ask
        self.strangers: set[str] = set()  # nodes of nobody
        self.drawn: dict[str, list[int]] = {}  # who could be asked for cohorts since the last ask, if not everyone
        self.preparing = True  # until the first round: everyone must answer
        self.pose(problem)
        self.open(())

    # What the federation sees of an engine.

    def pose(self, problem: Problem) -> None:
        self.problem, self.oracle = problem, ProblemOracle(problem)
        self.gate = Gate(self.admission, self.oracle.project, dict(getattr(problem, "ranges", {})))
        self.trials = Trials(problem, self.sample, self.batch_size, self.dtype)

    def open(self, first_client: Any) -> None:
        self.first, self.standing = first_client, Standing()

    def alone(self) -> AbstractContextManager[None]:
        return nullcontext()

    def expect(self, rounds: int) -> None:
        self.preparing = False

    def run(self, ask: Ask) -> Outcome:
        found = self.replies(ask)
        if found.outcome is None:
            raise SitesFailed("no site answered")
        return found.outcome

    def commit(self) -> None:
        self.standing.commit()

    def rollback(self) -> None:
        self.standing.rollback()
        self.drawn = {}

    def dump(self) -> dict[str, Tensor]:
        return self.standing.dump()

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.standing.load(tensors)

    # Who can be asked.

    def among(self, select: Selection, round: int, number: int) -> Selection:
        self._late(self.wire.receive(0.0))  # whoever answered a moment too late is free again
        present = self.present()
        left = [watched for watched in self.watched if watched.strikes < self.admission.strikes]
        if not left:
            raise SitesFailed("every node has been set aside for bad replies; look at the reasons in the records, and "
                              "start the server again once they are mended")
        until = time.monotonic() + self.deadline
        while len(present) < min(self.patience.at_least, len(left)) and time.monotonic() < until:
            self._late(self.wire.receive(TURN))
            present = self.present()
        if len(present) < len(self.members):
            self.drawn[str(number)] = present
        return Among(select, torch.tensor(present, dtype=torch.int64))

    def present(self) -> list[int]:
        """Clients whose node is there, owes no answer and was not set aside."""
        now = time.monotonic()
        for ticket, one in list(self.open_asks.items()):
            if now > one.until + GRACE:
                del self.open_asks[ticket]
        busy = {one.client for one in self.open_asks.values()}
        there = set()
        for node in self.wire.nodes():
            if node in self.client_of:
                there.add(self.client_of[node])
            elif node not in self.strangers:
                self.strangers.add(node)
                self.say(f"node {node} is not one of this run's: it is not asked")
        found = []
        for client, watched in enumerate(self.watched):
            aside = watched.strikes >= self.admission.strikes
            watched.state = "set aside" if aside else "away" if client not in there else \
                "slow" if client in busy else "free"
            if watched.state == "free":
                found.append(client)
        return found

    # An ask.

    def replies(self, ask: Ask) -> Replies:
        began = time.monotonic()
        name = works.name_of(ask.work, self.algorithm, self.problem)
        trial = self.trials.of(name, ask, self.first)
        first = self.preparing and ask.address[1] == PREPARATION
        able = set(range(len(self.members))) if first else set(self.present())
        tickets = self._send(ask, name, trial.message, able, self.patience.start_seconds if first else self.deadline)
        wanted = len(tickets) if ask.address[1] == PREPARATION else self.enough(ask)
        good, refused = self._gather(ask, name, trial.expected, tickets, wanted, first)
        late, self.came_late = self.came_late, []
        details = {"clients": [int(ask.ids[at]) for at in sorted(good)], "asked_clients": ask.ids.tolist(),
                   "late_clients": late, "present": self.drawn, "refused": refused,
                   "work_seconds": max((self.watched[int(ask.ids[at])].work for at in good), default=0.0)}
        self.drawn = {}
        if first and len(good) < len(ask.ids):
            silent = [self.members[int(client)].name for at, client in enumerate(ask.ids) if at not in good]
            raise SitesFailed(f"{', '.join(silent)} did not answer before the first round"
                              + (f" ({refused[0]['reason']})" if refused else "") + "; every node must, once")
        size, seconds = trial.size, time.monotonic() - began
        if len(good) < min(self.patience.at_least, len(ask.ids)):
            return Replies(None, torch.tensor(sorted(good), dtype=torch.int64)[:0], len(late), size, seconds,
                           details)
        who = torch.tensor(sorted(good), dtype=torch.int64)
        for at in good:
            client = int(ask.ids[at])
            self.standing.pending[client] = self._token(ask)
            self.gate.accepted(name, good[at])
        trees = [fill(trial.reply, good[at]) for at in sorted(good)]
        outcome = combined(restricted(ask, who), trees)
        return Replies(outcome, who, len(late), size, seconds, details)

    def _send(self, ask: Ask, name: str, form: Any, able: set[int], seconds: float) -> dict[str, int]:
        """Parcels to those of the cohort that can be asked; the positions of their tickets."""
        parcels, tickets = [], {}
        now = time.monotonic()
        for at, client in enumerate(ask.ids.tolist()):
            if client not in able:
                continue
            self.number += 1
            ticket = f"{self.session:x}-{self.number}"
            content = packed(self._header(ask, name, form, client), leaves_of(message_of(ask, at)))
            member = self.members[client]
            parcels.append(Parcel(member.node, ticket, content, seconds))
            self.open_asks[ticket] = Open(client, now, now + seconds)
            self.watched[client].state = "asked"
            self.watched[client].bytes_down += len(content)
            tickets[ticket] = at
        self.wire.send(parcels)
        return tickets

    def _header(self, ask: Ask, name: str, form: Any, client: int) -> dict[str, Any]:
        constants: dict[str, float] = getattr(self.problem, "constants", dict)()
        return {
            "kind": "ask", "run": self.identity.run, "label": self.identity.label, "settings": self.identity.settings,
            "classes": self.identity.classes, "constants": constants, "session": f"{self.session:x}",
            "number": self.number, "client": client, "round": ask.address[1], "ask": ask.address[2],
            "address": list(ask.address), "work": name, "form": form, "draw": list(ask.draw),
            **self.standing.of(client), "new": self._token(ask),
        }

    def _token(self, ask: Ask) -> Token:
        return Token(ask.address[1], ask.address[2], self.session)

    def _gather(
        self, ask: Ask, name: str, expected: Expected, tickets: dict[str, int], wanted: int, first: bool,
    ) -> tuple[dict[int, dict[str, Tensor]], list[dict[str, str]]]:
        """Good replies by position, and refused ones by name and reason."""
        good: dict[int, dict[str, Tensor]] = {}
        refused: list[dict[str, str]] = []
        waiting_for = set(tickets)
        until = time.monotonic() + (self.patience.start_seconds if first else self.deadline)
        while waiting_for and len(good) < wanted and time.monotonic() < until:
            arrived = self.wire.receive(min(TURN, max(0.0, until - time.monotonic())))
            for at, delivery in enumerate(arrived):
                one = self.open_asks.get(delivery.ticket)
                if one and delivery.node != self.members[one.client].node:  # whoever was asked may still answer
                    refused.append(self._foreign(delivery))
                    continue
                if delivery.ticket not in waiting_for:
                    self._late([delivery])
                    continue
                if len(good) >= wanted:  # came in the same breath, and is not needed
                    waiting_for -= {one.ticket for one in arrived[at:]}
                    self._late(arrived[at:])
                    break
                waiting_for.discard(delivery.ticket)
                position = tickets[delivery.ticket]
                one = self.open_asks.pop(delivery.ticket)
                reply, reason = self._read(delivery, ask, name, expected, one, int(delivery.ticket.split("-")[1]))
                if reason:
                    refused.append({"node": self.members[one.client].name, "reason": reason})
                else:
                    good[position] = reply
        self.wire.give_up(sorted(waiting_for))
        for ticket in waiting_for:
            self.watched[self.open_asks[ticket].client].state = "slow"
        return good, refused

    def _read(
        self, delivery: Delivery, ask: Ask, name: str, expected: Expected, one: Open, number: int,
    ) -> tuple[dict[str, Tensor], str]:
        """The reply, and why it is refused ("" where it is not)."""
        watched, member = self.watched[one.client], self.members[one.client]
        watched.heard(time.monotonic() - one.sent, len(delivery.content))
        reply: dict[str, Tensor] = {}
        bad = True  # whether it is the node's doing
        if delivery.error:
            reason, bad = asking.printable(delivery.error), False
        else:
            reason, reply, bad = self._examined(delivery.content, ask, name, expected, member, number, one.client)
        if reason:
            watched.refused += 1
            watched.strikes += bad
            watched.last_reason = reason
            when = "before the first round" if ask.address[1] == PREPARATION else f"round {ask.address[1] + 1}"
            self.say(f"{when}: {member.name}: {reason}")
            if bad and watched.strikes == self.admission.strikes:
                self.say(f"{member.name} is set aside after {watched.strikes} bad replies in a row")
        else:
            watched.answered += 1
            watched.strikes = 0
        watched.state = "free"
        return reply, reason

    def _foreign(self, delivery: Delivery) -> dict[str, str]:
        """An answer from a node that was not asked: a strike for whoever sent it, and nothing else."""
        sender, reason = self.client_of.get(delivery.node), "it answered what another node was asked"
        if sender is not None:
            self.watched[sender].refused += 1
            self.watched[sender].strikes += 1
            self.watched[sender].last_reason = reason
        name = self.members[sender].name if sender is not None else asking.printable(delivery.node)
        self.say(f"{name}: {reason}")
        return {"node": name, "reason": reason}

    def _examined(
        self, content: bytes, ask: Ask, name: str, expected: Expected, member: Member, number: int, client: int,
    ) -> tuple[str, dict[str, Tensor], bool]:
        """Why it is refused, the reply, and whether it is the node's doing."""
        mine = {"run": self.identity.run, "session": f"{self.session:x}", "number": number, "round": ask.address[1],
                "ask": ask.address[2], "client": client}
        found = asking.opened(content, self.admission.mib << 20, mine, member.rows)
        self.watched[client].work = found.seconds
        if found.reason:
            return found.reason, {}, found.bad
        return self.gate.examine(name, found.reply, expected, member.rows), found.reply, True

    def _late(self, deliveries: Sequence[Delivery]) -> None:
        """Answers that nobody waits for any more: their nodes are free again."""
        for delivery in deliveries:
            one = self.open_asks.pop(delivery.ticket, None)
            if one is not None:
                watched = self.watched[one.client]
                watched.heard(time.monotonic() - one.sent, len(delivery.content))
                if delivery.error:
                    watched.last_reason = asking.printable(delivery.error)
                    self.say(f"{watched.name}: {watched.last_reason}")
                else:
                    watched.late += 1
                    self.came_late.append(one.client)
