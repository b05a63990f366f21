"""A site: bytes of an ask in, bytes of an answer out. It holds the data, the problem and the client's state.

The server says from which state an ask starts and under which name the new one is kept, so a state advances only when
the server used the reply: the next ask names it. States of the last checkpoint, of the last ask and the new one lie on
the site's disk, and survive whatever process dies. Errors are answered in words of our own: no traceback, no data.
"""

from __future__ import annotations

import json
import logging
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsaddle.contracts import Algorithm, Draw, Point, Problem
from fedsaddle.data.clients import Clients, Run
from fedsaddle.engine.devices import placed
from fedsaddle.engine.federation import Ask
from fedsaddle.engine.simulation import Simulation
from fedsaddle.maths.trees import leaves, map_leaves, named_leaves
from fedsaddle.sites import works
from fedsaddle.sites.forms import built
from fedsaddle.sites.parcels import Unreadable, packed, unpacked
from fedsaddle.sites.policy import Policy, Refused, enough_rows, over, permit
from fedsaddle.sites.store import Store, Token
from fedsaddle.version import __version__

LIMIT = 4 << 30  # bytes of an ask
MINIBATCHES = 100_000  # of an ask
CLIENTS = 10**6  # of a run across sites, at most: a number costs memory
LONGEST = 64  # characters of a name that an answer repeats
log = logging.getLogger(__name__)


class Posed(NamedTuple):
    """A run as a site sees it."""

    algorithm: Algorithm
    problem: Problem
    batch_size: int
    dtype: torch.dtype
    execution: str
    rounds: int


# settings as tables, label of the method, number of classes, constants of the problem, the site's clients
Pose = Callable[[dict[str, Any], str, int, dict[str, float], Clients], Posed]


class Ready(NamedTuple):
    """A run with its data on the device."""

    posed: Posed
    engine: Simulation
    first: Any  # the state of a client never visited


