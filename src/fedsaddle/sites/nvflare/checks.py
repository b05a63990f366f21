"""What may keep a server or a site from running on NVFlare, found in its kit before it tries; a part of the `doctor`.

A kit is only read. A site's server is connected to, as the kit names it; with a server's kit, this machine alone.
NVFlare need not be installed: the doctor says so and goes on.
"""

from __future__ import annotations

import json
import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsaddle.contracts import SettingError
from fedsaddle.sites import doctor
from fedsaddle.sites.certificates import CAN_READ, check_dates, check_pair, check_permissions, leads_to
from fedsaddle.sites.doctor import OK, WARNING, WRONG, Finding, Remedies, judged, refused
from fedsaddle.sites.nvflare.kit import ABOUT, ADMIN, SERVER, SITE, Kit, read_kit
from fedsaddle.sites.nvflare.running import Refused, knock

INSTALL = 'pip install "fedsaddle[nvflare]"'
VERSIONS = {name: bounds for name, bounds in doctor.VERSIONS.items() if name not in ("flwr", "cryptography")} | {
    "nvflare": ("2.9", "2.10"), "cryptography": ("45", "")}  # at least, below; the second comes with the first
ROOT = "rootCA.pem"
OWNER = {SERVER: "server", SITE: "client", ADMIN: "client"}  # the names of a kit's own certificate and key
LOCAL = ("authorization.json", "log_config.json", "resources.json")
RUNS = Path("runs")  # where `fedsaddle server` puts what it stores, unless told otherwise
STARTED = "`fedsaddle server --engine nvflare`"
AGAIN = "copy the whole kit there again"
ANEW = "make all kits anew (`fedsaddle provision FILE --out NEW`) and hand them out"
OTHER = "take the server's and this kit from one run of `fedsaddle provision`"


def check_versions() -> list[Finding]:
    return [doctor.check_version(name, VERSIONS, INSTALL) for name in VERSIONS]


def check_kit(folder: Path, name: str | None = None, home: Path | None = None) -> list[Finding]:
    """A kit, and what its owner needs beside it. name: that of the site, as `node` is told; home: where a server
    stores, if that is looked at already."""
    if not CAN_READ:
        return [Finding(WRONG, "kit", "cannot be read without the package cryptography", INSTALL)]
    try:
        kit = _kit(folder)
    except SettingError as error:
        return [refused("kit", error)]
    found, usable = check_content(kit)
    if name is not None:
        found.append(judged(kit.kind == SITE and kit.name == name, "--name", f"{name!r} is the kit's",
                            f"{name!r}, but the kit is that of {kit.kind} {kit.name!r}",
                            "give that name, or the kit of this site"))
    if kit.kind == SITE:
        found += check_way(kit) if usable else [
            Finding(WARNING, "server", "was not asked: there is no certificate to show", "mend the kit, and ask again")]
        found.append(Finding(OK, "clock", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC here; an NVFlare server tells none "
                                          "to compare with"))
    if kit.kind == SERVER:
        beside, admin = check_admin(kit)
        found += beside + [check_port(port, admin) for port in (kit.port, kit.admin_port)]
        found += doctor.check_state(RUNS) if home is None else []
    return found


def check_content(kit: Kit, whose: str = "") -> tuple[list[Finding], bool]:
    """The files of a kit, and whether its certificate could be shown. whose: a word before their names."""
    missing = [file for file in files_of(kit) if not (kit.folder / file).is_file()]
    if missing or not (kit.folder / "local").is_dir():
        return [Finding(WRONG, f"{whose}kit", f"{kit.folder}: lacks {', '.join(missing) or 'local'}", AGAIN)], False
    found = [Finding(OK, f"{whose}kit", f"{kit.folder}: of {kit.kind} {kit.name!r}, with all its files")]
    found += [finding._replace(what=whose + finding.what) for finding in check_settings(kit)]
    certificates, usable = check_certificates(kit)
    return found + [finding._replace(what=whose + finding.what) for finding in certificates], usable


def files_of(kit: Kit) -> list[str]:
    own = [f"startup/{name}" for name in (ROOT, f"{OWNER[kit.kind]}.crt", f"{OWNER[kit.kind]}.key", _start(kit))]
    return own if kit.kind == ADMIN else [*own, *(f"local/{name}" for name in LOCAL)]


def check_settings(kit: Kit) -> list[Finding]:
    """What NVFlare reads: well formed, and of the address that kit.json names."""
    broken = [file for file in files_of(kit) if file.endswith(".json") and _content(kit.folder / file) is None]
    if broken:
        return [Finding(WRONG, file, "cannot be read, or is no JSON", AGAIN) for file in broken]
    start = _content(kit.folder / "startup" / _start(kit))
    try:
        if kit.kind == ADMIN:
            said, wanted = f"port {start['admin']['port']}", f"port {kit.admin_port}"
        else:
            server, wanted = start["servers"][0], f"{kit.host}:{kit.port}"
            said = server["service"]["target"]
            if kit.kind == SERVER:
                said, wanted = f"{said}, port {server['admin_port']}", f"{wanted}, port {kit.admin_port}"
    except (LookupError, TypeError):
        return [Finding(WRONG, _start(kit), "names no server", AGAIN)]
    return [judged(said == wanted, _start(kit), f"is for {wanted}, as {ABOUT}",
                   f"is for {said}, but {ABOUT} for {wanted}: a kit that is there keeps its address", ANEW)]


