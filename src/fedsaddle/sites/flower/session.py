"""What the command line starts on Flower: the server's side (SuperLink, courier, wire) and a node's (SuperNode)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from fedsaddle.contracts import SettingError
from fedsaddle.sites.courier_wire import CourierWire
from fedsaddle.sites.flower.app import write_app
from fedsaddle.sites.flower.processes import (
    Certificates,
    Connection,
    SuperLink,
    SuperNode,
    register_node,
    shut_out,
    submit,
)
from fedsaddle.sites.flower.running import REFUSED_BY_GATE, FlowerFailed
from fedsaddle.sites.flower.wire import FlowerWire
from fedsaddle.sites.frames import socket_folder
from fedsaddle.sites.keys import expiry
from fedsaddle.sites.wire import WireLost

WAIT, TRIES = 60.0, 5
LOOK = 10.0  # seconds between two looks into its log
PAUSE = 3.0  # seconds before a node that was refused or lost tries again
MOST_SAID = 50  # different refusals
LIMIT = 4 << 30  # bytes of an ask at a node
Say = Callable[[str], None]


class Server:
    """A SuperLink of our own, or one that runs already, with our courier in it."""

    def __init__(self, folder: Path, keys: Path | None, host: str, port: int, join: str | None, insecure: bool,
                 say: Say) -> None:
        self.folder, self.keys, self.host, self.port, self.join = folder.resolve(), keys, host, port, join
        self.insecure, self.say = insecure, say
        self.link: SuperLink | None = None
        self.owners: dict[str, str] = {}  # names of nodes, by the identities of their keys
        self.listener: threading.Thread | None = None
        self.ended = threading.Event()
        _one_of(keys, insecure, "make keys with `fedsaddle keys`")

    def __enter__(self) -> Server:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.wire = FlowerWire(socket_folder(self.folder / "wire"), lambda: self.link is None or self.link.alive())
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.ended.set()
        self.wire.close()
        if self.link is not None:
            self.link.stop()

    def again(self) -> CourierWire:
        """The wire once more, after it was lost: whatever has ended is started anew."""
        for attempt in range(1, TRIES + 1):
            try:
                self._start()
                return self.wire
            except (FlowerFailed, WireLost) as error:
                if attempt == TRIES:
                    raise
                self.say(f"not yet: {error}")
                time.sleep(PAUSE)
        return self.wire

    def _start(self) -> None:
        if self.join:
            self.say(f"{self.join} was not started by fedsaddle: whoever else reaches that SuperLink may register keys "
                     "there and submit apps; sites that run `fedsaddle node` do not run them")
            connection = Connection(self.join, self.keys / "ca.crt" if self.keys else None, self.folder)
        else:
            if self.link is None or not self.link.alive():
                self.link = SuperLink(self.folder / "superlink", host=self.host, port=self.port,
                                      certificates=self._certificates(), insecure=self.insecure)
                self.port = self.link.port
                self._listen_to(self.link.program.log)
                self.say(f"listening at {self.host}:{self.port}")
            connection = self.link.connection
        self._register(connection)
        submit(connection, write_app(self.folder), self.wire.path)
        self.wire.wait(WAIT)

    def _listen_to(self, log: Path) -> None:
        """Say whom the SuperLink refuses, and why; each once."""
        if self.listener is not None:
            return
        place = log.stat().st_size if log.exists() else 0

        def listen() -> None:
            heard: set[str] = set()
            seen = place
            while not self.ended.wait(PAUSE):
                with contextlib.suppress(OSError), log.open("rb") as file:
                    file.seek(seen)
                    lines = file.read().decode(errors="replace").splitlines()
                    seen = file.tell()
                    for line in lines:
                        if line.startswith(REFUSED_BY_GATE) and line not in heard and len(heard) < MOST_SAID:
                            heard.add(line)
                            self.say(line)

        self.listener = threading.Thread(target=listen, daemon=True)
        self.listener.start()

    def _certificates(self) -> Certificates | None:
        if self.keys is None:
            return None
        end = expiry(self.keys / "server.pem")
        if end < datetime.now(UTC):
            raise SettingError(f"--keys {str(self.keys)!r}: the server's certificate expired on {end:%Y-%m-%d}; make a "
                               "new one with `fedsaddle keys --renew-server`")
        return Certificates(root=self.keys / "ca.crt", certificate=self.keys / "server.pem",
                            key=self.keys / "server.key")

    def _register(self, connection: Connection) -> None:
        """Every node whose public key lies beside the server's may come, and nobody else."""
        found = sorted((self.keys / "nodes").glob("*/key.pub")) if self.keys else []
        if self.keys and not found:
            raise SettingError(f"--keys {str(self.keys)!r}: holds no public key of a node (nodes/NAME/key.pub); make "
                               "them with `fedsaddle keys --node NAME`, or copy those that the sites sent")
        with ThreadPoolExecutor(4) as pool:
            nodes = pool.map(lambda key: register_node(connection, key, name=key.parent.name), found)
            self.owners = {node: key.parent.name for node, key in zip(nodes, found, strict=True)}
        for node in shut_out(connection, self.owners) if self.keys else ():
            self.say(f"node {node} is shut out: its public key is no longer among the server's")


