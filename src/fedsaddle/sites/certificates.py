"""What may be wrong with keys and certificates, at a server or at a node; a part of the `doctor`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fedsaddle.sites.doctor import INSTALL, OK, WARNING, WRONG, Finding, judged, refused

try:
    from cryptography.exceptions import InvalidSignature

    from fedsaddle.sites import keys
    CAN_READ = True
except ModuleNotFoundError:  # cryptography comes with an extra; the doctor says so and goes on
    CAN_READ = False

SOON = timedelta(days=30)
WHO = {0o007: (WRONG, "everybody"), 0o070: (WARNING, "its group")}


def check_keys(folder: Path, host: str | None = None) -> list[Finding]:
    """The keys in the folder of a server, or of one node, as `fedsaddle keys` lays them out."""
    if not CAN_READ:
        return [Finding(WRONG, "keys", "cannot be read without the package cryptography", INSTALL)]
    if not folder.is_dir():
        return [Finding(WRONG, "keys", f"{folder}: is no folder", "make it with `fedsaddle keys`")]
    found: list[Finding] = []
    authorities = None
    if (folder / keys.AUTHORITY).exists():
        authorities = _read(found, keys.AUTHORITY, keys.read_certificates, folder / keys.AUTHORITY)
        found += [check_dates(keys.AUTHORITY, authorities[0])] if authorities else []
    else:
        found.append(Finding(WRONG, keys.AUTHORITY, f"{folder / keys.AUTHORITY}: is not there",
                             "put the ca.crt of the server's authority there"))
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
    if of_node:
        return found + check_node(folder)
    at_server = (folder / keys.SERVER_KEY).exists() and not (folder / keys.AUTHORITY_KEY).exists()
    for node in sorted(path for path in (folder / keys.NODES).glob("[!.]*") if path.is_dir()):
        found += check_node(node, at_server) + _copy_of(node, authorities)
    return found


def check_node(node: Path, at_server: bool = False) -> list[Finding]:
    """The key pair of one node. A server needs the public half alone, and should have no more."""
    found: list[Finding] = []
    what, private = f"node {node.resolve().name}", node / keys.NODE_KEY
    public = _read(found, what, keys.read_public, node / keys.NODE_PUBLIC)
    if not private.exists():
        return [*found, Finding(OK, what, "its public key is here, and no private one")] if public else found
    key = _read(found, what, lambda path: keys.read_key(path, node=True), private)
    found += [check_permissions(what, private)] if key else []
    found += [check_pair(what, key, public, "key and key.pub")] if key and public else []
    if at_server:
        found.append(Finding(WARNING, what, f"{private}: the node's private key lies at the server",
                             "delete it here once the site has it, or have the site make a new one: `fedsaddle keys "
                             f"DIR --own {node.resolve().name}`"))
    return found


def _copy_of(node: Path, authorities: Any) -> list[Finding]:
    """The ca.crt that was laid out for a node, where one was."""
    found: list[Finding] = []
    path, what = node / keys.AUTHORITY, f"node {node.resolve().name}"
    copy = _read(found, what, keys.read_certificates, path) if path.exists() else None
    if copy and authorities and copy != authorities:
        found.append(Finding(WRONG, what, f"{path} is not the server's", "copy ca.crt there again"))
    return found


def _key_of(what: str, folder: Path, chain: Any) -> list[Finding]:
    found: list[Finding] = []
    key = _read(found, what, keys.read_key, folder / what)
    found += [check_permissions(what, folder / what)] if key else []
    found += [check_pair(what, key, chain[0].public_key(), "key and certificate")] if key and chain else []
    return found


def check_dates(what: str, certificate: Any, now: datetime | None = None, again: str = "") -> Finding:
    """again: how a new one is had, where it is not one of `fedsaddle keys`."""
    now, start, end = now or datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    again = again or ("make a new one (`fedsaddle keys DIR --renew-server`)" if what == "server.pem"
                      else "make a new authority")
    if now < start:
        return Finding(WRONG, what, f"is valid from {start:%Y-%m-%d %H:%M} UTC on", "set this machine's clock, or wait")
    if now >= end:
        return Finding(WRONG, what, f"expired on {end:%Y-%m-%d}", f"{again}, or set this machine's clock")
    if end - now < SOON:
        return Finding(WARNING, what, f"expires on {end:%Y-%m-%d}", f"{again} before that day")
    return Finding(OK, what, f"valid until {end:%Y-%m-%d}")


def check_hosts(certificate: Any, host: str | None) -> Finding:
    names = ", ".join(keys.hosts_of(certificate)) or "no name at all"
    return judged(not host or keys.covers(certificate, host), keys.SERVER, f"is for {names}",
                  f"is for {names}, not for {host}", "name the server as the certificate does, or make a new one with "
                  f"--renew-server --server {host}")


def check_chain(chain: Sequence[Any], authorities: Sequence[Any]) -> Finding:
    return judged(leads_to(chain, authorities), keys.SERVER, "is signed by ca.crt",
                  "is not signed by ca.crt: nodes will refuse it", "put the ca.crt of its authority here and on every "
                  "node, or make it again with --renew-server")


def check_pair(what: str, private: Any, public: Any, halves: str) -> Finding:
    return judged(keys.belong_together(private, public), what, f"{halves} belong together",
                  f"{halves} do not belong together", "put both files of one pair there")


def check_permissions(what: str, path: Path) -> Finding:
    if os.name == "posix":
        mode = path.stat().st_mode
        for bits, (level, who) in WHO.items():
            if mode & bits:
                return Finding(level, what, f"{path} is open to {who} ({mode & 0o777:04o})", f"chmod 600 {path}")
    return Finding(OK, what, "is open to its owner alone")


def leads_to(chain: Sequence[Any], authorities: Sequence[Any]) -> bool:
    """Whether the first certificate is signed by an authority, be it through the others of its file."""
    current, between = chain[0], list(chain[1:])
    while not any(_issued(current, authority) for authority in authorities):
        above = next((one for one in between if _issued(current, one)), None)
        if above is None:
            return False
        between.remove(above)
        current = above
    return True


def _issued(certificate: Any, issuer: Any) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _read(found: list[Finding], what: str, reader: Callable[[Path], Any], path: Path) -> Any:
    """What is in a file; None, and a finding, if it cannot be read."""
    try:
        return reader(path)
    except ValueError as error:
        found.append(refused(what, error))
        return None
