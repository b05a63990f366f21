"""`fedsaddle keys` and `fedsaddle doctor`: keys that Flower and TLS take, and every way in which they can be wrong."""

import argparse
import http.server
import importlib
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from importlib import metadata
from types import SimpleNamespace

import numpy as np
import pytest
import typer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID
from rich.console import Console
from typer.testing import CliRunner

from fedsaddle import cli_keys
from fedsaddle.contracts import SettingError
from fedsaddle.sites import certificates, doctor, keys
from fedsaddle.sites.doctor import OK, WARNING, WRONG

app = typer.Typer()
cli_keys.add_to(app)
NOW = datetime.now(UTC)


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch):
    for name in doctor.QUIET:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cli_keys, "out", Console(width=300))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "keys"
    keys.make_authority(folder, 1000)
    keys.server_certificate(folder, ["fed.example.org", "::1"], 365)
    keys.node_key(folder, "alpha")
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "keys")


def command(*words, code=0):
    result = CliRunner().invoke(app, [*map(str, words)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def snapshot(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def mode(path):
    return path.stat().st_mode & 0o777


def troubles(findings):
    return [finding for finding in findings if finding.level != OK]


def only(findings):
    """The one thing that is not in order; it has a remedy."""
    (finding,) = troubles(findings)
    assert finding.remedy
    return finding


def issue(folder, start=timedelta(days=-9), end=timedelta(days=90), hosts=("localhost",), ca=None):
    """A server certificate by hand, signed by the folder's authority or by another one."""
    ca = ca or folder
    signer = serialization.load_pem_private_key((ca / "ca.key").read_bytes(), None)
    authority = x509.load_pem_x509_certificate((ca / "ca.crt").read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (x509.CertificateBuilder().subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "by hand")]))
               .issuer_name(authority.subject).public_key(key.public_key()).serial_number(7)
               .not_valid_before(NOW + start).not_valid_after(NOW + end)
               .add_extension(x509.SubjectAlternativeName(list(map(x509.DNSName, hosts))), critical=False))
    (folder / "server.pem").write_bytes(builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    (folder / "server.key").write_bytes(key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()))


