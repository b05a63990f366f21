"""Flower's programs, as a coordinator and a site start them: SuperLink, SuperNode, and the commands of `flwr`.

Each has a folder of its own (FLWR_HOME, log) and talks over TLS, with node keys, unless the caller says insecure=True.
"""

from __future__ import annotations

import hashlib
import json
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from fedsaddle.contracts import SettingError
from fedsaddle.sites.flower.running import MARK, REFUSED, FlowerFailed, failure, last_words, settings, start
from fedsaddle.sites.programs import Program, end_left_behind, environment, free_port, freed_port

LOOK = 0.1
GAVE_UP = "Giving up reconnection"  # in the SuperNode's log
TAKEN = "already in use"
NAME = "coordinator"  # of the connection in Flower's own configuration file


class Certificates(NamedTuple):
    """Of a server: the root's certificate, its own, its private key (PEM files)."""

    root: Path
    certificate: Path
    key: Path


class Connection(NamedTuple):
    """How the commands of this machine reach a SuperLink."""

    address: str  # host:port
    root: Path | None  # None: no TLS
    folder: Path  # FLWR_HOME of the commands is in it


class Run(NamedTuple):
    connection: Connection
    name: str


class SuperLink:
    """Started, and healthy when the constructor returns. The same folder and database bring back the known nodes."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int = 0, certificates: Certificates | None = None,
                 insecure: bool = False, database: Path | None = None, seconds: float = 60.0) -> None:
        _secure("certificates", certificates is not None, insecure)
        end_left_behind(folder, "superlink")  # it would hold the port
        self.port = _freed(host, port)
        local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        self.connection = Connection(f"{local}:{self.port}", certificates.root if certificates else None, folder)
        command = [Path(sys.executable).name, "-m", "fedsaddle.sites.flower.gate", "--host", host,
                   "--port", str(self.port), "--database", str((database or folder / "state.db").resolve())]
        if certificates:
            command += ["--enable-supernode-auth", *_tls(certificates)]
        else:
            command += ["--insecure"]
        self.program = start("superlink", command, folder)
        try:
            self._wait(seconds)
        except BaseException:
            self.program.kill()
            raise

    @property
    def address(self) -> str:
        return self.connection.address

    def alive(self) -> bool:
        return self.program.alive()

    def stop(self, seconds: float = 10.0) -> None:
        self.program.stop(seconds)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not answers(self.connection, "/health"):
            if not self.program.alive():
                raise failure(self.program, "ended at the start")
            if time.monotonic() > until:
                raise failure(self.program, f"not healthy after {seconds:.0f} s")
            time.sleep(LOOK)
        if not answers(self.connection, MARK):
            raise FlowerFailed("superlink: this version of Flower starts without our gate, so anybody who reaches the "
                               "port could run code at the sites; install Flower 1.41, which was tried")


def _freed(host: str, port: int) -> int:
    """The port, once nobody listens there: else another SuperLink there would look like this one."""
    try:
        return freed_port(host, port)
    except OSError as error:
        raise SettingError(f"host = {host!r}, port = {port}: cannot be listened at ({error.strerror}); choose "
                           "another port, or end what listens there") from None


class SuperNode:
    """Started; `node` is the identity that the SuperLink has given to its key. It connects again by itself for ever."""

    def __init__(self, folder: Path, superlink: str, node_config: Mapping[str, str | int], root: Path | None = None,
                 private_key: Path | None = None, port: int = 0, insecure: bool = False,
                 seconds: float | None = 60.0, resident: bool = True, ended: Callable[[], bool] = lambda: False,
                 ) -> None:
        """port: for its courier, on this machine only; seconds: how long to wait for the SuperLink, None for ever, and
        no longer once we are asked to have `ended`;
        resident: the courier is one process (`resident`), else Flower starts one for every message and runs in it
        whatever app the coordinator sends."""
        _secure("root and private_key", root is not None and private_key is not None, insecure)
        port, secret = port or free_port(), folder.resolve() / "secret"
        command = ["flower-supernode", "--superlink", superlink, "--host", "127.0.0.1", "--port", str(port),
                   "--node-config", _config(node_config)]
        if resident:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            secret.touch(0o600)
            secret.write_bytes(os.urandom(32))
            command += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
        if root is not None and private_key is not None:
            command += ["--root-certificates", str(root.resolve()),
                        "--auth-supernode-private-key", str(private_key.resolve())]
        else:
            command += ["--insecure"]
        known, self.ended = folder / "node", ended
        try:
            self._start(command, folder, seconds)
        except FlowerFailed:
            if REFUSED not in self.program.said() or not known.exists():
                raise
            # It was let in before, so it was killed, and the SuperLink takes it for present for another minute.
            _leave(folder, superlink, str(root), str(private_key), known.read_text())
            self._start(command, folder, seconds)
        known.write_text(self.node)
        self.courier = start("resident", [
            Path(sys.executable).name, "-m", "fedsaddle.sites.flower.resident", f"127.0.0.1:{port}",
            str(self.program.pid), str(secret)], folder) if resident else None

    def alive(self) -> bool:
        return all(program.alive() for program in self._programs())

    def gave_up(self) -> bool:
        """Whether it no longer tries to connect, though its process is there: so it is where TLS is not answered."""
        return GAVE_UP in self.program.said()

    def failure(self) -> FlowerFailed:
        """Why it is not alive, or why it gave up."""
        ended = [program for program in self._programs() if not program.alive()]
        return failure(ended[0], "ended") if ended else failure(self.program, "gave up")

    def stop(self, seconds: float = 10.0) -> None:
        for program in self._programs():
            program.stop(seconds)

    def kill(self) -> None:
        for program in self._programs():
            program.kill()

    def _programs(self) -> list[Program]:
        return [self.program, *([self.courier] if self.courier else [])]

    def _start(self, command: Sequence[str], folder: Path, seconds: float | None) -> None:
        self.program, self.node = start("supernode", command, folder), ""
        try:
            self._wait(seconds)
        except BaseException:
            self.program.kill()
            raise

    def _wait(self, seconds: float | None) -> None:
        until = None if seconds is None else time.monotonic() + seconds
        while not self.node:
            if not self.program.alive():
                raise failure(self.program, "ended at the start")
            if self.ended():
                raise failure(self.program, "is ended before it was connected")
            if until is not None and time.monotonic() > until:
                raise failure(self.program, f"no SuperLink after {seconds:.0f} s")
            self.node = self.program.said().partition("SuperNode ID: ")[2].partition("\n")[0].strip()
            time.sleep(LOOK)


def answers(connection: Connection, path: str) -> bool:
    context = ssl.create_default_context(cafile=connection.root) if connection.root else None
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    scheme = "https" if connection.root else "http"
    try:
        with direct.open(f"{scheme}://{connection.address}{path}", timeout=2) as answer:
            return bool(answer.status < 300)
    except OSError:
        return False


def register_node(connection: Connection, public_key: Path, name: str = "") -> str:
    """Lets the holder of the key in. The identity of its node: the same one when the key was registered before."""
    kept = connection.folder / "nodes" / hashlib.sha256(public_key.read_bytes()).hexdigest()
    try:
        said = _flwr(connection, "supernode", "register", str(public_key.resolve()), NAME,
                     *(["--name", name] if name else []))
    except FlowerFailed as failed:
        if TAKEN in str(failed) and kept.exists():
            return kept.read_text()
        raise
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(str(said["node-id"]))
    return str(said["node-id"])


def shut_out(connection: Connection, keep: Collection[str]) -> list[str]:
    """Unregister the nodes that were registered here before and are not to be kept. Their identities."""
    gone = []
    for kept in (connection.folder / "nodes").glob("*"):
        node = kept.read_text()
        if node not in keep:
            _flwr(connection, "supernode", "unregister", node, NAME)
            kept.unlink()
            gone.append(node)
    return gone


def submit(connection: Connection, app: Path, wire: Path) -> Run:
    """Starts the ServerApp courier, which connects to the wire's socket: FlowerWire.path. FlowerWire.wait after it."""
    said = _flwr(connection, "run", str(app.resolve()), NAME, "--run-config", _config({"socket": str(wire)}))
    return Run(connection, str(said["run-id"]))