class Node:
    """A SuperNode that is started again when it ends."""

    def __init__(self, home: Path, server: str, keys: Path | None, name: str, insecure: bool, worker: Path) -> None:
        home = home.resolve()
        self.home, self.server, self.name, self.insecure, self.worker = home, server, name, insecure, worker
        self.keys = self._own(keys)
        self.node: SuperNode | None = None
        self.next = 0.0  # not before that
        self.looked = 0.0  # when its log was last read
        _one_of(keys, insecure, "give the folder with key and ca.crt that the server's side made")

    def __enter__(self) -> Node:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self.node is not None:
            self.node.stop()

    def watch(self, say: Say, ended: Callable[[], bool]) -> None:
        """Start it where it does not run, unless we are asked to end meanwhile."""
        if self.node is not None and self.node.alive() and not self._gave_up(self.node):
            return
        if self.node is not None:
            say(f"the connection ended: {self.node.failure()}")
            self.node.stop()  # one of its two processes may still run
            self.node, self.next = None, time.monotonic() + PAUSE
        if time.monotonic() < self.next:
            return
        try:
            self.node = SuperNode(
                self.home / "supernode", self.server, {"worker": str(self.worker), "limit": LIMIT},
                root=self.keys / "ca.crt" if self.keys else None, private_key=self.keys / "key" if self.keys else None,
                insecure=self.insecure, seconds=WAIT, ended=ended)
            say(f"{self.name} is connected to {self.server}")
        except FlowerFailed as failure:
            say(f"not connected: {failure}; trying again")
            self.next = time.monotonic() + PAUSE

    def _gave_up(self, node: SuperNode) -> bool:
        """Looked up now and then: it is read from a log."""
        if time.monotonic() < self.looked + LOOK:
            return False
        self.looked = time.monotonic()
        return node.gave_up()

    def _own(self, keys: Path | None) -> Path | None:
        """The node's part of a folder of keys: what was copied to it, or the whole on one machine."""
        if keys is None:
            return None
        for folder in (keys, keys / "nodes" / self.name):
            if (folder / "key").exists() and (folder / "ca.crt").exists():
                return folder
        raise SettingError(f"--keys {str(keys)!r}: holds no key and ca.crt for node {self.name!r}; make the key with "
                           f"`fedsaddle keys DIR --own {self.name}`, send its key.pub to the server, and put the "
                           "server's ca.crt beside it")


def _one_of(keys: Path | None, insecure: bool, remedy: str) -> None:
    if keys is None and not insecure:
        raise SettingError(f"--keys: is missing; {remedy}, or say --insecure for a trial on one machine")
    if keys is not None and insecure:
        raise SettingError("--insecure: was given with --keys; leave one of them out")
