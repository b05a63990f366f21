"""What may keep a site from taking part, found before it tries: versions, the way to the server, clocks, files.

Every check returns findings and changes nothing. Nothing is connected to but the server that was named. Keys and
certificates are looked at in `certificates`, the kits of NVFlare in `nvflare.checks`.
"""

from __future__ import annotations

import http.client
import importlib
import os
import re
import shutil
import socket
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from fedsaddle.sites.flower.running import MARK

OK, WARNING, WRONG = "ok", "warning", "wrong"
INSTALL = 'pip install "fedsaddle[flower]"'
STARTED = "`fedsaddle server --keys`"
VERSIONS = {  # at least, below
    "fedsaddle": ("0", ""), "torch": ("2.11", ""), "flwr": ("1.41", "1.42"), "cryptography": ("42", ""),
    "typer": ("0.12", "0.21"), "rich": ("13", "15"),
}
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",  # our commands set them for what they start
         "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}
AHEAD, BEHIND = 5, 305  # seconds; Flower's server refuses what a node signed outside these
DRIFT = 3  # seconds that are worth a word; a Date header is old by up to one, and cut to whole ones
LITTLE, SCARCE = 1 << 29, 5 << 30  # bytes of free disk: too little, and worth a word
DATES, HOSTS = {9: "is not valid yet", 10: "has expired"}, (62, 64)  # verification codes of OpenSSL


class Finding(NamedTuple):
    level: str
    what: str
    found: str
    remedy: str = ""


class Remedies(NamedTuple):
    """For a server's certificate that is not trusted because of its dates, its hosts or its authority."""

    dates: str
    hosts: str
    authority: str


class Answer(NamedTuple):
    """Of a web server: its status, its date, and when it came by this machine's clock."""

    status: int
    date: str
    at: float


def check_python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return judged(sys.version_info >= (3, 11), "Python", version, version, "install Python 3.11 or newer")


def check_version(name: str, versions: Mapping[str, tuple[str, str]] | None = None, install: str = INSTALL) -> Finding:
    """versions: at least, below; those of VERSIONS if not given."""
    least, below = (VERSIONS if versions is None else versions)[name]
    wanted = f">={least},<{below}" if below else f">={least}"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(WRONG, name, "is not installed", install)
    good = _numbers(least) <= _numbers(version) and (not below or _numbers(version) < _numbers(below))
    return judged(good, name, version, f"{version}, where {wanted} is needed", f'pip install "{name}{wanted}"')


def check_quiet(environment: Mapping[str, str]) -> list[Finding]:
    """Whether Flower is kept from calling home, looking for updates and installing packages."""
    values = {name: environment.get(name, "") for name in QUIET}
    return [judged(values[name] in ("", wanted), name,
                   f"{'is' if values[name] else 'is not set here; our commands set it to'} {wanted}",
                   f"is set to {values[name]!r} here", f"export {name}={wanted}: our commands set it so for what they "
                   "start, but flwr commands of your own would not have it", WARNING)
            for name, wanted in QUIET.items()]


def check_server(host: str, port: int, authority: Path | None, seconds: float = 5.0) -> list[Finding]:
    """The way to the server, its certificate as a node would judge it, its health, and its clock."""
    try:
        trust = ssl.create_default_context(cafile=authority)
    except OSError:
        return [Finding(WRONG, "server", f"{authority}: cannot be read, so the server cannot be judged",
                        "put the ca.crt of its authority there")]
    try:
        connection = socket.create_connection((host, port), seconds)
    except OSError as error:
        return [Finding(WRONG, "server", f"{host}, port {port}: {error.strerror or 'no answer'}",
                        f"check the name and the port, that {STARTED} runs there, and that firewalls on the way let "
                        "it pass")]
    found = [Finding(OK, "server", f"{host}, port {port}: can be reached")]
    try:
        answer = _ask(connection, trust, host, MARK)
        found.append(Finding(OK, "TLS", "the certificate is good for this name and authority"))
        if answer.status == http.HTTPStatus.NO_CONTENT:  # other machines get nothing else from the gate
            return [*found, Finding(OK, "health", "`fedsaddle server` answers"), *_compared(answer)]
        answer = _ask(socket.create_connection((host, port), seconds), trust, host, "/health")
    except ssl.SSLCertVerificationError as error:
        return [*found, distrust(error, host, _renewals(host))]
    except (OSError, http.client.HTTPException) as error:
        return [*found, Finding(WRONG, "TLS", f"no HTTPS is spoken there ({type(error).__name__})",
                                f"check the port, and that the server was started with {STARTED}")]
    return [*found, judged(answer.status == http.HTTPStatus.OK, "health", "a server of Flower's own is well",
                           f"GET /health is answered with {answer.status}",
                           f"check that the port is that of {STARTED}, and read its log", WARNING), *_compared(answer)]


