"""An ask on its way: who can be asked, how many replies are enough, what they must look like, what they add up to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsaddle.contracts import Problem, SettingError
from fedsaddle.data.clients import Clients
from fedsaddle.engine.federation import Ask, Outcome, restricted
from fedsaddle.engine.ledger import Size, size_of
from fedsaddle.engine.ranks import Ranks
from fedsaddle.engine.simulation import Simulation
from fedsaddle.engine.sums import Sums, reduced
from fedsaddle.maths.trees import map_leaves
from fedsaddle.participation.responses import Deadline, Everyone, FirstResponders, Moment, Response
from fedsaddle.participation.selection import Population, Selection
from fedsaddle.sites.admission import Expected, expected_of
from fedsaddle.sites.forms import form_of, leaves_of
from fedsaddle.sites.parcels import Unreadable, unpacked
from fedsaddle.sites.roster import Patience


@dataclass(frozen=True)
class Among:
    """A selection restricted to the clients that can be asked now."""

    select: Selection
    present: Tensor  # ascending

    @property
    def cycle(self) -> int:
        return self.select.cycle

    @property
    def replace(self) -> bool:
        return self.select.replace

    def pool(self, round: int, population: Population) -> range | Tensor:
        pool = self.select.pool(round, population)
        if len(self.present) == population.clients:
            return pool
        ids = torch.arange(pool.start, pool.stop) if isinstance(pool, range) else pool
        return ids[torch.isin(ids, self.present)]

    def weights(self, population: Population) -> Tensor | None:
        return self.select.weights(population)


class SitesFailed(RuntimeError):
    """The run cannot begin or go on. The text names the nodes and the remedy."""


class Open(NamedTuple):
    """An ask to a node that has not been answered."""

    client: int
    sent: float
    until: float


class Identity(NamedTuple):
    """Of a run, for its sites."""

    run: str
    label: str
    settings: str  # a whole settings file
    classes: int


class Trial(NamedTuple):
    """What is known of an ask before it is sent."""

    message: Any  # the form of one client's message
    reply: Any  # a reply, of which nothing is used but its form
    expected: Expected

    @property
    def size(self) -> Size:
        return size_of(self.reply)


class Trials:
    """Works tried out on rows that say nothing: so the server knows what replies must look like."""

    def __init__(self, problem: Problem, sample: Clients, batch_size: int, dtype: torch.dtype) -> None:
        self.problem, self.sample, self.batch_size, self.dtype = problem, sample, batch_size, dtype
        self.known: dict[Any, Trial] = {}

    def of(self, name: str, ask: Ask, first_client: Any) -> Trial:
        key = name, ask.draw, tuple((field, tuple(leaf.shape)[field.split(".")[0] in ask.personal:])
                                    for field, leaf in leaves_of(ask.message).items())
        if key not in self.known:
            engine = Simulation(self.problem, self.sample, self.batch_size, self.dtype, None, "eager")
            engine.open(first_client)
            nobody, one = torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.float64)
            trial = restricted(ask, nobody)._replace(ids=nobody, collect=("*",), summed=(), weight=one, objective=one)
            reply = map_leaves(lambda leaf: leaf[0], engine.run(trial).each)
            self.known[key] = Trial(form_of(message_of(ask, 0)), reply, expected_of(ask.work, reply))
        return self.known[key]


class Opened(NamedTuple):
    """An answer as it was read."""

    reason: str  # why it is refused; "" where it is not
    bad: bool  # whether that is the node's doing
    reply: dict[str, Tensor]  # leaf by leaf
    seconds: float = 0.0  # of work, as the node says


def opened(content: bytes, limit: int, mine: dict[str, Any], rows: int) -> Opened:
    """An answer to the ask of which `mine` tells run, session, number, round, ask and client. rows: of the node."""
    try:
        header, reply = unpacked(content, limit)
    except Unreadable as error:
        return Opened(f"the reply cannot be read: {error}", True, {})
    if header.get("kind") in ("error", "refused"):
        return Opened(printable(str(header.get("reason", ""))) or "an error without a reason", False, {})
    if header.get("kind") != "reply":
        return Opened("it is no reply", True, {})
    for field, value in mine.items():
        if header.get(field) != value:
            return Opened(f"it belongs to another {field}", True, {})
    claimed, seconds = header.get("rows"), header.get("seconds")
    if not isinstance(claimed, int) or isinstance(claimed, bool) or claimed != rows:
        return Opened(f"it claims {str(claimed)[:20]} rows, where the node has {rows}", True, {})
    return Opened("", False, reply, seconds if isinstance(seconds, float) and 0 <= seconds < 1e9 else 0.0)


def printable(text: str) -> str:
    """What a site said, fit for a terminal and a record."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:200])


def message_of(ask: Ask, position: int) -> Any:
    """What the client at this position is sent."""
    own = {field: map_leaves(lambda leaf: leaf[position], getattr(ask.message, field)) for field in ask.personal}
    return ask.message._replace(**own) if own else ask.message


def combined(ask: Ask, replies: list[Any]) -> Outcome:
    """Replies of the clients of an ask, in its order, as a federation wants them."""
    stacked = map_leaves(lambda *leaf: torch.stack(leaf), *replies)
    everyone = torch.arange(len(replies))
    sums = Sums(ask)
    total = float(ask.weight.sum())
    mean = ask.weight / total if total > 0 else ask.weight
    sums.add(everyone, reduced(ask, stacked, _as(mean, replies[0]), _as(ask.objective, replies[0])),
             size_of(replies[0]))
    return sums.outcome(Ranks(), [everyone])


def _as(weights: Tensor, reply: Any) -> Tensor:
    """In the precision of the reply's numbers."""
    floats = [leaf.dtype for leaf in leaves_of(reply).values() if leaf.is_floating_point()]
    return weights.to(floats[0]) if floats else weights


def waiting(respond: tuple[Response, ...], patience: Patience) -> tuple[Callable[[Ask], int], float]:
    """How many replies of an ask are waited for, and how long: the participation's responses on real nodes."""
    deadline, first = patience.deadline, None
    for response in respond:
        if isinstance(response, Deadline):
            deadline = response.seconds
        elif isinstance(response, FirstResponders):
            first = response
        elif not isinstance(response, Everyone):
            raise SettingError(f"participation.respond = {type(response).__name__}: belongs to simulations; real nodes "
                               "answer when they do. Leave it out, or choose first-responders or deadline")

    def enough(ask: Ask) -> int:
        return len(ask.ids) if first is None else first.enough(len(ask.ids), Moment(*ask.address))

    return enough, deadline
