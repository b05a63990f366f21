"""The courier at a site: a ClientApp that hands the content of a message to the resident worker and returns its answer.

Flower starts a process for every message; this is all that runs in it. The worker's socket and the largest answer are
in the node's own configuration, never in the message. Whatever goes wrong here is answered with one of the fixed
sentences below: the text of an exception can hold data of the site.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedsaddle.sites import frames
from fedsaddle.sites.flower.records import Letter, pack, unpack

NOT_OURS = "the site did not understand the message"
NO_WORKER = "the site's worker is not there"
SAID: dict[type[Exception], str] = {  # the first that fits
    KeyError: "the site's node has no worker, or no limit, in its configuration",
    frames.TooLarge: "the answer of the site's worker is larger than the site allows",
    TimeoutError: "the site's worker did not answer in time",
    FileNotFoundError: NO_WORKER,
    ConnectionRefusedError: NO_WORKER,
    OSError: "the site's worker went away before it answered",
    Exception: "the site's courier failed",
}

LOOK = 0.2  # seconds between looks at the clock: Flower's signal to end is seen only then
STALL = 60.0  # seconds that a worker may pause in the middle of an answer

client = ClientApp()


@client.query()
def carry(message: Message, context: Context) -> Message:
    return Message(pack(answer(message, context)), reply_to=message)


def answer(message: Message, context: Context) -> Letter:
    try:
        letter = unpack(message.content)
    except ValueError:
        return Letter("", error=NOT_OURS)
    try:
        worker, limit = str(context.node_config["worker"]), int(context.node_config["limit"])
        return Letter(letter.ticket, ask(worker, letter.content, limit, message.metadata.ttl))
    except Exception as error:
        return Letter(letter.ticket, error=next(text for kind, text in SAID.items() if isinstance(error, kind)))


def ask(worker: str, content: bytes, limit: int, seconds: float) -> bytes:
    """The worker's answer. The seconds count from here: the clocks of two machines need not agree."""
    until = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(STALL)
        connection.connect(worker)
        with contextlib.suppress(BrokenPipeError):  # it may have answered before it had read everything
            frames.send_frame(connection, content)
        while not select.select([connection], [], [], LOOK)[0]:
            if time.monotonic() > until:
                raise TimeoutError
        return frames.receive_frame(connection, limit)