def _ask(connection: socket.socket, trust: ssl.SSLContext, host: str, path: str) -> Answer:
    """One request; the connection is closed after it."""
    with connection, trust.wrap_socket(connection, server_hostname=host) as secure:
        asked = time.time()
        web = http.client.HTTPConnection(host, secure.getpeername()[1])
        web.sock = secure  # so that it opens none of its own
        web.request("GET", path, headers={"Connection": "close"})
        answer = web.getresponse()
        return Answer(answer.status, answer.headers["Date"] or "", (asked + time.time()) / 2)


def _compared(answer: Answer) -> list[Finding]:
    try:
        date = parsedate_to_datetime(answer.date)
    except ValueError:
        return [Finding(WARNING, "clock", "could not be compared: the server tells no date",
                        "compare the clocks of both machines by hand")]
    return [check_clock(answer.at - date.timestamp() - 0.5)]  # the header is cut to whole seconds


def check_clock(ahead: float) -> Finding:
    """Of this machine, by seconds ahead of the server."""
    apart = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server"
    remedy = "set the clock of this machine, or of the server, by NTP"
    if ahead >= AHEAD or ahead <= -BEHIND:
        return Finding(WRONG, "clock", f"{apart}: Flower refuses a node more than {AHEAD} s ahead or {BEHIND} s behind",
                       remedy)
    return Finding(WARNING, "clock", apart, remedy) if abs(ahead) > DRIFT else Finding(OK, "clock", apart)


def distrust(error: ssl.SSLCertVerificationError, host: str, remedies: Remedies) -> Finding:
    if error.verify_code in DATES:
        return Finding(WRONG, "TLS", f"a certificate {DATES[error.verify_code]}, by this machine's clock",
                       remedies.dates)
    if error.verify_code in HOSTS:
        return Finding(WRONG, "TLS", f"the certificate is not for {host}", remedies.hosts)
    return Finding(WRONG, "TLS", f"the certificate is not trusted ({error.verify_message})", remedies.authority)


def _renewals(host: str) -> Remedies:
    return Remedies("set the clock, or renew it on the server: `fedsaddle keys DIR --renew-server`",
                    "name the server as it does, or renew it there: `fedsaddle keys DIR --renew-server --server "
                    f"{host}`",
                    "give the folder with the ca.crt of the server's authority as --keys")


def check_port(port: int) -> Finding:
    """Whether a server or a node could listen there."""
    what = f"port {port}"
    for host in ("127.0.0.1", "0.0.0.0"):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(os.name == "posix"))  # as servers do
            try:
                probe.bind((host, port))
            except (OSError, OverflowError) as error:
                return Finding(WRONG, what, f"cannot be used: {getattr(error, 'strerror', None) or 'is no port'}",
                               "choose another one of 1024 to 65535, or end the process that has it")
    return Finding(OK, what, "is free")


def check_data(file: Path, label: str | None, load: Callable[[Path, str | None], Any] | None = None) -> Finding:
    """Whether a site's table can be read; `load` is that of `data.sites` if not given."""
    return _tried("data", file, lambda: (load or _borrowed("data.sites", "load_site"))(file, label),
                  lambda clients: f"{len(clients.targets):,} rows")


def check_policy(file: Path, read: Callable[[Path], Any] | None = None) -> Finding:
    """Whether a site's policy can be read; `read` is that of `sites.policy` if not given."""
    return _tried("policy", file, lambda: (read or _borrowed("sites.policy", "read_policy"))(file),
                  lambda policy: "can be read")


def check_state(folder: Path) -> list[Finding]:
    """Whether a worker could keep its state there."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    return [judged(there.is_dir() and os.access(there, os.W_OK | os.X_OK), "state", f"{folder}: can be written to",
                   f"{folder}: cannot be written to", f"let the user that runs the site write in {there}"),
            judged(free >= SCARCE, "disk", f"{free / 2**30:,.0f} GiB free", f"{free / 2**30:.1f} GiB free",
                   f"make room on the disk of {there}", WARNING if free >= LITTLE else WRONG)]


def judged(good: bool, what: str, fine: str, bad: str, remedy: str, level: str = WRONG) -> Finding:
    return Finding(OK, what, fine) if good else Finding(level, what, bad, remedy)


def _tried(what: str, file: Path, act: Callable[[], Any], tell: Callable[[Any], str]) -> Finding:
    try:
        return Finding(OK, what, f"{file}: {tell(act())}")
    except ModuleNotFoundError as error:
        return Finding(WARNING, what, f"was not checked: there is no {error.name} here", "install it, and ask again")
    except Exception as error:
        if type(error).__name__ == "SettingError":
            return refused(what, error)
        return Finding(WRONG, what, f"{file}: cannot be read ({type(error).__name__})",  # its text may quote the file
                       "check that it is there and well formed")


def _borrowed(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"fedsaddle.{module}"), name)  # brings torch


def refused(what: str, error: Exception) -> Finding:
    """Our own errors end with the remedy."""
    reason, _, remedy = str(error).rpartition("; ")
    return Finding(WRONG, what, reason or remedy, remedy if reason else "")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", version.partition("+")[0])[:2])