def stop(run: Run) -> None:
    """Ends the courier of a run, and what the nodes do for it."""
    _flwr(run.connection, "stop", run.name, NAME)


def _flwr(connection: Connection, *command: str) -> dict[str, Any]:
    """A command of `flwr`, which knows the SuperLink by a file only. An address, never a profile: with a profile Flower
    would start a SuperLink of its own and leave it behind."""
    home = connection.folder / "home"
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    link = {"address": connection.address, **({"root-certificates": str(connection.root.resolve())}
                                              if connection.root else {"insecure": True})}
    known, text = home / "config.toml", tomli_w.dumps({"superlink": {"default": NAME, NAME: link}})
    if not known.exists() or known.read_text(encoding="utf-8") != text:  # another thread may be reading it
        known.write_text(text, encoding="utf-8")
    done = subprocess.run([str(Path(sys.executable).parent / "flwr"), *command, "--format", "json"], check=False,
                          capture_output=True, text=True, env=environment(settings(home)), cwd=connection.folder,
                          timeout=120)
    try:
        said = json.loads(done.stdout[done.stdout.index("{"):])
    except ValueError:
        said = {}
    if done.returncode or not said.get("success"):
        why = " ".join(str(said.get("error-message") or last_words(done.stdout + done.stderr)).split())
        raise FlowerFailed(f"flwr {' '.join(command[:2])}: {why}", done.returncode)
    return dict(said)


def _leave(folder: Path, *arguments: str) -> None:
    """Should it fail, the next start of the node is refused too, and says so."""
    subprocess.run([sys.executable, "-m", "fedsaddle.sites.flower.leave", *arguments], check=False, capture_output=True,
                   timeout=60, env=environment(settings(folder / "home")))


def _secure(what: str, given: bool, insecure: bool) -> None:
    if given == insecure:
        raise SettingError(f"insecure = {insecure} {'with' if given else 'without'} {what}: give them for TLS and node "
                           "keys, or say insecure = true where nobody else is on the network")


def _tls(certificates: Certificates) -> list[str]:
    return ["--ssl-ca-certfile", str(certificates.root.resolve()), "--ssl-certfile",
            str(certificates.certificate.resolve()), "--ssl-keyfile", str(certificates.key.resolve())]


def _config(values: Mapping[str, str | int]) -> str:
    """Flower reads `name=value` pairs as TOML, but finds their ends by itself."""
    for name, value in values.items():
        if isinstance(value, str) and not set(value).isdisjoint('"\'\\\n'):
            raise SettingError(f"{name} = {value!r}: Flower takes no quotes and no backslashes here; choose "
                               "another path")
    return " ".join(f"{name}={json.dumps(value)}" for name, value in values.items())
