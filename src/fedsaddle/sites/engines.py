"""The transports by name, which options belong to which, and a node's worker kept alive beside its transport."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedsaddle.contracts import SettingError
from fedsaddle.sites.wire import Wire

RESTART = 2.0  # seconds before a worker that ended is started again
Say = Callable[[str], None]


class Hosting(Protocol):
    """The server's side of a transport."""

    wire: Any
    owners: dict[str, str]  # names of nodes, by their identities

    def again(self) -> Wire: ...


class Joined(Protocol):
    """A site's side."""

    def watch(self, say: Say, ended: Callable[[], bool]) -> None: ...


class Options(NamedTuple):
    """Of the command line; None or False: not given."""

    keys: Path | None = None
    kit: Path | None = None
    server: str | None = None  # of a node
    host: str | None = None
    port: int | None = None
    join: str | None = None
    insecure: bool = False


class Engine(NamedTuple):
    takes: tuple[str, ...]  # options that it knows
    serve: Callable[[Path, Options, Say], AbstractContextManager[Hosting]]
    join: Callable[[Path, str, Options, Path], AbstractContextManager[Joined]]


def engine_of(name: str, options: Options) -> Engine:
    if name not in ENGINES:
        raise SettingError(f"--engine {name!r}: is not known; choose {' or '.join(ENGINES)}")
    found = ENGINES[name]
    for option, value in options._asdict().items():
        if value not in (None, False) and option not in found.takes:
            other = next(label for label, engine in ENGINES.items() if option in engine.takes)
            raise SettingError(f"--{option}: belongs to --engine {other}, not to {name}; leave it out")
    return found


def _flower_server(folder: Path, options: Options, say: Say) -> AbstractContextManager[Hosting]:
    from fedsaddle.sites.flower.session import Server  # noqa: PLC0415  # an extra

    return Server(folder / "flower", options.keys, options.host or "0.0.0.0", options.port or 9092, options.join,
                  options.insecure, say)


def _flower_node(home: Path, name: str, options: Options, worker: Path) -> AbstractContextManager[Joined]:
    from fedsaddle.sites.flower.session import Node  # noqa: PLC0415

    if options.server is None:
        raise SettingError("--server: is missing; give HOST:PORT of the server")
    return Node(home, options.server, options.keys, name, options.insecure, worker)


def _nvflare_server(folder: Path, options: Options, say: Say) -> AbstractContextManager[Hosting]:
    return _of_nvflare("Server")(folder / "nvflare", _kit(options, "server"), say)  # type: ignore[no-any-return]


def _nvflare_node(home: Path, name: str, options: Options, worker: Path) -> AbstractContextManager[Joined]:
    return _of_nvflare("Node")(home, _kit(options, name), name, worker)  # type: ignore[no-any-return]


def _of_nvflare(what: str) -> Any:
    try:
        from fedsaddle.sites.nvflare import session  # noqa: PLC0415  # an extra
    except ModuleNotFoundError as error:
        raise SettingError(f"--engine nvflare: needs the package {error.name}; install fedsaddle[nvflare]") from None
    return getattr(session, what)


def _kit(options: Options, whose: str) -> Path:
    if options.kit is None:
        raise SettingError(f"--kit: is missing; give the folder {whose} that `fedsaddle provision` wrote")
    return options.kit


ENGINES: Mapping[str, Engine] = {
    "flower": Engine(("keys", "server", "host", "port", "join", "insecure"), _flower_server, _flower_node),
    "nvflare": Engine(("kit",), _nvflare_server, _nvflare_node),
}


def keep_alive(line: list[str], log: Path, listening: Path, transport: Joined, ended: Callable[[], bool],
               say: Say) -> None:
    """The worker and the transport run, and are started again when they end, until we are asked to end."""
    process: subprocess.Popen[bytes] | None = None
    with log.open("ab") as told:
        try:
            while not ended():
                if process is None or process.poll() is not None:
                    if process is not None:
                        say(f"the worker ended ({process.returncode}); it is started again")
                        time.sleep(RESTART)
                    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=told, stderr=told)
                    _wait_for(listening, process, ended)
                transport.watch(say, ended)
                time.sleep(0.2)
        finally:
            if process is not None and process.poll() is None:
                process.terminate()
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()


def _wait_for(path: Path, process: subprocess.Popen[bytes], ended: Callable[[], bool]) -> None:
    """Until the worker listens, or has ended."""
    while process.poll() is None and not ended():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(path))
                return
            except OSError:
                time.sleep(0.1)
