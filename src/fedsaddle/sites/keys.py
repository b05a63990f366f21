"""Keys for real sites: a test authority, a certificate for the server, a key pair for every node.

The server shows a certificate that every node checks against ca.crt. A node has no certificate: it signs with an EC
key in OpenSSH's format, as Flower reads it, and the server lets in whose public half it has. A site may make its own
pair, so that the private half never travels. What is there is never overwritten.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY, AUTHORITY_KEY, SERVER, SERVER_KEY = "ca.crt", "ca.key", "server.pem", "server.key"
NODES, NODE_KEY, NODE_PUBLIC = "nodes", "key", "key.pub"
ALWAYS = ("localhost", "127.0.0.1")
EARLY = timedelta(hours=1)  # a machine whose clock is behind takes a new certificate all the same
LONGEST = 36500
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
HOST = re.compile(rf"(\*\.)?({LABEL}\.)*(?![0-9]+$){LABEL}")  # numbers alone at the end are a mistyped address
CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)


def check(folder: Path, hosts: Sequence[str], names: Sequence[str], days: int) -> None:
    """Refuse what cannot be made, before anything is written."""
    _end(days)
    for host in hosts:
        _check_host(host)
    for name in names:
        _check_name(name)
    if not hosts and not (folder / SERVER).exists():
        raise _refusal("--server: is not given; give the name or address at which nodes reach the server, or "
                       "localhost to try it on one machine")


def make_authority(folder: Path, days: int) -> Path:
    """ca.crt and ca.key of a new authority. One that is there stays; its key may be kept elsewhere."""
    certificate, key_file = folder / AUTHORITY, folder / AUTHORITY_KEY
    if certificate.exists():
        return certificate
    for left in (key_file, folder / SERVER):
        if left.exists():
            raise _refusal(f"{left}: is there without {AUTHORITY}; put {AUTHORITY} back, or begin in a new folder")
    end = _end(days)
    _private_folder(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"fedsaddle test authority {secrets.token_hex(4)}")
    made = _signed(name, name, key.public_key(), key, end, [
        (x509.BasicConstraints(ca=True, path_length=0), True), (_usage(authority=True), True),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)])
    _write(key_file, _pem(key), 0o600)
    _write(certificate, made.public_bytes(forms.Encoding.PEM), 0o644)
    return certificate


def server_certificate(folder: Path, hosts: Sequence[str], days: int, renew: bool = False) -> Path:
    """server.pem and server.key, for these hosts, localhost and 127.0.0.1. A certificate that is there stays, unless
    it is to be renewed: then it is put aside, and the new one has its hosts where none are given."""
    certificate, key_file = folder / SERVER, folder / SERVER_KEY
    check(folder, hosts, (), days)
    present = _both_or_none(certificate, key_file)
    old = read_certificates(certificate)[0] if present else None
    if old and not renew:
        missing = [host for host in hosts if not covers(old, host)]
        if missing:
            raise _refusal(f"--server {missing[0]!r}: is not in {certificate}, which is for "
                           f"{', '.join(hosts_of(old))}; make a new one with --renew-server and every --server")
        return certificate
    wanted = [*hosts] or (hosts_of(old) if old else [])
    key, made = _server_pair(folder, list(dict.fromkeys([*wanted, *ALWAYS])), days)
    for path in present:
        path.rename(_aside(path))
    _write(key_file, _pem(key), 0o600)
    _write(certificate, made.public_bytes(forms.Encoding.PEM), 0o644)
    return certificate


def node_key(folder: Path, name: str) -> Path:
    """nodes/NAME with key, key.pub and ca.crt: all that a node needs. A node that is there stays as it is."""
    _check_name(name)
    target, authority = folder / NODES / name, folder / AUTHORITY
    if (target / NODE_KEY).exists():
        return target / NODE_KEY
    if target.exists():
        raise _refusal(f"--node {name!r}: {target} is there without a key; leave it so if the site made its own, else "
                       "move it away, or choose another name")
    if not authority.exists():
        raise _refusal(f"--node {name!r}: {authority} is not there; make the authority first, or put your own there")
    (folder / NODES).mkdir(mode=0o700, exist_ok=True)
    made = folder / NODES / f".{name}.{secrets.token_hex(4)}"  # renamed at the end: a node is there whole or not at all
    made.mkdir(mode=0o700)
    _write_pair(made, name)
    _write(made / AUTHORITY, authority.read_bytes(), 0o644)
    made.rename(target)
    return target / NODE_KEY


def own_key(folder: Path, name: str) -> Path:
    """key and key.pub, made where they are used: the first never leaves the site. A pair that is there stays."""
    _check_name(name, "--own")
    for left in (AUTHORITY_KEY, SERVER_KEY, NODES):
        if (folder / left).exists():
            raise _refusal(f"--own {name!r}: {folder / left} is there, so this is a server's folder; choose another "
                           "one, or make the key with --node")
    if not _both_or_none(folder / NODE_KEY, folder / NODE_PUBLIC):
        _private_folder(folder)
        _write_pair(folder, name)
    return folder / NODE_KEY


def expiry(path: Path) -> datetime:
    """When the certificate in a file expires, in UTC."""
    return read_certificates(path)[0].not_valid_after_utc


# Files that may come from anywhere: reading raises SettingError with the reason.
def read_certificates(path: Path) -> list[x509.Certificate]:
    """The certificates of a PEM file, the owner's first."""
    content = _content(path)
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise _refusal(f"{path}: holds no certificate in PEM form; convert it, or put the right file there") from error


