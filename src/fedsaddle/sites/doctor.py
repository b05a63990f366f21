"""What may keep a site from taking part, found before it tries: versions, keys, the way to the server, clocks, files.

Every check returns findings and changes nothing. Nothing is connected to but the server that was named.
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
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

try:
    from fedsaddle.sites import keys
    CAN_READ = True
except ModuleNotFoundError:  # cryptography comes with an extra; the doctor says so and goes on
    CAN_READ = False

OK, WARNING, WRONG = "ok", "warning", "wrong"
INSTALL = 'pip install "fedsaddle[flower]"'
VERSIONS = {  # at least, below
    "fedsaddle": ("0", ""), "torch": ("2.11", ""), "flwr": ("1.39", "1.42"), "cryptography": ("42", ""),
    "typer": ("0.12", "0.21"), "rich": ("13", "15"),
}
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",  # our commands set them for what they start
         "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}
SOON = timedelta(days=30)
AHEAD, BEHIND = 5, 305  # seconds; Flower's server refuses what a node signed outside these
DRIFT = 3  # seconds that are worth a word; a Date header is old by up to one, and cut to whole ones
LITTLE, SCARCE = 1 << 29, 5 << 30  # bytes of free disk: too little, and worth a word
DATES, HOSTS = {9: "is not valid yet", 10: "has expired"}, (62, 64)  # verification codes of OpenSSL
WHO = {0o007: (WRONG, "everybody"), 0o070: (WARNING, "its group")}


class Finding(NamedTuple):
    level: str
    what: str
    found: str
    remedy: str = ""


def check_python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return _judged(sys.version_info >= (3, 11), "Python", version, version, "install Python 3.11 or newer")


def check_version(name: str) -> Finding:
    least, below = VERSIONS[name]
    wanted = f">={least},<{below}" if below else f">={least}"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(WRONG, name, "is not installed", INSTALL)
    good = _numbers(least) <= _numbers(version) and (not below or _numbers(version) < _numbers(below))
    return _judged(good, name, version, f"{version}, where {wanted} is needed", f'pip install "{name}{wanted}"')


def check_quiet(environment: Mapping[str, str]) -> list[Finding]:
    """Whether Flower is kept from calling home, looking for updates and installing packages."""
    values = {name: environment.get(name, "") for name in QUIET}
    return [_judged(values[name] in ("", wanted), name,
                    f"{'is' if values[name] else 'is not set here; our commands set it to'} {wanted}",
                    f"is set to {values[name]!r} here", f"export {name}={wanted}: our commands set it so for what they "
                    "start, but flwr commands of your own would not have it", WARNING)
            for name, wanted in QUIET.items()]


def check_keys(folder: Path, host: str | None = None) -> list[Finding]:
    """The keys in the folder of a server, or of one node, as `fedsaddle keys` lays them out."""
    if not CAN_READ:
        return [Finding(WRONG, "keys", "cannot be read without the package cryptography", INSTALL)]
    if not folder.is_dir():
        return [Finding(WRONG, "keys", f"{folder}: is no folder", "make it with `fedsaddle keys`")]
    found: list[Finding] = []
    authorities = _read(found, keys.AUTHORITY, keys.read_certificates, folder / keys.AUTHORITY)
    found += [check_dates(keys.AUTHORITY, authorities[0])] if authorities else []
    of_node = (folder / keys.NODE_KEY).exists()
    if (folder / keys.AUTHORITY_KEY).exists():
        found += _key_of(keys.AUTHORITY_KEY, folder, authorities)
        if of_node:
            found.append(Finding(WRONG, keys.AUTHORITY_KEY, "lies on a node, which could then pass for the server",
                                 "remove it here, and begin with a new authority"))
    if (folder / keys.SERVER).exists() or (folder / keys.SERVER_KEY).exists():
        chain = _read(found, keys.SERVER, keys.read_certificates, folder / keys.SERVER)
        found += [check_dates(keys.SERVER, chain[0]), check_hosts(chain[0], host)] if chain else []
        found += [check_chain(chain, authorities)] if chain and authorities else []
        found += _key_of(keys.SERVER_KEY, folder, chain)
    nodes = [folder] if of_node else sorted(path for path in (folder / keys.NODES).glob("[!.]*") if path.is_dir())
    return found + [finding for node in nodes for finding in check_node(node, authorities)]


def check_node(node: Path, authorities: Any) -> list[Finding]:
    """The key pair of one node, and its copy of ca.crt."""
    found: list[Finding] = []
    what, private = f"node {node.resolve().name}", node / keys.NODE_KEY
    public = _read(found, what, keys.read_public, node / keys.NODE_PUBLIC)
    key = _read(found, what, lambda path: keys.read_key(path, node=True), private)
    found += [check_permissions(what, private)] if key else []
    found += [check_pair(what, key, public, "key and key.pub")] if key and public else []
    copy = _read(found, what, keys.read_certificates, node / keys.AUTHORITY)
    if copy and authorities and copy != authorities:
        found.append(Finding(WRONG, what, f"{node / keys.AUTHORITY} is not the server's", "copy ca.crt there again"))
    return found


def _key_of(what: str, folder: Path, chain: Any) -> list[Finding]:
    found: list[Finding] = []
    key = _read(found, what, keys.read_key, folder / what)
    found += [check_permissions(what, folder / what)] if key else []
    found += [check_pair(what, key, chain[0].public_key(), "key and certificate")] if key and chain else []
    return found


def check_dates(what: str, certificate: Any, now: datetime | None = None) -> Finding:
    now, start, end = now or datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    again = "make a new one (`fedsaddle keys DIR --renew-server`)" if what == "server.pem" else "make a new authority"
    if now < start:
        return Finding(WRONG, what, f"is valid from {start:%Y-%m-%d %H:%M} UTC on", "set this machine's clock, or wait")
    if now >= end:
        return Finding(WRONG, what, f"expired on {end:%Y-%m-%d}", f"{again}, or set this machine's clock")
    if end - now < SOON:
        return Finding(WARNING, what, f"expires on {end:%Y-%m-%d}", f"{again} before that day")
    return Finding(OK, what, f"valid until {end:%Y-%m-%d}")


def check_hosts(certificate: Any, host: str | None) -> Finding:
    names = ", ".join(keys.hosts_of(certificate)) or "no name at all"
    return _judged(not host or keys.covers(certificate, host), keys.SERVER, f"is for {names}",
                   f"is for {names}, not for {host}", "name the server as the certificate does, or make a new one with "
                   f"--renew-server --server {host}")


def check_chain(chain: Sequence[Any], authorities: Sequence[Any]) -> Finding:
    return _judged(keys.leads_to(chain, authorities), keys.SERVER, "is signed by ca.crt",
                   "is not signed by ca.crt: nodes will refuse it", "put the ca.crt of its authority here and on every "
                   "node, or make it again with --renew-server")


def check_pair(what: str, private: Any, public: Any, halves: str) -> Finding:
    return _judged(keys.belong_together(private, public), what, f"{halves} belong together",
                   f"{halves} do not belong together", "put both files of one pair there")


def check_permissions(what: str, path: Path) -> Finding:
    if os.name == "posix":
        mode = path.stat().st_mode
        for bits, (level, who) in WHO.items():
            if mode & bits:
                return Finding(level, what, f"{path} is open to {who} ({mode & 0o777:04o})", f"chmod 600 {path}")
    return Finding(OK, what, "is open to its owner alone")


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
                        "check the name and the port, that the server runs, and that firewalls on the way let it pass")]
    found = [Finding(OK, "server", f"{host}, port {port}: can be reached")]
    try:
        with connection, trust.wrap_socket(connection, server_hostname=host) as secure:
            found.append(Finding(OK, "TLS", "the certificate is good for this name and authority"))
            return found + _ask_health(secure, host, port)
    except ssl.SSLCertVerificationError as error:
        return [*found, _distrust(error, host)]
    except (OSError, http.client.HTTPException) as error:
        return [*found, Finding(WRONG, "TLS", f"no HTTPS is spoken there ({type(error).__name__})",
                                "check the port, and that the server was started with --ssl-certfile and so on")]


def _ask_health(secure: ssl.SSLSocket, host: str, port: int) -> list[Finding]:
    asked = time.time()
    web = http.client.HTTPConnection(host, port)
    web.sock = secure  # so that it opens none of its own
    web.request("GET", "/health", headers={"Connection": "close"})
    answer = web.getresponse()
    own = (asked + time.time()) / 2
    found = [Finding(OK, "health", "the server is well") if answer.status == http.HTTPStatus.OK else
             Finding(WARNING, "health", f"GET /health is answered with {answer.status}",
                     "check that the port is that of the server, and read its log")]
    try:
        date = parsedate_to_datetime(answer.headers["Date"] or "")
    except ValueError:
        return [*found, Finding(WARNING, "clock", "could not be compared: the server tells no date",
                                "compare the clocks of both machines by hand")]
    return [*found, check_clock(own - date.timestamp() - 0.5)]  # the header is cut to whole seconds


def check_clock(ahead: float) -> Finding:
    """Of this machine, by seconds ahead of the server."""
    apart = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server"
    remedy = "set the clock of this machine, or of the server, by NTP"
    if ahead >= AHEAD or ahead <= -BEHIND:
        return Finding(WRONG, "clock", f"{apart}: Flower refuses a node more than {AHEAD} s ahead or {BEHIND} s behind",
                       remedy)
    return Finding(WARNING, "clock", apart, remedy) if abs(ahead) > DRIFT else Finding(OK, "clock", apart)


def _distrust(error: ssl.SSLCertVerificationError, host: str) -> Finding:
    if error.verify_code in DATES:
        return Finding(WRONG, "TLS", f"a certificate {DATES[error.verify_code]}, by this machine's clock",
                       "set the clock, or renew it on the server: `fedsaddle keys DIR --renew-server`")
    if error.verify_code in HOSTS:
        return Finding(WRONG, "TLS", f"the certificate is not for {host}", "name the server as it does, or "
                       f"renew it there: `fedsaddle keys DIR --renew-server --server {host}`")
    return Finding(WRONG, "TLS", f"the certificate is not trusted ({error.verify_message})",
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
    """Whether a site's table can be read; `load` is that of `sites.data` if not given."""
    return _tried("data", file, lambda: (load or _borrowed("data", "load_site"))(file, label),
                  lambda clients: f"{len(clients.targets):,} rows")


