"""What a site's courier does with a message, over any engine: hands it to the resident worker and brings the answer.

Whatever goes wrong is answered with one of the fixed sentences below: the text of an exception can hold data of the
site. Nothing but the standard library: a courier stays small.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable

from fedsaddle.sites import frames

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
LOOK = 0.2  # seconds between looks at the clock, and at whether the courier should end
STALL = 60.0  # seconds that a worker may pause in the middle of an answer


def sentence(error: Exception) -> str:
    return next(text for kind, text in SAID.items() if isinstance(error, kind))


def ask(worker: str, content: bytes, limit: int, seconds: float, back: float = 0.0,
        ended: Callable[[], bool] = lambda: False) -> bytes:
    """The worker's answer. The seconds count from here: the clocks of two machines need not agree.

    back: how long to wait for a worker that is being started again; ended: whether nobody wants the answer any more.
    """
    until = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(STALL)
        _connect(connection, worker, min(until, time.monotonic() + back), ended)
        with contextlib.suppress(BrokenPipeError):  # it may have answered before it had read everything
            frames.send_frame(connection, content)
        while not select.select([connection], [], [], LOOK)[0]:
            if time.monotonic() > until or ended():
                raise TimeoutError
        return frames.receive_frame(connection, limit)


def _connect(connection: socket.socket, worker: str, until: float, ended: Callable[[], bool]) -> None:
    while True:
        try:
            connection.connect(worker)
            return
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > until or ended():
                raise
            time.sleep(LOOK)