def check_certificates(kit: Kit) -> tuple[list[Finding], bool]:
    """The authority, the kit's own certificate and its key, and whether these two can be used."""
    from cryptography.x509.oid import NameOID  # noqa: PLC0415  # an extra

    from fedsaddle.sites import keys  # noqa: PLC0415

    startup, owner, secret = kit.folder / "startup", f"{OWNER[kit.kind]}.crt", f"{OWNER[kit.kind]}.key"
    try:
        authorities, chain = keys.read_certificates(startup / ROOT), keys.read_certificates(startup / owner)
        key = keys.read_key(startup / secret)
    except SettingError as error:
        return [refused("kit", error)], False
    name = next((str(one.value) for one in chain[0].subject.get_attributes_for_oid(NameOID.COMMON_NAME)), "")
    pair = check_pair(secret, key, chain[0].public_key(), "key and certificate")
    found = [check_dates(ROOT, authorities[0], again=ANEW), check_dates(owner, chain[0], again=ANEW),
             judged(leads_to(chain, authorities), owner, f"is signed by {ROOT}",
                    f"is not signed by {ROOT}: it will be refused", AGAIN),
             judged(name == kit.name, owner, f"is that of {kit.name!r}",
                    f"is that of {name!r}, but {ABOUT} says {kit.name!r}: it will be refused", AGAIN),
             pair, check_permissions(secret, startup / secret)]
    if kit.kind == SERVER:
        lacking = [host for host in (kit.host, "localhost") if not keys.covers(chain[0], host)]
        found.append(judged(not lacking, owner, f"is for {', '.join(keys.hosts_of(chain[0]))}",
                            f"is not for {' and '.join(lacking)}", ANEW))
    return found, pair.level == OK


def check_way(kit: Kit) -> list[Finding]:
    """From a site to its server, and what the server says to the kit's certificate."""
    place, way = f"{kit.host}, port {kit.port}", f"check that {STARTED} runs there"
    reached = Finding(OK, "server", f"{place}: can be reached")
    try:
        knock(kit)
    except socket.gaierror as error:
        return [Finding(WRONG, "server", f"{kit.host}: no machine of this name is found ({error.strerror})",
                        "check this machine's name service, or enter the server in its hosts file")]
    except ssl.SSLCertVerificationError as error:
        return [reached, doctor.distrust(error, kit.host, Remedies(
            f"set the clock, or {ANEW}", f"{OTHER}, or {ANEW}", OTHER))]
    except ssl.SSLError as error:
        return [reached, Finding(WRONG, "TLS", f"no TLS is spoken there ({error.reason or type(error).__name__})",
                                 f"{way}, and that nothing else has its port")]
    except Refused:
        return [reached, Finding(WRONG, "TLS", "the server does not accept this kit's certificate",
                                 f"{OTHER}; where one has expired, {ANEW}")]
    except OSError as error:
        return [Finding(WRONG, "server", f"{place}: {error.strerror or 'no answer in time'}",
                        f"{way}, and that firewalls on the way let it pass")]
    return [reached, Finding(OK, "TLS", "server and site accept each other's certificates")]


def check_admin(kit: Kit) -> tuple[list[Finding], Kit | None]:
    """The kit beside a server's, in whose name it submits; and that kit, where it can be used."""
    from fedsaddle.sites import keys  # noqa: PLC0415  # an extra

    folder = kit.folder.parent / ADMIN
    try:
        admin = _kit(folder, ADMIN)
    except SettingError as error:
        reason = refused("admin kit", error).found.replace("--kit ", "")
        return [Finding(WRONG, "admin kit", f"{reason}; the server needs it to submit",
                        f"put the folder {ADMIN} of `fedsaddle provision` beside that of the server")], None
    found, usable = check_content(admin, "admin ")
    if usable:
        try:
            ours = leads_to(keys.read_certificates(admin.folder / "startup" / "client.crt"),
                            keys.read_certificates(kit.folder / "startup" / ROOT))
        except SettingError:  # said already of the server's kit
            return found, None
        found.append(judged(ours and admin.admin_port == kit.admin_port, "admin kit", "is of this server",
                            f"{admin.folder}: is that of another server", OTHER))
    return found, admin if usable else None


def check_port(port: int, admin: Kit | None) -> Finding:
    """Whether the server could listen there, or does. admin: the kit with which it is asked."""
    finding = doctor.check_port(port)
    if finding.level == OK:
        return finding
    if admin is not None:
        try:
            knock(admin._replace(host="localhost", port=port))
            return Finding(OK, finding.what, "is held by the server of this kit, which runs")
        except (OSError, Refused):  # errors of TLS are OSErrors
            pass
    return finding._replace(remedy=f"end the process that has it, or choose another port, and {ANEW}")


def _kit(folder: Path, kind: str | None = None) -> Kit:
    """Of this kind, or of whichever it is."""
    about = _content(folder / ABOUT)
    said = str(about.get("kind")) if isinstance(about, dict) else ""
    kit = read_kit(folder, kind or (said if said in OWNER else SITE))
    if not all(isinstance(text, str) for text in (kit.name, kit.org, kit.host)) or not all(
            isinstance(port, int) and 0 < port < 1 << 16 for port in (kit.port, kit.admin_port)):
        raise SettingError(f"--kit {str(folder)!r}: its {ABOUT} names no server; {AGAIN}")
    return kit


def _start(kit: Kit) -> str:
    return f"fed_{ADMIN if kit.kind == ADMIN else OWNER[kit.kind]}.json"


def _content(path: Path) -> Any:
    """Of a JSON file; None if it has none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