class Site:
    """Answers asks, one at a time."""

    def __init__(self, name: str, clients: Clients, folder: Path, pose: Pose, policy: Policy | None = None,
                 group: int | None = None, device: str = "cpu") -> None:
        """clients: the site's rows, as those of a single client."""
        self.name, self.clients, self.pose, self.policy = name, clients, pose, policy or Policy()
        self.group, self.device = group, device
        self.store = Store(folder)
        self.ready: dict[str, Ready] = {}

    def answer(self, content: bytes) -> bytes:
        """Whatever the bytes are, there is an answer."""
        header: dict[str, Any] = {}
        try:
            header, sent = unpacked(content, LIMIT)
            if header.get("kind") == "hello":
                return packed(self._hello(header), {})
            return self._asked(header, sent)
        except Refused as refusal:
            log.warning("refused: %s", refusal)
            return _error(header, str(refusal), refused=True)
        except Unreadable as error:
            log.warning("unreadable: %s", error)
            return _error(header, f"the ask cannot be read: {error}")
        except Exception as error:  # its text may quote data: it stays here
            log.exception("an ask failed")
            return _error(header, f"the site failed with {type(error).__name__}; its own log says more")

    def _hello(self, header: dict[str, Any]) -> dict[str, Any]:
        inputs, targets = self.clients.inputs, self.clients.targets
        return {
            "kind": "hello", "number": header.get("number"), "name": self.name, "group": self.group,
            "version": __version__, "rows": len(targets), "shape": list(inputs.shape[1:]),
            "dtype": _plain(inputs.dtype), "targets": [list(targets.shape[1:]), _plain(targets.dtype)],
        }

    def _asked(self, header: dict[str, Any], sent: dict[str, Tensor]) -> bytes:
        began = time.perf_counter()
        tables, label, round = tomllib.loads(header["settings"]), header["label"], int(header["round"])
        permit(self.policy, _name(tables, label), _of(tables, "problem", "auc"),
               _of(tables, "model", "") if "model" in tables else None, round)
        enough_rows(self.policy, self.clients.targets)
        if not self.store.newer(str(header["session"]), int(header["number"])):
            raise Refused("the ask was answered before: it is a replay")
        client = int(header["client"])
        if not 0 <= client < CLIENTS:
            raise Refused("the ask names a client that there cannot be")
        counted = self.store.counted(str(header["run"]), round, int(header["ask"]), header["work"] in works.SHARED)
        if self.policy.max_rounds is not None and counted > self.policy.max_rounds:
            raise Refused(over(self.policy))  # whatever number the server gives to a round
        run = self._ready(header)
        work = works.found(str(header["work"]), run.posed.algorithm, run.posed.problem)
        if work is None:
            raise Refused("the run has no such work")
        message = built(header["form"], sent, {type(part).__module__ for part in run.posed[:2]})
        reply, state = self._run(run, _ask(work, message, header, client), header)
        if leaves(run.first):
            self.store.write(str(header["run"]), Token(*header["new"]), state)
        if round >= 0:  # a server that starts again has yet to say what it keeps
            kept = [Token(*header[name]) for name in ("state", "stands", "keep", "new")]
            self.store.keep_only(str(header["run"]), kept)
        answer = {
            "kind": "reply", **{name: header[name] for name in ("run", "session", "number", "round", "ask", "client")},
            "rows": len(self.clients.targets), "seconds": time.perf_counter() - began,
        }
        return packed(answer, reply)

    def _run(self, run: Ready, ask: Ask, header: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The reply, leaf by leaf, and the new state. Nothing is kept between two asks but on the disk."""
        engine, start = run.engine, Token(*header["state"])
        engine.open(run.first)
        if leaves(run.first) and start != Token():
            found = self.store.read(str(header["run"]), start)
            if found is None:
                raise Refused("the site has lost the state that the ask starts from")
            engine.load({"ids": ask.ids, **{name: leaf[None] for name, leaf in found.items()}})
        engine.expect(max(1, run.posed.rounds - ask.address[1]))
        reply = map_leaves(lambda leaf: leaf[0].cpu(), engine.run(ask).each)
        engine.commit()
        state = engine.dump() if leaves(run.first) else {}
        return dict(named_leaves(reply)), {name: leaf[0] for name, leaf in state.items() if name != "ids"}

    def _ready(self, header: dict[str, Any]) -> Ready:
        key = json.dumps([header[name] for name in ("settings", "label", "classes", "constants", "client")],
                         sort_keys=True)
        if key not in self.ready:
            constants = {str(name): float(value) for name, value in header["constants"].items()}
            tables = _alone(tomllib.loads(header["settings"]), header["label"])
            posed = self.pose(tables, header["label"], int(header["classes"]), constants, self.clients)
            clients = self.clients
            strata = getattr(posed.problem, "strata", ())
            if strata:
                clients = clients.stratified(strata)
            numbered = numbered_as(clients.to(self.device, posed.dtype), int(header["client"]))
            posed = posed._replace(problem=placed(posed.problem, torch.device(self.device)))
            engine = Simulation(posed.problem, numbered, posed.batch_size, posed.dtype, None, posed.execution)
            z = Point(*(part.detach().to(self.device, posed.dtype) for part in posed.problem.first()))
            first_client = getattr(posed.algorithm, "first_client", None)
            self.ready = {key: Ready(posed, engine, first_client(z) if first_client else ())}  # one run at a time
        return self.ready[key]


def numbered_as(clients: Clients, number: int) -> Clients:
    """A single client under the number that it has in the run, by which its draws are keyed; those before are empty."""

    def behind(run: Run) -> Run:
        return Run(*(torch.cat([part.new_zeros(number), part]) for part in run))

    return Clients(clients.inputs, clients.targets, behind(clients.run), tuple(behind(run) for run in clients.strata))


def _ask(work: Any, message: Any, header: dict[str, Any], client: int) -> Ask:
    minibatches, full, inputs = header["draw"]
    if not 0 <= int(minibatches) <= MINIBATCHES:
        raise Refused(f"the ask wants more than {MINIBATCHES} minibatches")
    one = torch.ones(1, dtype=torch.float64)
    seed, round, number = (int(part) for part in header["address"])
    return Ask(work, message, (), ("*",), (), torch.tensor([client]), one, one,
               Draw(int(minibatches), bool(full), bool(inputs)), (seed, round, number))


def _error(header: dict[str, Any], reason: str, refused: bool = False) -> bytes:
    known = {name: header[name] for name in ("run", "session", "number", "round", "ask", "client")
             if isinstance(header.get(name), str | int) and len(str(header[name])) <= LONGEST}
    return packed({"kind": "refused" if refused else "error", **known, "reason": reason}, {})


def _name(tables: dict[str, Any], label: str) -> str:
    section = tables.get("algorithms", {}).get(label) if label else tables.get("algorithm")
    return str(section.get("name")) if isinstance(section, dict) else str(section)


def _alone(tables: dict[str, Any], label: str) -> dict[str, Any]:
    """Without the run's other methods: the policy was not asked about them, so nothing of theirs is looked up."""
    return {**tables, "algorithms": {label: tables["algorithms"][label]}} if label else tables


def _of(tables: dict[str, Any], section: str, usual: str) -> str:
    found = tables.get(section, usual)
    return str(found.get("name")) if isinstance(found, dict) else str(found)


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