@contextmanager
def server_of(folder, date=None, status=200, secure=True):
    """A server on loopback that answers GET /health with this Date, or none; gives its port."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response_only(status if self.path == "/health" else 404)
            if date:
                self.send_header("Date", date())
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    class Quiet(http.server.ThreadingHTTPServer):
        def handle_error(self, *_):  # a client that does not trust us hangs up
            pass

    server = Quiet(("127.0.0.1", 0), Answer)
    if secure:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem", folder / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def gated_server_of(folder):
    """The real gate before a server that is always well, as another machine sees it; gives its port."""
    import uvicorn

    from fedsaddle.sites.flower.gate import gate

    async def well(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def from_afar(scope, receive, send):
        await gate(well)({**scope, "client": ("192.0.2.7", 1)}, receive, send)

    server = uvicorn.Server(uvicorn.Config(
        from_afar, lifespan="off", ws="none", log_config=None, proxy_headers=False,
        ssl_certfile=folder / "server.pem", ssl_keyfile=folder / "server.key"))
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


# Keys.


@pytest.mark.parametrize("own", [False, True])
def test_flower_reads_the_key_pair_of_a_node(made, own, tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    supernode = importlib.import_module("flwr.supernode.cli.flower_supernode")  # its package has a function so named

    node = keys.own_key(tmp_path / "own", "alpha").parent if own else made / "nodes" / "alpha"
    arguments = argparse.Namespace(auth_supernode_private_key=str(node / "key"), auth_supernode_public_key=None)
    _, public = supernode._try_setup_client_authentication(arguments)
    assert public_key_to_bytes(public) == try_load_public_key(node / "key.pub")
    assert (node / "key.pub").read_text().endswith(" alpha\n")


def test_what_flower_tolerates_of_clocks_is_what_the_doctor_says():
    from flwr.common import constant
    assert doctor.AHEAD == constant.SYSTEM_TIME_TOLERANCE
    assert doctor.BEHIND == constant.TIMESTAMP_TOLERANCE + constant.SYSTEM_TIME_TOLERANCE


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "fed.example.org", "::1"])
def test_a_strict_client_shakes_hands_under_every_name(made, name):
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=made / "ca.crt")
    server.load_cert_chain(made / "server.pem", made / "server.key")
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    near, far = socket.socketpair()
    with near, far:
        thread = threading.Thread(target=lambda: server.wrap_socket(far, server_side=True).close())
        thread.start()
        with client.wrap_socket(near, server_hostname=name) as secure:
            assert secure.getpeercert()["subjectAltName"]
        thread.join()


def test_private_files_are_private_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        command("keys", tmp_path / "k", "--server", "localhost", "--node", "n")
    finally:
        os.umask(before)
    found = {str(path.relative_to(tmp_path)): mode(path) for path in tmp_path.rglob("*")}
    for name in ("k", "k/nodes", "k/nodes/n"):
        assert found[name] == 0o700
    for name in ("k/ca.key", "k/server.key", "k/nodes/n/key"):
        assert found[name] == 0o600
    assert len(found) == 10
    empty = tmp_path / "empty"
    empty.mkdir(mode=0o755)
    keys.make_authority(empty, 9)
    assert mode(empty) == 0o700


def test_again_with_a_new_node_adds_it_and_leaves_the_rest(tmp_path):
    target = tmp_path / "k"
    first = command("keys", target, "--server", "10.0.0.7", "--node", "a-1", "--days", 100)
    before = snapshot(target)
    assert set(before) == {"ca.crt", "ca.key", "server.pem", "server.key",
                           "nodes/a-1/key", "nodes/a-1/key.pub", "nodes/a-1/ca.crt"}
    (target / "ca.key").rename(tmp_path / "off-line")  # a new node does not need it
    command("keys", target, "--node", "a-1", "--node", "b_2")
    (tmp_path / "off-line").rename(target / "ca.key")
    after = snapshot(target)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"nodes/b_2/key", "nodes/b_2/key.pub", "nodes/b_2/ca.crt"}
    assert after["nodes/b_2/ca.crt"] == before["ca.crt"]
    assert after["nodes/b_2/key"] != before["nodes/a-1/key"]
    end = NOW + timedelta(days=100)
    assert abs(keys.expiry(target / "server.pem") - end) < timedelta(hours=1)
    assert f"{keys.expiry(target / 'server.pem'):%Y-%m-%d}" in first
    assert f"{keys.expiry(target / 'ca.crt'):%Y-%m-%d}" in first
    assert "a-1 alone" in first
    assert "tests and closed groups" in first
    assert "Your own certificates" in first
    assert "PRIVATE KEY" not in first


def test_the_advice_is_that_of_our_own_server(tmp_path):
    text = command("keys", tmp_path / "k", "--server", "localhost", "--node", "n")
    assert "supernode register" not in text
    assert "lets in the nodes whose key.pub lies in nodes/NAME/" in text
    assert "fedsaddle server FILE --keys DIR" in text
    assert "--own NAME" in text


def test_a_site_makes_its_own_key_and_only_the_public_half_travels(folder, tmp_path):
    site = tmp_path / "site"
    text = command("keys", site, "--own", "beta")
    assert set(snapshot(site)) == {"key", "key.pub"}
    assert (mode(site), mode(site / "key")) == (0o700, 0o600)
    assert (site / "key.pub").read_text().endswith(" beta\n")
    assert "nodes/beta/key.pub" in text
    assert "never leaves this machine" in text
    assert "PRIVATE" not in text
    finding = only(certificates.check_keys(site))
    assert (finding.level, finding.what) == (WRONG, "ca.crt")
    assert "is not there" in finding.found

    (folder / "nodes" / "beta").mkdir()
    shutil.copy(site / "key.pub", folder / "nodes" / "beta")
    shutil.copy(folder / "ca.crt", site)
    assert troubles(certificates.check_keys(site)) == []
    assert troubles(certificates.check_keys(folder)) == []
    before = snapshot(site), snapshot(folder)
    assert "certificate of the authority" in command("keys", site, "--own", "beta")
    with pytest.raises(SettingError, match="the site made its own"):
        command("keys", folder, "--node", "beta")
    assert (snapshot(site), snapshot(folder)) == before


@pytest.mark.parametrize("words", [["--server", "h"], ["--node", "n"], ["--renew-server"]])
def test_ones_own_key_is_made_alone(tmp_path, words):
    with pytest.raises(SettingError, match="leave one of them out") as refusal:
        command("keys", tmp_path / "k", "--own", "beta", *words)
    assert str(refusal.value).startswith(words[0])
    with pytest.raises(SettingError, match="letters, digits") as refusal:
        command("keys", tmp_path / "k", "--own", "../up")
    assert str(refusal.value).startswith("--own")
    assert not (tmp_path / "k").exists()


def test_ones_own_key_is_neither_mixed_with_a_server_nor_overwritten(folder, tmp_path):
    before = snapshot(folder)
    with pytest.raises(SettingError, match="a server's folder"):
        command("keys", folder, "--own", "beta")
    assert snapshot(folder) == before
    for left in ("key", "key.pub"):
        site = tmp_path / left
        site.mkdir()
        (site / left).write_text("mine")
        with pytest.raises(SettingError, match="other half"):
            command("keys", site, "--own", "beta")
        assert snapshot(site) == {left: b"mine"}


def test_a_renewed_server_keeps_authority_and_hosts_and_loses_nothing(folder):
    before = snapshot(folder)
    command("keys", folder, "--renew-server", "--days", 60)
    after = snapshot(folder)
    changed = {"server.pem", "server.key"}
    assert {name for name in before if after[name] != before[name]} == changed
    assert {name: after[f"{name}.old1"] for name in changed} == {name: before[name] for name in changed}
    new = keys.read_certificates(folder / "server.pem")[0]
    assert set(keys.hosts_of(new)) == {"fed.example.org", "::1", "localhost", "127.0.0.1"}
    assert abs(new.not_valid_after_utc - NOW - timedelta(days=60)) < timedelta(hours=1)
    assert troubles(certificates.check_keys(folder, "fed.example.org")) == []
    keys.server_certificate(folder, ["new.example.org"], 5000, renew=True)
    new = keys.read_certificates(folder / "server.pem")[0]
    assert set(keys.hosts_of(new)) == {"new.example.org", "localhost", "127.0.0.1"}
    assert new.not_valid_after_utc == keys.expiry(folder / "ca.crt")  # not beyond the authority's
    assert (folder / "server.key.old2").exists()
    assert mode(folder / "server.key") == 0o600


@pytest.mark.parametrize(("words", "remedy"), [
    (["--server", "h", "--node", "ok", "--node", "../up"], "letters, digits"),
    (["--server", "h", "--node", "-x"], "letter or a digit first"),
    (["--server", "h", "--node", "a b"], "letters, digits"),
    (["--server", "h", "--node", ""], "letters, digits"),
    (["--server", "h:8000"], "the port"),
    (["--server", "https://h"], "leave out https"),
    (["--server", "10.0.0.300"], "neither a host name nor an IP address"),
    (["--server", "h", "--days", "0"], "give 1 to"),
    (["--node", "n"], "localhost to try"),
])
def test_refusals_name_the_setting_and_come_before_any_file(tmp_path, words, remedy):
    with pytest.raises(SettingError, match=remedy) as refusal:
        command("keys", tmp_path / "k", *words)
    assert str(refusal.value).startswith("--")
    assert not (tmp_path / "k").exists()


def test_half_a_folder_is_refused_rather_than_overwritten(folder):
    with pytest.raises(SettingError, match="--renew-server"):
        command("keys", folder, "--server", "elsewhere.example.org")
    (folder / "server.pem").rename(folder / "away")
    with pytest.raises(SettingError, match="other half"):
        keys.server_certificate(folder, ["h"], 9)
    (folder / "server.key").unlink()
    (folder / "ca.key").rename(folder / "ca.key.away")
    with pytest.raises(SettingError, match="put it back"):
        keys.server_certificate(folder, ["h"], 9)
    keys.make_authority(folder.parent / "other", 9)
    shutil.copy(folder.parent / "other" / "ca.key", folder / "ca.key")
    with pytest.raises(SettingError, match="not the key of"):
        keys.server_certificate(folder, ["h"], 9)
    (folder / "ca.crt").unlink()
    before = snapshot(folder)
    with pytest.raises(SettingError, match="is there without"):
        keys.make_authority(folder, 9)
    with pytest.raises(SettingError, match=r"ca\.crt is not there"):
        keys.node_key(folder, "new")
    assert snapshot(folder) == before


def test_own_certificates_are_left_alone(folder, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    issue(own, hosts=("*.hospital.example",), ca=folder)
    shutil.copy(folder / "ca.crt", own)
    before = snapshot(own)
    command("keys", own, "--server", "a.hospital.example", "--node", "n")
    assert {name: snapshot(own)[name] for name in before} == before
    assert not (own / "ca.key").exists()
    certificate = keys.read_certificates(own / "server.pem")[0]
    assert certificates.check_hosts(certificate, "a.b.hospital.example").level == WRONG


def test_neither_module_brings_torch(made):
    code = ("import sys; from fedsaddle.sites import certificates, doctor; from pathlib import Path; "
            "assert doctor.check_version('torch').level == 'ok'; "
            f"assert certificates.check_keys(Path({str(made)!r})); assert 'torch' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True)


# The doctor, on files.


def test_good_keys_have_no_findings(made):
    assert troubles(certificates.check_keys(made, "fed.example.org")) == []
    assert troubles(certificates.check_keys(made, "0:0:0:0:0:0:0:1")) == []
    assert troubles(certificates.check_keys(made / "nodes" / "alpha")) == []
    looked_at = {finding.what for finding in certificates.check_keys(made)}
    assert looked_at == {"ca.crt", "ca.key", "server.pem", "server.key", "node alpha"}


@pytest.mark.parametrize(("start", "end", "level", "said"), [
    (-9, -1, WRONG, "expired on"), (1, 90, WRONG, "is valid from"), (-9, 29, WARNING, "expires on"),
])
def test_dates_of_a_certificate(folder, start, end, level, said):
    issue(folder, timedelta(days=start), timedelta(days=end))
    os.chmod(folder / "server.key", 0o600)
    finding = only(certificates.check_keys(folder, "localhost"))
    assert (finding.level, finding.what) == (level, "server.pem")
    assert said in finding.found
    assert "clock" in finding.remedy or "--renew-server" in finding.remedy


def test_a_certificate_of_another_authority(folder, tmp_path):
    keys.make_authority(tmp_path / "other", 9)
    issue(folder, ca=tmp_path / "other")
    os.chmod(folder / "server.key", 0o600)
    finding = only(certificates.check_keys(folder))
    assert (finding.level, finding.what) == (WRONG, "server.pem")
    assert "not signed by ca.crt" in finding.found


def test_an_authority_of_the_same_name_does_not_pass(folder, tmp_path):
    """Signatures are checked, not names."""
    other, key = tmp_path / "other", ec.generate_private_key(ec.SECP256R1())
    other.mkdir()
    shutil.copy(folder / "ca.crt", other)
    (other / "ca.key").write_bytes(key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    issue(folder, ca=other)
    os.chmod(folder / "server.key", 0o600)
    assert "not signed" in only(certificates.check_keys(folder)).found


def test_a_certificate_for_another_host(made):
    finding = only(certificates.check_keys(made, "elsewhere.example.org"))
    assert (finding.level, finding.what) == (WRONG, "server.pem")
    assert "fed.example.org" in finding.found
    assert "--server elsewhere.example.org" in finding.remedy


@pytest.mark.parametrize(("file", "what"), [("ca.key", "ca.key"), ("server.key", "server.key"),
                                            ("nodes/alpha/key", "node alpha")])
def test_keys_that_others_can_read(folder, file, what):
    for bits, level in ((0o604, WRONG), (0o666, WRONG), (0o640, WARNING)):
        os.chmod(folder / file, bits)
        finding = only(certificates.check_keys(folder))
        assert (finding.level, finding.what) == (level, what)
        assert finding.remedy == f"chmod 600 {folder / file}"


def test_swapped_keys(folder, tmp_path):
    keys.node_key(folder, "beta")
    shutil.copy(folder / "nodes/beta/key", folder / "nodes/alpha/key")
    shutil.copy(folder / "ca.key", folder / "server.key")
    found = troubles(certificates.check_keys(folder))
    assert [(finding.level, finding.what) for finding in found] == [(WRONG, "server.key"), (WRONG, "node alpha")]
    assert all("do not belong together" in finding.found for finding in found)


def test_what_a_node_should_not_have_or_has_from_elsewhere(folder, tmp_path):
    node = folder / "nodes" / "alpha"
    keys.make_authority(tmp_path / "other", 99)
    shutil.copy(tmp_path / "other" / "ca.crt", node)
    assert "not the server's" in only(certificates.check_keys(folder)).found
    shutil.copy(folder / "ca.crt", node)
    shutil.copy(folder / "ca.key", node)
    assert "pass for the server" in only(certificates.check_keys(node)).found


def test_a_server_needs_public_keys_alone(folder):
    for private in ("ca.key", "nodes/alpha/key", "nodes/alpha/ca.crt"):
        (folder / private).unlink()
    found = certificates.check_keys(folder)
    assert troubles(found) == []
    assert "public key is here" in found[-1].found
    (folder / "nodes/alpha/key.pub").unlink()
    finding = only(certificates.check_keys(folder))
    assert (finding.level, finding.what) == (WRONG, "node alpha")
    assert "No such file" in finding.found
    other = ed25519.Ed25519PrivateKey.generate().public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / "nodes/alpha/key.pub").write_bytes(other)  # Flower would not register it
    assert "NIST" in only(certificates.check_keys(folder)).found


def test_a_private_key_of_a_node_at_the_server(folder):
    assert troubles(certificates.check_keys(folder)) == []  # with ca.key: this is where they are made
    (folder / "ca.key").unlink()
    finding = only(certificates.check_keys(folder))
    assert (finding.level, finding.what) == (WARNING, "node alpha")
    assert "private key lies at the server" in finding.found
    assert "--own alpha" in finding.remedy
    assert troubles(certificates.check_keys(folder / "nodes" / "alpha")) == []  # as the site has it


def test_a_missing_file_is_not_called_malformed(folder):
    for read in (keys.read_certificates, keys.read_public, keys.read_key):
        with pytest.raises(SettingError, match=r"cannot be read \(No such file"):
            read(folder / "nowhere")
    (folder / "server.pem").unlink()
    finding = only(certificates.check_keys(folder))
    assert finding.what == "server.pem"
    assert "No such file" in finding.found


def test_files_that_are_no_keys(folder, tmp_path):
    secret = ed25519.Ed25519PrivateKey.generate()
    text = secret.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH,
                                serialization.NoEncryption())
    locked = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"word"))
    (folder / "server.key").write_bytes(locked)
    (folder / "nodes/alpha/key").write_bytes(text)
    (folder / "nodes/alpha/key.pub").write_text("nothing")
    (folder / "ca.crt").write_text("nothing")
    found = troubles(certificates.check_keys(folder))
    assert [finding.what for finding in found] == ["ca.crt", "server.key", "node alpha", "node alpha"]
    assert all(finding.level == WRONG and finding.remedy for finding in found)
    assert "no certificate" in found[0].found
    assert "password" in found[1].found
    assert "no public key" in found[2].found
    assert "no EC key" in found[3].found
    assert "PRIVATE" not in str(found)
    (folder / "server.key").unlink()
    assert "cannot be read" in str(troubles(certificates.check_keys(folder)))
    assert "no folder" in only(certificates.check_keys(tmp_path / "nowhere")).found


def test_without_cryptography_the_doctor_says_so(made, monkeypatch):
    monkeypatch.setattr(certificates, "CAN_READ", False)
    assert only(certificates.check_keys(made)).remedy == 'pip install "fedsaddle[flower]"'


# The doctor, on the server.


def told(offset):
    return lambda: formatdate(time.time() + offset, usegmt=True)


def test_a_good_server(made):
    with server_of(made, told(0)) as port:
        found = doctor.check_server("localhost", port, made / "ca.crt")
    assert [finding.what for finding in found] == ["server", "TLS", "health", "clock"]
    assert troubles(found) == []


def test_a_good_server_behind_the_gate(made):
    """Other machines are refused /health there."""
    with gated_server_of(made) as port:
        found = doctor.check_server("localhost", port, made / "ca.crt")
    assert [finding.what for finding in found] == ["server", "TLS", "health", "clock"]
    assert troubles(found) == []
    assert "fedsaddle server" in found[2].found


@pytest.mark.parametrize(("offset", "apart"), [(3600, "behind"), (-3600, "ahead of")])
def test_a_clock_an_hour_off(made, offset, apart):
    with server_of(made, told(offset)) as port:
        finding = only(doctor.check_server("localhost", port, made / "ca.crt"))
    assert (finding.level, finding.what) == (WRONG, "clock")
    seconds, unit, rest = finding.found.split(" ", 2)
    assert abs(int(seconds) - 3600) <= 5
    assert unit == "s"
    assert rest.startswith(f"{apart} the server")


def test_small_drifts():
    levels = {ahead: doctor.check_clock(ahead).level for ahead in (0, 2, -2, 4, -60, -304, 6, -306)}
    assert levels == {0: OK, 2: OK, -2: OK, 4: WARNING, -60: WARNING, -304: WARNING, 6: WRONG, -306: WRONG}


def test_no_date_and_no_health(made):
    with server_of(made, lambda: "soon", status=404) as port:
        found = troubles(doctor.check_server("localhost", port, made / "ca.crt"))
    assert [(finding.level, finding.what) for finding in found] == [(WARNING, "health"), (WARNING, "clock")]
    assert "404" in found[0].found
    assert "`fedsaddle server --keys`" in found[0].remedy
    assert "could not be compared" in found[1].found
    with server_of(made) as port:
        assert only(doctor.check_server("localhost", port, made / "ca.crt")).what == "clock"


def test_certificates_that_a_node_would_refuse(folder, tmp_path):
    keys.make_authority(tmp_path / "other", 9)
    with server_of(folder, told(0)) as port:
        finding = only(doctor.check_server("localhost", port, tmp_path / "other" / "ca.crt"))
        assert (finding.level, finding.what) == (WRONG, "TLS")
        assert "--keys" in finding.remedy
    issue(folder, hosts=("fed.example.org",))
    with server_of(folder, told(0)) as port:
        for host in ("localhost", "127.0.0.1"):
            finding = only(doctor.check_server(host, port, folder / "ca.crt"))
            assert (finding.level, finding.what) == (WRONG, "TLS")
            assert f"not for {host}" in finding.found
    issue(folder, end=timedelta(days=-1))
    with server_of(folder, told(0)) as port:
        assert "has expired" in only(doctor.check_server("localhost", port, folder / "ca.crt")).found


def test_no_server_and_no_tls(made, tmp_path):
    with server_of(made, told(0), secure=False) as port:
        finding = only(doctor.check_server("localhost", port, made / "ca.crt"))
        assert (finding.level, finding.what) == (WRONG, "TLS")
        assert "started with `fedsaddle server --keys`" in finding.remedy
    finding = only(doctor.check_server("localhost", port, made / "ca.crt"))
    assert (finding.level, finding.what) == (WRONG, "server")
    assert "firewalls" in finding.remedy
    assert "`fedsaddle server --keys` runs there" in finding.remedy
    assert "cannot be read" in only(doctor.check_server("localhost", port, tmp_path / "ca.crt")).found


# The doctor, on the machine.


def test_ports():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert only([doctor.check_port(port)]).level == WRONG
    assert doctor.check_port(port).level == OK
    assert doctor.check_port(70000).level == WRONG


@pytest.mark.parametrize(("name", "version", "level"), [
    ("flwr", "1.40.9", WRONG), ("flwr", "1.41.0", OK), ("flwr", "1.41.2", OK), ("flwr", "1.42.0", WRONG),
    ("typer", "0.20.1", OK), ("typer", "0.21.0", WRONG), ("rich", "14.3.4", OK), ("rich", "15.0.0", WRONG),
    ("torch", "2.13.0+cpu", OK), ("torch", "2.9.1", WRONG), ("flwr", None, WRONG),
])
def test_versions(monkeypatch, name, version, level):
    def installed(asked):
        if version is None:
            raise metadata.PackageNotFoundError(asked)
        return version

    monkeypatch.setattr(metadata, "version", installed)
    finding = doctor.check_version(name)
    assert (finding.level, finding.what) == (level, name)
    assert (finding.remedy == "") == (level == OK)


def test_variables_are_worth_a_word_only_when_set_to_the_opposite():
    assert troubles(doctor.check_quiet({})) == []
    assert "our commands set it to 0" in doctor.check_quiet({})[0].found
    assert troubles(doctor.check_quiet(doctor.QUIET)) == []
    finding = only(doctor.check_quiet({**doctor.QUIET, "FLWR_TELEMETRY_ENABLED": "1"}))
    assert finding.level == WARNING
    assert "export FLWR_TELEMETRY_ENABLED=0" in finding.remedy


def test_data_and_policy_are_read_and_never_quoted(tmp_path):
    def load(file, label):
        if label == "wrong":
            raise SettingError(f"label {label!r}: is no column; choose one of a, b")
        if label is None:
            raise ValueError("could not convert 'Jane Doe'")
        return SimpleNamespace(targets=range(1234))

    file = tmp_path / "rows.csv"
    assert doctor.check_data(file, "ill", load) == (OK, "data", f"{file}: 1,234 rows", "")
    assert doctor.check_data(file, "wrong", load) == (WRONG, "data", "label 'wrong': is no column",
                                                      "choose one of a, b")
    finding = doctor.check_data(file, None, load)
    assert finding.level == WRONG
    assert finding.remedy
    assert "Jane" not in str(finding)
    assert doctor.check_policy(file, lambda path: {}).level == OK
    assert doctor.check_policy(file, lambda path: load(path, "wrong")).level == WRONG


def test_a_missing_loader_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fedsaddle.data.sites", None)
    finding = doctor.check_data(tmp_path / "rows.csv", None)
    assert (finding.level, finding.what) == (WARNING, "data")


def test_the_state_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=9 << 30))
    assert troubles(doctor.check_state(tmp_path / "not" / "yet")) == []
    assert not (tmp_path / "not").exists()
    (tmp_path / "file").touch()
    assert only(doctor.check_state(tmp_path / "file")).what == "state"
    for free, level in ((2 << 30, WARNING), (1 << 20, WRONG)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        assert only(doctor.check_state(tmp_path)).level == level
    monkeypatch.setattr(os, "access", lambda path, bits: False)
    assert "cannot be written" in str(doctor.check_state(tmp_path))


# The doctor, as a command.


@pytest.fixture
def sound(monkeypatch):
    """A machine whose packages are as they should be, whatever this one has."""
    monkeypatch.setattr(doctor, "VERSIONS", {"rich": ("1", "")})


def test_the_command_ends_with_0_when_nothing_is_wrong(sound, made, tmp_path):
    before = snapshot(made)
    with server_of(made, told(0)) as port:
        text = command("doctor", "--server", f"localhost:{port}", "--keys", made, "--state", tmp_path / "s")
    assert "wrong" not in text
    assert "valid until" in text
    assert "PRIVATE" not in text
    assert snapshot(made) == before
    assert not (tmp_path / "s").exists()


def test_the_command_ends_with_1_and_says_what_to_do(sound, folder):
    os.chmod(folder / "server.key", 0o644)
    text = command("doctor", "--keys", folder, code=1)
    assert f"chmod 600 {folder / 'server.key'}" in text
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "cannot be used" in command("doctor", "--port", taken.getsockname()[1], code=1)


def test_a_warning_does_not_fail_the_command(sound, folder):
    os.chmod(folder / "server.key", 0o640)
    assert "warning" in command("doctor", "--keys", folder)


def test_the_command_reads_a_sites_rows_and_rules(sound, tmp_path):
    np.savez(tmp_path / "site-0.npz", inputs=np.zeros((37, 3), np.float32), targets=np.arange(37) % 2)
    (tmp_path / "rows.csv").write_text("age,ill\n41,0\n52,1\n63,1\n")
    (tmp_path / "policy.toml").write_text("max_rounds = 9\n")
    assert "37 rows" in command("doctor", "--data", tmp_path / "site-0.npz", "--policy", tmp_path / "policy.toml")
    assert "3 rows" in command("doctor", "--data", tmp_path / "rows.csv", "--label", "ill")
    assert "--label: is missing" in command("doctor", "--data", tmp_path / "rows.csv", code=1)
    assert "no such file" in command("doctor", "--data", tmp_path / "nowhere.npz", code=1)
    (tmp_path / "policy.toml").write_text("max_rounds = 0\n")
    assert "max_rounds" in command("doctor", "--policy", tmp_path / "policy.toml", code=1)


@pytest.mark.parametrize("address", ["host", "host:0", "host:99999", "https://host:8000", "host:8000/x", ":80", "::1"])
def test_addresses_that_are_none(address):
    with pytest.raises(SettingError, match="HOST:PORT"):
        command("doctor", "--server", address)


def test_addresses():
    assert cli_keys._address("[::1]:8000") == ("::1", 8000)
    assert cli_keys._address("fed.example.org:443") == ("fed.example.org", 443)