def check_policy(file: Path, read: Callable[[Path], Any] | None = None) -> Finding:
    """Whether a site's policy can be read; `read` is that of `sites.policy` if not given."""
    return _tried("policy", file, lambda: (read or _borrowed("policy", "read_policy"))(file),
                  lambda policy: "can be read")


def check_state(folder: Path) -> list[Finding]:
    """Whether a worker could keep its state there."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    return [_judged(there.is_dir() and os.access(there, os.W_OK | os.X_OK), "state", f"{folder}: can be written to",
                    f"{folder}: cannot be written to", f"let the user that runs the site write in {there}"),
            _judged(free >= SCARCE, "disk", f"{free / 2**30:,.0f} GiB free", f"{free / 2**30:.1f} GiB free",
                    f"make room on the disk of {there}", WARNING if free >= LITTLE else WRONG)]


def _judged(good: bool, what: str, fine: str, bad: str, remedy: str, level: str = WRONG) -> Finding:
    return Finding(OK, what, fine) if good else Finding(level, what, bad, remedy)


def _tried(what: str, file: Path, act: Callable[[], Any], tell: Callable[[Any], str]) -> Finding:
    try:
        return Finding(OK, what, f"{file}: {tell(act())}")
    except ModuleNotFoundError as error:
        return Finding(WARNING, what, f"was not checked: there is no {error.name} here", "install it, and ask again")
    except Exception as error:
        if type(error).__name__ == "SettingError":
            return _refused(what, error)
        return Finding(WRONG, what, f"{file}: cannot be read ({type(error).__name__})",  # its text may quote the file
                       "check that it is there and well formed")


def _borrowed(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"fedsaddle.sites.{module}"), name)  # brings torch


def _read(found: list[Finding], what: str, reader: Callable[[Path], Any], path: Path) -> Any:
    """What is in a file; None, and a finding, if it cannot be read."""
    try:
        return reader(path)
    except ValueError as error:
        found.append(_refused(what, error))
        return None


def _refused(what: str, error: Exception) -> Finding:
    """Our own errors end with the remedy."""
    reason, _, remedy = str(error).rpartition("; ")
    return Finding(WRONG, what, reason or remedy, remedy if reason else "")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", version.partition("+")[0])[:2])
