"""The courier at the coordinator: a ServerApp that does what the wire asks on a local socket, and nothing by itself.

It ends when the wire hangs up, and the wire sees it end: then the SuperLink is gone, or the run was stopped.
"""

from __future__ import annotations

import select
import socket
import time
from typing import Any, NamedTuple

from flwr.app import Context, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp

from fedsaddle.sites.flower.records import KIND, Letter, pack, unpack
from fedsaddle.sites.notes import receive_note, send_note

LOOK = 0.1  # seconds between two questions for replies
EXPIRED = "expired"
REASONS = {  # never Flower's own text: at a site that is the text of an exception
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION: "fedsaddle is not installed at the site, or not the same version",
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION: "the site's courier failed",
    ErrorCode.CLIENT_APP_CRASHED: "the site's courier was ended",
    ErrorCode.NODE_UNAVAILABLE: "the node is not there",
    ErrorCode.INVALID_FAB: "the site does not run this app",
}
LONGEST = 200  # characters of a reason
LOST = "the message or its answer was lost on the way"

server = ServerApp()


class Open(NamedTuple):
    node: str
    ticket: str
    until: float


@server.main()
def carry(grid: Grid, context: Context) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wire:
        wire.connect(str(context.run_config["socket"]))
        send_note(wire, {"is": "here", "run": str(context.run_id)})
        opened: dict[str, Open] = {}
        asked = 0.0
        try:
            while True:
                if select.select([wire], [], [], LOOK)[0]:
                    obey(grid, wire, opened)
                if opened and time.monotonic() - asked >= LOOK:
                    collect(grid, wire, opened)
                    asked = time.monotonic()
        except ConnectionError:
            return  # the coordinator has closed the wire


def obey(grid: Grid, wire: socket.socket, opened: dict[str, Open]) -> None:
    head, content = receive_note(wire)
    if head["do"] == "nodes":
        send_note(wire, {"is": "nodes", "nodes": sorted(str(node) for node in grid.get_node_ids())})
    elif head["do"] == "send":
        send(grid, wire, opened, head["parcels"], content)


def send(
    grid: Grid, wire: socket.socket, opened: dict[str, Open], parcels: list[dict[str, Any]], content: bytes
) -> None:
    """All the parcels of one content at once: Flower takes it up once."""
    start = time.monotonic()
    messages = [Message(pack(Letter(p["ticket"], content)), dst_node_id=int(p["node"]), message_type=KIND,
                        ttl=p["seconds"]) for p in parcels]
    names = list(grid.push_messages(messages))
    for parcel, name in zip(parcels, names or [""] * len(parcels), strict=True):
        if name:
            opened[name] = Open(parcel["node"], parcel["ticket"], start + parcel["seconds"])
        else:
            deliver(wire, parcel["node"], Letter(parcel["ticket"], error=REASONS[ErrorCode.NODE_UNAVAILABLE]))


def collect(grid: Grid, wire: socket.socket, opened: dict[str, Open]) -> None:
    for reply in grid.pull_messages(list(opened)):
        parcel = opened.pop(reply.metadata.reply_to_message_id, None)
        if parcel is not None:
            deliver(wire, parcel.node, read(reply, parcel))


def read(reply: Message, parcel: Open) -> Letter:
    if reply.has_error():
        late = time.monotonic() >= parcel.until
        return Letter(parcel.ticket, error=EXPIRED if late else REASONS.get(reply.error.code, LOST))
    try:
        letter = unpack(reply.content)
    except ValueError as wrong:
        return Letter(parcel.ticket, error=f"the site answered with {wrong}")
    # Which parcel it answers is Flower's word, not the site's; its reason is a line in somebody's log.
    return Letter(parcel.ticket, b"" if letter.error else letter.content, "".join(
        character for character in letter.error[:LONGEST] if character.isprintable()))


def deliver(wire: socket.socket, node: str, letter: Letter) -> None:
    head = {"is": "delivery", "node": node, "ticket": letter.ticket, "error": letter.error}
    send_note(wire, head, letter.content)


