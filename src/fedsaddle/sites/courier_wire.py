"""The coordinator's end of a transport that runs in processes of its own.

It listens on a local socket; a courier inside the transport's process connects and does the rest. A transport is thus a
courier at the server, a courier at every site, and the processes around them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedsaddle.contracts import SettingError
from fedsaddle.sites.notes import receive_note, send_note
from fedsaddle.sites.wire import Delivery, Parcel, WireLost

EXPIRED = "expired"
GRACE = 10.0  # seconds after which an answer that the courier should have called expired is expired without it
LOOK = 1.0  # seconds between two looks whether the transport is well
PATIENCE = 180.0  # seconds for a courier to say who is there: it may be in the middle of sending
LONGEST_PATH = 100  # a Unix socket's address has 108 bytes


class Words(NamedTuple):
    """What a transport calls its parts, for messages."""

    courier: str  # the process that carries, at the server
    host: str  # the program that it runs in


class _Open(NamedTuple):
    node: str
    until: float


class CourierWire:
    """A wire.Wire. `wait` for a courier each time one was started: until it is there, everything raises WireLost.

    The folder must be the coordinator's own: whoever can write there can be the courier.
    """

    def __init__(self, folder: Path, words: Words, trouble: Callable[[], str] = lambda: "") -> None:
        """trouble: why the transport carries no more, "" if it does, where that can be seen: a courier notices late."""
        self.words, self.trouble = words, trouble
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = folder.resolve() / "wire.sock"
        if len(os.fsencode(self.path)) > LONGEST_PATH:
            raise SettingError(f"folder = {folder}: too long for a local socket; take one of fewer than "
                               f"{LONGEST_PATH - 10} characters")
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self.path.chmod(0o600)
        self._listener.listen(1)
        self._courier: socket.socket | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._nodes: list[str] | None = None
        self._come: deque[Delivery] = deque()
        self._open: dict[str, _Open] = {}
        self.run = ""  # the transport's name of the run whose courier is connected, or was the last one
        self.said: list[str] | None = None  # who is there, as the courier last said; it may say so unasked
        threading.Thread(target=self._listen, name="wire", daemon=True).start()

    def wait(self, seconds: float, run: str = "") -> None:
        """Until a courier has connected: that of this run, where one is named."""

        def there() -> bool:
            return self._closed or (self._courier is not None and run in ("", self.run))

        with self._changed:
            if not self._changed.wait_for(there, seconds):
                raise WireLost(f"{self.words.courier} did not start within {seconds:.0f} s; the log of "
                               f"{self.words.host} says why")
            self._there()

    def nodes(self) -> list[str]:
        with self._changed:
            courier = self._there()
            self._nodes = None
            self._write(courier, {"do": "nodes"})
            until = time.monotonic() + PATIENCE
            while not self._changed.wait_for(lambda: self._nodes is not None or self._courier is not courier, LOOK):
                self._there()
                if time.monotonic() > until:
                    raise WireLost(f"{self.words.courier} does not answer")
            if self._nodes is None:
                raise WireLost(f"{self.words.courier} ended while it was asked who is there")
            return self._nodes

    def send(self, parcels: Sequence[Parcel]) -> None:
        together: dict[bytes, list[Parcel]] = {}
        for parcel in parcels:
            if parcel.ticket in self._open:
                raise ValueError(f"ticket {parcel.ticket!r} was sent before and is not answered yet")
            together.setdefault(parcel.content, []).append(parcel)
        with self._changed:
            courier = self._there()
            for same in together.values():
                now = time.monotonic()
                self._open |= {p.ticket: _Open(p.node, now + p.seconds + GRACE) for p in same}
        for content, same in together.items():  # not under the lock: the courier may want to deliver meanwhile
            labels = [{"node": p.node, "ticket": p.ticket, "seconds": p.seconds} for p in same]
            self._write(courier, {"do": "send", "parcels": labels}, content)

    def receive(self, seconds: float) -> list[Delivery]:
        until = time.monotonic() + seconds
        with self._changed:
            while True:
                self._expire()
                if self._come:
                    come = list(self._come)
                    self._come.clear()
                    return come
                self._there()
                now = time.monotonic()
                if now >= until:
                    return []
                next_expiry = min((parcel.until for parcel in self._open.values()), default=until)
                self._changed.wait(max(0.0, min(until, next_expiry, now + LOOK) - now))

    def give_up(self, tickets: Sequence[str]) -> None:
        """Nothing to do: a message is not taken back, and its answer is delivered when it comes."""

    def close(self) -> None:
        with self._changed:
            self._closed = True
            courier, self._courier = self._courier, None
            self._changed.notify_all()
        for connection in (courier, self._listener):
            if connection is not None:
                with contextlib.suppress(OSError):  # it may be gone already
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()
        self.path.unlink(missing_ok=True)

    # Under the lock.

    def _there(self) -> socket.socket:
        if self._closed:
            raise WireLost("the wire was closed")
        trouble = self.trouble()
        if trouble:
            if self._courier is not None:  # it would ask the dead for minutes; it ends when its connection does
                with contextlib.suppress(OSError):
                    self._courier.shutdown(socket.SHUT_RDWR)
                self._courier = None
            raise WireLost(trouble)
        if self._courier is None:
            raise WireLost(f"{self.words.courier} is not there: {self.words.host} ended, or the run was stopped")
        return self._courier

    def _expire(self) -> None:
        now = time.monotonic()
        for ticket in [ticket for ticket, parcel in self._open.items() if parcel.until <= now]:
            self._come.append(Delivery(self._open.pop(ticket).node, ticket, error=EXPIRED))

    # The courier's connection: one thread reads, the coordinator's thread writes.

    def _write(self, courier: socket.socket, head: dict[str, Any], content: bytes = b"") -> None:
        try:
            send_note(courier, head, content)
        except OSError as error:
            raise WireLost(f"{self.words.courier} went away") from error

    def _listen(self) -> None:
        while not self._closed:
            try:
                courier, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(courier,), name="courier", daemon=True).start()

    def _serve(self, courier: socket.socket) -> None:
        with courier, contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # it went away, or is no courier
            while True:
                head, content = receive_note(courier)
                with self._changed:
                    self._note(courier, head, content)
                    self._changed.notify_all()
        with self._changed:
            if self._courier is courier:
                self._courier = None
                self._changed.notify_all()

    def _note(self, courier: socket.socket, head: dict[str, Any], content: bytes) -> None:
        if head["is"] == "here":  # the newest courier is the courier; what an earlier one was asked never comes
            self.run, self._courier, self.said = head["run"], courier, None
            self._open.clear()
        elif courier is not self._courier:
            raise ValueError("not the courier, or not any more")
        elif head["is"] == "nodes":
            self._nodes = self.said = head["nodes"]
        elif head["is"] == "delivery" and self._open.pop(head["ticket"], None) is not None:
            self._come.append(Delivery(head["node"], head["ticket"], content, head["error"]))
