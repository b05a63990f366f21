"""The wire: everything that a transport between the coordinator and the sites has to do.

Who is there; send one ask to these nodes; replies as they come; give up on the rest. Contents are bytes that only the
coordinator and the workers understand (`parcels`). Flower and NVFlare are adapters; a test has one in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Parcel(NamedTuple):
    """One ask to one node."""

    node: str
    ticket: str  # names this ask to this node; its answer carries it
    content: bytes
    seconds: float  # nobody waits for the answer after that; the transport may forget it


class Delivery(NamedTuple):
    """The answer to a parcel: content, or the reason why there is none."""

    node: str
    ticket: str
    content: bytes = b""
    error: str = ""


class TransportFailed(RuntimeError):
    """A transport cannot be started, or ended for a reason that trying again does not mend. The text says which."""


class WireLost(RuntimeError):
    """The transport is gone. What was aggregated is in the checkpoint; the run can go on with a new wire."""


class Wire(Protocol):
    """Used by one thread."""

    def nodes(self) -> list[str]:
        """Who is there now: identities that stay the same when a node or its machine starts again."""

    def send(self, parcels: Sequence[Parcel]) -> None: ...

    def receive(self, seconds: float) -> list[Delivery]:
        """Answers that have come, of any parcel ever sent, each once. Waits so long for the first; [] if none came."""

    def give_up(self, tickets: Sequence[str]) -> None:
        """Nobody uses the answers to these any more. They are delivered all the same, if they still come: the node is
        free again then."""

    def close(self) -> None: ...
