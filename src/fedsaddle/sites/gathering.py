"""Before a run begins: waiting for the nodes, and hearing who they are."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from fedsaddle.sites.parcels import Unreadable, packed, unpacked
from fedsaddle.sites.roster import BadHello, Member, introduced
from fedsaddle.sites.wire import Parcel, Wire
from fedsaddle.version import __version__

AGAIN = 30.0  # seconds after which a silent node is asked once more
TURN = 0.5  # seconds that are waited at once
LARGEST = 1 << 20  # bytes of an introduction
NOBODY: Mapping[str, str] = MappingProxyType({})


def gathered(wire: Wire, wanted: int, names: Sequence[str], seconds: float, say: Callable[[str], None],
             owners: Mapping[str, str] = NOBODY) -> list[Member]:
    """Wait until so many nodes (or all that are named) have introduced themselves.

    owners: the name that belongs to a node's identity, where keys say so: it may not call itself otherwise.
    """
    session, until = random.SystemRandom().randrange(1 << 31), time.monotonic() + seconds
    found: dict[str, Member] = {}
    asked: dict[str, float] = {}
    need = len(names) or wanted
    while time.monotonic() < until and len([m for m in found.values() if not names or m.name in names]) < need:
        new = [node for node in wire.nodes() if node not in found and time.monotonic() - asked.get(node, -1e9) > AGAIN]
        hello = {"kind": "hello", "session": f"{session:x}"}
        wire.send([Parcel(node, f"hello-{session:x}-{node}-{len(asked)}", packed({**hello, "number": n}, {}), AGAIN)
                   for n, node in enumerate(new, start=int(time.monotonic() * 1000))])
        asked |= dict.fromkeys(new, time.monotonic())
        for delivery in wire.receive(TURN):
            try:
                if delivery.error:
                    raise BadHello(delivery.error)
                header = unpacked(delivery.content, LARGEST).header
                member = introduced(header, delivery.node)
                if owners.get(delivery.node, member.name) != member.name:
                    raise BadHello(f"it calls itself {member.name!r}, but its key is that of {owners[delivery.node]!r}")
            except (BadHello, Unreadable) as error:
                say(f"node {delivery.node} did not introduce itself: {error}")
                continue
            found[delivery.node] = member
            version = str(header.get("version"))[:20]
            if version != __version__:
                say(f"{member.name} has fedsaddle {version}, this server {__version__}: install the same at all sites")
            say(f"{member.name} is there: {member.rows:,} rows")
    return list(found.values())
