"""What the command line starts on NVFlare: the server's side (its parent process, the job, the wire) and a site's."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from fedsaddle.contracts import SettingError
from fedsaddle.sites.courier_wire import CourierWire, Words
from fedsaddle.sites.frames import socket_folder
from fedsaddle.sites.nvflare.admin import Desk
from fedsaddle.sites.nvflare.job import write_job
from fedsaddle.sites.nvflare.kit import ADMIN, SERVER, SITE, read_kit, workspace
from fedsaddle.sites.nvflare.running import (
    JOINED,
    NVFlareFailed,
    failure,
    refusals,
    start_server,
    start_site,
    why_not,
)
from fedsaddle.sites.programs import Program
from fedsaddle.sites.wire import WireLost

WORDS = Words(courier="NVFlare's job", host="the NVFlare server")
WAIT, TRIES = 60.0, 5
FIRST = 600.0  # seconds to wait for a first site
SETTLED = 3.0  # seconds in which no further site came, after which a job begins without the others
JOINING = 15.0  # seconds for the sites of a new job to be there
LOOK = 2.0  # seconds between two looks at who is connected
OUTSIDE = 4.0  # seconds that a connected site may be outside the job before it is begun anew
LONGEST = 600.0  # ... where that did not bring it in, again and again
PAUSE = 3.0  # seconds before a site's process that ended is started again
DOUBT = 12.0  # seconds to be let in before it is asked why not
STUCK = 180.0  # seconds after which a site's process that was not let in is started again
MOST_SAID = 50  # different refusals
LIMIT = 4 << 30  # bytes of an answer of a worker
Say = Callable[[str], None]


class Server:
    """NVFlare's server with our courier in a job. NVFlare takes no site into a job under way, and ends a job when a
    site's job process dies: so a watch marks the wire lost where a site is connected but outside, and `again` begins a
    new job; the coordinator goes on from its checkpoint."""

    def __init__(self, folder: Path, kit: Path, say: Say) -> None:
        self.folder, self.kit, self.say = folder.resolve(), read_kit(kit, SERVER), say
        self.admin = read_kit(kit.resolve().parent / ADMIN, ADMIN)
        self.owners = {site: site for site in self.kit.sites}  # a node's identity is the name in its certificate
        self.program: Program | None = None
        self.desk: Desk | None = None
        self.desk_lock = threading.Lock()
        self.job, self.outside = "", ""  # of the job under way: its name; why it must be begun anew
        self.carrying = False  # whether it is under way
        self.since: dict[str, float] = {}  # since when a connected site is outside
        self.tried: dict[str, int] = {}  # how often a new job was begun for a site
        self.ended = threading.Event()

    def __enter__(self) -> Server:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.wire = CourierWire(socket_folder(self.folder / "wire"), WORDS, self._trouble)
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        for watch in (self._watch_sites, self._watch_log):
            threading.Thread(target=watch, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.ended.set()
        self.wire.close()  # ends the courier, and so the job
        with self.desk_lock:
            if self.desk is not None:
                self.desk.close()
        if self.program is not None:
            self.program.stop()

    def again(self) -> CourierWire:
        """The wire once more, after it was lost: whatever has ended is started anew, and the job in any case."""
        for attempt in range(1, TRIES + 1):
            try:
                self._start()
                return self.wire
            except (NVFlareFailed, WireLost) as error:
                if attempt == TRIES:
                    raise
                self.say(f"not yet: {error}")
                time.sleep(PAUSE)
        return self.wire

    def _trouble(self) -> str:
        return f"{WORDS.host} ended" if self.program is not None and not self.program.alive() else self.outside

    def _start(self) -> None:
        self.carrying = False
        if self.program is None or not self.program.alive():
            if self.program is not None:
                self.program.kill()  # its job process may outlive it
            self._leave()
            self.job = ""
            self.program = start_server(self.kit, workspace(self.kit, self.folder / "server"), WAIT)
            self.say(f"listening at port {self.kit.port}")
        self.outside = ""
        if self.job:
            with self._at_desk() as desk:
                desk.abort(self.job)
        connected = self._gathered()
        with self._at_desk() as desk:
            self.job = desk.submit(write_job(self.folder, self.kit, self.wire.path))
        self.wire.wait(WAIT, self.job)
        until = time.monotonic() + JOINING
        while not set(connected) <= set(self.wire.said or ()) and time.monotonic() < until:
            time.sleep(0.1)
        self.since, self.carrying = {}, True

    def _gathered(self) -> list[str]:
        """Who is connected: all sites, or those that came before there were no more for some seconds."""
        until, changed, found = time.monotonic() + FIRST, time.monotonic(), list[str]()
        while len(found) < len(self.kit.sites) and (not found or time.monotonic() - changed < SETTLED):
            with self._at_desk() as desk:
                now = desk.sites()
            if now != found:
                found, changed = now, time.monotonic()
            if not found and time.monotonic() > until:
                raise NVFlareFailed(f"no site connected within {FIRST:.0f} s; start them with `fedsaddle node`")
            time.sleep(0.3)
        return found

    @contextlib.contextmanager
    def _at_desk(self) -> Iterator[Desk]:
        with self.desk_lock:
            if self.desk is None:
                self.desk = Desk(self.admin, workspace(self.admin, self.folder / "admin"))
            try:
                yield self.desk
            except NVFlareFailed:
                self.desk.close()
                self.desk = None
                raise

    def _leave(self) -> None:
        with self.desk_lock:
            if self.desk is not None:
                self.desk.close()
            self.desk = None

    def _watch_sites(self) -> None:
        """Marks the job as one to be begun anew where a connected site is outside for some seconds."""
        while not self.ended.wait(LOOK):
            if not self.carrying or self.program is None or not self.program.alive():
                continue
            try:
                with self._at_desk() as desk:
                    connected = desk.sites()
            except NVFlareFailed:
                continue  # the wire says so, if it stays so
            there, now = self.wire.said or [], time.monotonic()
            if not self.carrying:
                continue  # a new one is being begun meanwhile
            self.tried = {site: count for site, count in self.tried.items() if site not in there}
            self.since = {site: self.since.get(site, now) for site in connected if site not in there}
            late = [site for site, at in self.since.items()
                    if now - at > min(LONGEST, OUTSIDE * 4 ** self.tried.get(site, 0))]
            if late:
                self.tried |= {site: self.tried.get(site, 0) + 1 for site in late}
                self.outside = f"{', '.join(late)} came, and NVFlare takes nobody into a job under way"

    def _watch_log(self) -> None:
        """Says whom NVFlare refuses, and why; each once."""
        heard: set[str] = set()
        while not self.ended.wait(PAUSE):
            for one in refusals(self.program.said()) if self.program is not None else []:
                if one not in heard and len(heard) < MOST_SAID:
                    heard.add(one)
                    self.say(f"refused: {one}")


class Node:
    """A site's parent process, started again when it ends."""

    def __init__(self, home: Path, kit: Path, name: str, worker: Path) -> None:
        self.home, self.kit, self.name, self.worker = home.resolve(), read_kit(kit, SITE), name, worker
        if self.kit.name != name:
            raise SettingError(f"--name {name!r}: the kit's certificate is that of {self.kit.name!r}; give that name, "
                               "or the kit of this site")
        self.program: Program | None = None
        self.joined, self.told = False, ""  # whether it was let in; why not, as last said
        self.began, self.next = 0.0, 0.0  # when it was started; not again before that

    def __enter__(self) -> Node:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self.program is not None:
            self.program.stop()

    def watch(self, say: Say, ended: Callable[[], bool]) -> None:
        """Start it where it does not run. Nothing is waited for here, so nobody need be asked whether to go on."""
        if self.program is not None and self.program.alive():
            self._look(self.program, say)
            return
        if self.program is not None:
            say(f"not connected: {failure(self.program, 'ended')}; trying again")
            self.program.kill()  # its job process may outlive it
            self.program, self.next = None, time.monotonic() + PAUSE
        if time.monotonic() >= self.next:
            own = {"worker": str(self.worker), "limit": LIMIT}
            self.joined, self.began, self.next = False, time.monotonic(), time.monotonic() + DOUBT
            self.program = start_site(self.kit, self.name, workspace(self.kit, self.home / "nvflare", own))

    def _look(self, program: Program, say: Say) -> None:
        """Whether it was let in; if not for some time, why. NVFlare may wait for ever then: it is started again."""
        now = time.monotonic()
        if self.joined:
            return
        if JOINED in program.said():
            self.joined, self.told = True, ""
            say(f"{self.name} is connected to {self.kit.host}:{self.kit.port}")
        elif now > self.next:
            why, self.next = why_not(self.kit, self.name), now + DOUBT
            if why != self.told:
                say(f"not connected: {why}; trying again")
                self.told = why
            if now - self.began > STUCK:
                program.kill()
