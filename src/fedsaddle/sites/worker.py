"""The resident worker of a site: a process that keeps torch, the data and the problem, and answers on a local socket.

Whoever may open the socket may ask, so it lies in a folder of its own that only the user may enter. The worker is
started again when it dies; the ask that it was at is answered with an error by the courier that waits for it.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from pathlib import Path

from fedsaddle.sites.frames import Cut, TooLarge, receive_frame, send_frame
from fedsaddle.sites.site import Site

log = logging.getLogger(__name__)


def listen(path: Path) -> socket.socket:
    """A socket that only this user can open."""
    path.unlink(missing_ok=True)
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        found.bind(str(path))
    finally:
        os.umask(before)
    found.listen(8)
    return found


def serve(site: Site, listening: socket.socket, limit: int, stop: threading.Event | None = None) -> None:
    """Answer until the socket is closed. One ask at a time; a connection is one ask."""
    lock = threading.Lock()
    while stop is None or not stop.is_set():
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        threading.Thread(target=_one, args=(site, connection, limit, lock), daemon=True).start()


def _one(site: Site, connection: socket.socket, limit: int, lock: threading.Lock) -> None:
    with connection:
        try:
            content = receive_frame(connection, limit)
            with lock:
                answer = site.answer(content)
            send_frame(connection, answer)
        except (Cut, OSError) as error:  # also whoever only looked whether there is somebody
            log.debug("a courier went away: %s", type(error).__name__)
        except TooLarge as error:
            log.warning("refused: %s", error)
