"""NVFlare's programs, as a server and a site start them from their kits, and what their logs mean."""

from __future__ import annotations

import re
import socket
import ssl
import sys
import time
from pathlib import Path
from types import MappingProxyType

from fedsaddle.contracts import SettingError
from fedsaddle.sites.nvflare.kit import Kit
from fedsaddle.sites.programs import Program, end_left_behind, freed_port
from fedsaddle.sites.wire import TransportFailed

LOOK = 0.1
PROBE = 5.0  # seconds for a server to answer
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"  # with which every HTTP/2 connection begins
HEARTBEAT = 2  # seconds between two signs of life of a site
STARTED, JOINED = "Server started", "Verified received token and signature"  # in the logs
TOLD = MappingProxyType({"GRPC_VERBOSITY": "INFO"})  # else gRPC tells nobody whom it turned away
REFUSALS = {  # what the server's log says of those it turned away, and what it means
    re.compile(r"authenticated as '([^']{1,64})' but claimed endpoint '([^']{1,64})'"):
        "the certificate of {!r} was shown by somebody who calls itself {!r}",
    re.compile(r"Handshake failed with error .{1,80}CERTIFICATE_VERIFY_FAILED(?:: ([\w -]{1,64}))?"):
        "somebody showed a certificate that is not from the authority of the kits, or is not valid now ({})",
    re.compile(r"Handshake failed with error .{1,80}PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        "somebody showed no certificate",
}
REASONS = {  # what logs of NVFlare say, and what it means
    "No module named 'nvflare'": "NVFlare is not installed; install fedsaddle[nvflare]",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not from the authority of this kit",
    "certificate has expired": "a certificate has expired; provision again",
    "address already in use": "the port is taken",
}


class NVFlareFailed(TransportFailed):
    """A program of NVFlare ended, or did not start. The text says which and why."""


class Refused(Exception):
    """The server showed the certificate that it should, and hung up when it saw ours."""


def failure(program: Program, what: str) -> NVFlareFailed:
    log = program.said()
    why = next((meaning for sign, meaning in REASONS.items() if sign in log), f"its log is {program.log}")
    return NVFlareFailed(f"{program.name}: {what}: {why}")


def refusals(log: str) -> list[str]:
    """Whom the server turned away, and why; each once."""
    return sorted({meaning.format(*found.groups("no reason given")) for sign, meaning in REFUSALS.items()
                   for found in sign.finditer(log)})


def start_server(kit: Kit, space: Path, seconds: float) -> Program:
    """The server's parent process; it listens when this returns."""
    end_left_behind(space, "nvflare-server")  # it would hold the port
    for port in (kit.port, kit.admin_port):
        try:
            freed_port("0.0.0.0", port)
        except OSError as error:
            raise SettingError(f"port {port} of the kit: cannot be listened at ({error.strerror}); end what listens "
                               "there, or provision with another port") from None
    program = Program("nvflare-server", _line("server", kit, space), space, TOLD)
    _wait(program, STARTED, seconds)
    return program


def start_site(kit: Kit, name: str, space: Path) -> Program:
    """The site's parent process. It looks for the server by itself."""
    return Program("nvflare-site", [*_line("client", kit, space), f"uid={name}", f"heart_beat_interval={HEARTBEAT}"],
                   space)


def _line(kind: str, kit: Kit, space: Path) -> list[str]:
    return [Path(sys.executable).name, "-u", "-m", f"nvflare.private.fed.app.{kind}.{kind}_train", "-m", str(space),
            "-s", f"fed_{kind}.json", "--set", "secure_train=true", f"org={kit.org}", "config_folder=config"]


def _wait(program: Program, word: str, seconds: float) -> None:
    until = time.monotonic() + seconds
    try:
        while word not in program.said():
            if not program.alive():
                raise failure(program, "ended at the start")
            if time.monotonic() > until:
                raise failure(program, f"not ready after {seconds:.0f} s")
            time.sleep(LOOK)
    except BaseException:
        program.kill()
        raise


def knock(kit: Kit) -> None:
    """Shows the kit's certificate to the server, as a site does, and is greeted. If not: OSError, nobody answers;
    SSLCertVerificationError, it is not the server of this kit; SSLError, no TLS is spoken; Refused, it hangs up."""
    keys = kit.folder / "startup"
    with socket.create_connection((kit.host, kit.port), timeout=PROBE) as plain:
        context = ssl.create_default_context(cafile=keys / "rootCA.pem")
        context.load_cert_chain(keys / "client.crt", keys / "client.key")
        context.set_alpn_protocols(["h2"])
        with context.wrap_socket(plain, server_hostname=kit.host) as secured:
            try:
                secured.sendall(GREETING)
                greeted = secured.recv(1)
            except (ssl.SSLError, ConnectionError):
                greeted = b""
            if not greeted:  # it looks at our certificate after its own part of the handshake
                raise Refused(f"{kit.host}:{kit.port}")


def why_not(kit: Kit, name: str) -> str:
    """Why a site is not let in, seen by a connection of our own: NVFlare's log does not say."""
    place = f"{kit.host}:{kit.port}"
    try:
        knock(kit)
    except ssl.SSLCertVerificationError:
        return f"the certificate of the server at {place} is not from the authority of this kit, or not for that host"
    except (ssl.SSLError, Refused):
        return (f"the server at {place} does not accept this kit's certificate: another authority made it, or it has "
                "expired")
    except OSError as error:
        return f"nobody answers at {place} ({error.strerror or 'no answer in time'})"
    return f"the server at {place} has not let it in yet, or not under the name {name!r}"