def read_key(path: Path, node: bool = False) -> Any:
    """A private key: of a certificate, in PEM form, or of a node, in OpenSSH's."""
    content = _content(path)
    try:
        key = forms.load_ssh_private_key(content, None) if node else forms.load_pem_private_key(content, None)
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        if isinstance(error, TypeError) or "assword" in str(error):
            raise _refusal(f"{path}: is locked with a password, which nobody can type in; store it without") from None
        form = "OpenSSH's form, as `fedsaddle keys` makes it" if node else "PEM form"
        raise _refusal(f"{path}: holds no private key in {form}; put the right file there") from None
    if node and not (isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, CURVES)):
        raise _refusal(f"{path}: is no EC key on a NIST curve; make one with `fedsaddle keys`")
    return key


def read_public(path: Path) -> Any:
    """The public key of a node, in OpenSSH's form."""
    content = _content(path)
    with suppress(ValueError, UnsupportedAlgorithm):
        key = forms.load_ssh_public_key(content)
        if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, CURVES):
            return key
    raise _refusal(f"{path}: holds no public key in OpenSSH's form, EC on a NIST curve; make one with `fedsaddle keys`")


def belong_together(private: Any, public: Any) -> bool:
    """Whether two keys are the halves of one pair."""
    halves = [key.public_bytes(forms.Encoding.DER, forms.PublicFormat.SubjectPublicKeyInfo)
              for key in (private.public_key(), public)]
    return bool(halves[0] == halves[1])


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """The names and addresses that a certificate is for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:  # clients look nowhere else
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def covers(certificate: x509.Certificate, host: str) -> bool:
    wanted = str(_address(host) or host).lower()
    names = [name.lower() for name in hosts_of(certificate)]
    return wanted in names or f"*.{wanted.partition('.')[2]}" in names


def _server_pair(folder: Path, hosts: Sequence[str], days: int) -> tuple[Any, x509.Certificate]:
    authority, above = read_certificates(folder / AUTHORITY)[0], folder / AUTHORITY_KEY
    if not above.exists():
        raise _refusal(f"{above}: is not there, and signs the certificate of the server; put it back for the moment, "
                       f"or bring {SERVER} and {SERVER_KEY} from your own authority")
    signer = read_key(above)
    if not belong_together(signer, authority.public_key()):
        raise _refusal(f"{above}: is not the key of {folder / AUTHORITY}; put the right one there")
    end = min(_end(days), authority.not_valid_after_utc)
    if end <= datetime.now(UTC):
        raise _refusal(f"{folder / AUTHORITY}: expired on {end:%Y-%m-%d}; begin in a new folder, and give every node "
                       "the new ca.crt")
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([x509.IPAddress(address) if (address := _address(host)) else x509.DNSName(host)
                                         for host in hosts])
    made = _signed(_name("fedsaddle server"), authority.subject, key.public_key(), signer, end, [
        (x509.BasicConstraints(ca=False, path_length=None), True), (_usage(authority=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False), (names, False),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False)])
    return key, made


def _signed(subject: x509.Name, issuer: x509.Name, public: Any, signer: Any, end: datetime,
            extensions: Sequence[tuple[x509.ExtensionType, bool]]) -> x509.Certificate:
    builder = x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number(), datetime.now(UTC) - EARLY,
                                      end)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(signer, hashes.SHA256())


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(digital_signature=not authority, content_commitment=False, key_encipherment=False,
                         data_encipherment=False, key_agreement=False, key_cert_sign=authority, crl_sign=authority,
                         encipher_only=False, decipher_only=False)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _end(days: int) -> datetime:
    if not 1 <= days <= LONGEST:
        raise _refusal(f"--days {days}: is no life of a certificate; give 1 to {LONGEST}")
    return datetime.now(UTC) + timedelta(days=days)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _check_host(host: str) -> None:
    if not _address(host) and not (HOST.fullmatch(host) and len(host) <= 253):
        raise _refusal(f"--server {host!r}: is neither a host name nor an IP address; leave out https:// and the port, "
                       "and write other letters than a to z in the form xn--")


def _check_name(name: str, option: str = "--node") -> None:
    if not NAME.fullmatch(name):
        raise _refusal(f"{option} {name!r}: is no name for a node; use up to 64 letters, digits, - and _, with a "
                       "letter or a digit first")


def _write_pair(folder: Path, name: str) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    _write(folder / NODE_KEY, key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.OpenSSH, forms.NoEncryption()),
           0o600)
    public = key.public_key().public_bytes(forms.Encoding.OpenSSH, forms.PublicFormat.OpenSSH)
    _write(folder / NODE_PUBLIC, public + f" {name}\n".encode(), 0o644)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())


def _both_or_none(first: Path, second: Path) -> list[Path]:
    present = [path for path in (first, second) if path.exists()]
    if len(present) == 1:
        raise _refusal(f"{present[0]}: is there without its other half; put {first.name} and {second.name} back, or "
                       "move it away")
    return present


def _private_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not any(folder.iterdir()):  # others' files may have other readers
        folder.chmod(0o700)


def _aside(path: Path) -> Path:
    return next(free for n in range(1, 10_000) if not (free := path.with_name(f"{path.name}.old{n}")).exists())


def _write(path: Path, content: bytes, mode: int) -> None:
    """A new file; one that is there is an error. Private from the first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
        stream.write(content)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _refusal(f"{path}: cannot be read ({error.strerror}); check the name and its permissions") from None


def _refusal(text: str) -> Exception:
    from fedsaddle.contracts import SettingError  # noqa: PLC0415  # brings torch
    return SettingError(text)
