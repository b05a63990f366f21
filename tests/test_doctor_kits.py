"""`fedsaddle doctor --engine nvflare`: a good kit has no findings, and every way in which one can be wrong has its own.

Kits are made by hand here, so that NVFlare is needed only to see that they are like its own.
"""

import json
import os
import shutil
import socket
import ssl
import threading
import tomllib
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from rich.console import Console
from typer.testing import CliRunner

from fedsaddle import cli_keys
from fedsaddle.contracts import SettingError
from fedsaddle.sites.doctor import OK, WARNING, WRONG
from fedsaddle.sites.nvflare import checks
from fedsaddle.sites.nvflare.kit import read_kit
from fedsaddle.sites.nvflare.running import why_not

app = typer.Typer()
cli_keys.add_to(app)
NOW = datetime.now(UTC)
HOST = "fed.example.org"
PEM = serialization.Encoding.PEM
OWNERS = {"server": ("server", "localhost"), "admin": ("admin", "lead@example.org"), "rivers": ("site", "rivers")}


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch, tmp_path):
    """Neither its versions nor its disk; commands run in an empty folder."""
    monkeypatch.setattr(checks, "VERSIONS", {"rich": ("1", "")})
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=9 << 30))
    monkeypatch.setattr(cli_keys, "out", Console(width=400))
    monkeypatch.chdir(tmp_path)


class Authority:
    def __init__(self, name="study", days=90):
        self.key, self.name = ec.generate_private_key(ec.SECP256R1()), named(name)
        self.certificate = self.signed(self.name, self.key, (), days=days, authority=True)

    def signed(self, owner, key, hosts, start=-1, days=90, authority=False):
        builder = (x509.CertificateBuilder().subject_name(owner).issuer_name(self.name).public_key(key.public_key())
                   .serial_number(x509.random_serial_number()).not_valid_before(NOW + timedelta(days=start))
                   .not_valid_after(NOW + timedelta(days=days))
                   .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True))
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(list(map(x509.DNSName, hosts))), critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def issue(self, kit, owner, hosts=("localhost",), **life):
        """A certificate with its key, in place of those that the kit has."""
        own = "server" if kit.name == "server" else "client"
        key, startup = ec.generate_private_key(ec.SECP256R1()), kit / "startup"
        made = self.signed(named(owner), key, hosts, **life)
        (startup / f"{own}.crt").write_bytes(made.public_bytes(PEM))
        (startup / f"{own}.key").write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8,
                                                               serialization.NoEncryption()))
        (startup / f"{own}.key").chmod(0o600)

    def root_of(self, kit):
        (kit / "startup" / "rootCA.pem").write_bytes(self.certificate.public_bytes(PEM))


def named(text):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def make_kits(folder, authority, port, admin_port, host="localhost"):
    """Like those of `fedsaddle provision`: server, admin and the site rivers."""
    target = {"servers": [{"service": {"target": f"{host}:{port}"}, "admin_port": admin_port}]}
    starts = {"server": ("fed_server.json", target), "site": ("fed_client.json", target),
              "admin": ("fed_admin.json", {"admin": {"port": admin_port}})}
    for place, (kind, name) in OWNERS.items():
        kit, owner = folder / place, host if kind == "server" else name
        (kit / "startup").mkdir(parents=True)
        (kit / "local").mkdir()
        for file in ("authorization.json", "log_config.json", "resources.json") if kind != "admin" else ():
            (kit / "local" / file).write_text("{}")
        file, content = starts[kind]
        (kit / "startup" / file).write_text(json.dumps(content))
        (kit / "kit.json").write_text(json.dumps({"kind": kind, "name": owner, "org": "o", "host": host, "port": port,
                                                  "admin_port": admin_port, "sites": []}))
        authority.root_of(kit)
        authority.issue(kit, owner, [host, "localhost"] if kind == "server" else [owner])
    return folder


def free_ports(count=2):
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.fixture(scope="module")
def ours():
    return Authority()


@pytest.fixture
def kits(ours, tmp_path):
    return make_kits(tmp_path / "kits", ours, *free_ports())


@contextmanager
def server_of(kit, secure=True, admin=False):
    """Listens at the kit's port, wants a certificate of the kit's authority, and greets whoever has one."""
    about, startup = json.loads((kit / "kit.json").read_text()), kit / "startup"
    listening = socket.create_server(("127.0.0.1", about["admin_port" if admin else "port"]))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(startup / "server.crt", startup / "server.key")
    context.load_verify_locations(startup / "rootCA.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])

    def greet():
        while True:
            try:
                plain = listening.accept()[0]
            except OSError:
                return
            plain.settimeout(5)
            try:
                with plain, context.wrap_socket(plain, server_side=True) if secure else plain as connection:
                    connection.recv(100)
                    connection.sendall(b"\0\0\0\4\0\0\0\0\0" if secure else b"220 speak\r\n")
            except OSError:
                pass  # refused, or the other one does not trust us

    thread = threading.Thread(target=greet)
    thread.start()
    try:
        yield
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def troubles(findings):
    return [finding for finding in findings if finding.level != OK]


def only(findings, level=WRONG):
    """The one thing that is not in order; it has a remedy."""
    (finding,) = troubles(findings)
    assert finding.remedy
    assert finding.level == level, finding
    return finding


def content(kit):
    return checks.check_content(read_kit(kit, OWNERS[kit.name][0]))[0]


def command(*words, code=0):
    result = CliRunner().invoke(app, ["doctor", "--engine", "nvflare", *map(str, words)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def snapshot(folder):
    return {path: (path.stat().st_mode, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


# A good kit.


def test_a_good_server_and_a_good_site_end_with_0_and_are_left_as_they_are(kits, tmp_path):
    before = snapshot(kits)
    text = command("--kit", kits / "server")
    assert "of server 'localhost'" in text and text.count("is free") == 2 and "wrong" not in text
    assert "admin kit" in text and "disk" in text
    with server_of(kits / "server"):
        text = command("--kit", kits / "rivers", "--name", "rivers", "--state", tmp_path / "s")
    assert "of site 'rivers'" in text and "can be reached" in text and "wrong" not in text
    assert "accept each other's certificates" in text and "UTC here" in text and "valid until" in text
    assert "of admin 'lead@example.org'" in command("--kit", kits / "admin")
    assert snapshot(kits) == before and "PRIVATE" not in text
    assert not (tmp_path / "runs").exists() and not (tmp_path / "s").exists()


def test_a_real_kit_is_good_and_the_ones_made_here_are_like_it(kits, tmp_path):
    pytest.importorskip("nvflare", reason="nvflare, the extra `nvflare`, is not installed")
    from fedsaddle.sites.nvflare.provision import Project, provision

    provision(Project("study", HOST, *free_ports(), ("rivers",), "lead@example.org"), tmp_path / "real")
    assert troubles(checks.check_kit(tmp_path / "real" / "server")) == []
    for name in OWNERS:
        real, made = ({str(path.relative_to(root / name)) for path in (root / name).rglob("*") if path.is_file()}
                      for root in (tmp_path / "real", kits))
        assert made == real - {"local/resources.json.default"}  # of the admin, who works without
        assert troubles(content(tmp_path / "real" / name)) == []


# The files.


def test_a_kit_whose_files_name_two_addresses_is_told(kits):
    about = json.loads((kits / "rivers" / "kit.json").read_text())
    (kits / "rivers" / "kit.json").write_text(json.dumps({**about, "port": about["port"] + 1}))
    finding = only(content(kits / "rivers"))
    assert finding.what == "fed_client.json" and "keeps its address" in finding.found
    assert "--out NEW" in finding.remedy


@pytest.mark.parametrize(("place", "file"), [
    ("rivers", "startup/client.key"), ("rivers", "startup/rootCA.pem"), ("rivers", "local/resources.json"),
    ("server", "startup/fed_server.json"), ("admin", "startup/client.crt"),
])
def test_a_missing_file_is_named(kits, place, file):
    (kits / place / file).unlink()
    finding = only(content(kits / place))
    assert file in finding.found and "copy the whole kit" in finding.remedy


def test_what_is_no_kit_is_said(kits, tmp_path):
    assert "holds no kit.json" in only(checks.check_kit(tmp_path / "nowhere")).found
    about = json.loads((kits / "rivers" / "kit.json").read_text())
    for text in ("{", "[]", "{}", json.dumps({**about, "port": "high"}), json.dumps({**about, "host": None})):
        (kits / "rivers" / "kit.json").write_text(text)
        assert "kit.json" in only(checks.check_kit(kits / "rivers")).found
    (kits / "rivers" / "kit.json").write_text(json.dumps({**about, "kind": "relay"}))
    assert "relay" in only(checks.check_kit(kits / "rivers")).found


def test_files_that_are_broken(kits):
    (kits / "rivers" / "local" / "resources.json").write_text("{")
    finding = only(content(kits / "rivers"))
    assert finding.what == "local/resources.json" and "no JSON" in finding.found
    (kits / "server" / "startup" / "fed_server.json").write_text('{"servers": []}')
    assert "names no server" in only(content(kits / "server")).found
    (kits / "admin" / "startup" / "client.key").write_text("nothing")
    assert "no private key" in only(content(kits / "admin")).found
    found = troubles(checks.check_kit(kits / "server"))
    assert [finding.what for finding in found] == ["fed_server.json", "admin kit"]


@pytest.mark.parametrize(("place", "key"), [("rivers", "client.key"), ("server", "server.key"),
                                            ("admin", "client.key")])
def test_keys_that_others_can_read(kits, place, key):
    path = kits / place / "startup" / key
    for bits, level in ((0o604, WRONG), (0o644, WRONG), (0o640, WARNING)):
        os.chmod(path, bits)
        finding = only(content(kits / place), level)
        assert finding.what == key and finding.remedy == f"chmod 600 {path}"


# The certificates.


@pytest.mark.parametrize(("life", "level", "said", "remedy"), [
    ({"start": -9, "days": -1}, WRONG, "expired on", "fedsaddle provision FILE --out NEW"),
    ({"start": 1}, WRONG, "is valid from", "clock"),
    ({"days": 20}, WARNING, "expires on", "before that day"),
])
def test_dates(kits, ours, life, level, said, remedy):
    ours.issue(kits / "rivers", "rivers", **life)
    finding = only(content(kits / "rivers"), level)
    assert finding.what == "client.crt" and said in finding.found and remedy in finding.remedy


def test_an_authority_that_expires_is_said(kits):
    last = Authority(days=5)
    last.root_of(kits / "rivers")
    last.issue(kits / "rivers", "rivers")
    finding = only(content(kits / "rivers"), WARNING)
    assert finding.what == "rootCA.pem" and "make all kits anew" in finding.remedy


def test_a_certificate_of_another_authority_of_the_same_name(kits):
    Authority().issue(kits / "rivers", "rivers")
    finding = only(content(kits / "rivers"))
    assert finding.what == "client.crt" and "not signed by rootCA.pem" in finding.found


def test_a_key_of_another_certificate(kits):
    shutil.copy(kits / "admin" / "startup" / "client.key", kits / "rivers" / "startup")
    finding = only(content(kits / "rivers"))
    assert finding.what == "client.key" and "do not belong together" in finding.found
    (asked,) = (one for one in checks.check_kit(kits / "rivers") if one.what == "server")
    assert asked.level == WARNING and "was not asked" in asked.found


def test_a_certificate_of_another_name(kits, ours):
    ours.issue(kits / "rivers", "hills")
    finding = only(content(kits / "rivers"))
    assert "'hills'" in finding.found and "'rivers'" in finding.found and "copy the whole kit" in finding.remedy


def test_the_name_that_a_site_is_started_with(kits):
    for place, name, owner in (("rivers", "hills", "site 'rivers'"), ("server", "rivers", "server 'localhost'")):
        text = command("--kit", kits / place, "--name", name, code=1)
        assert f"'{name}', but the kit is that of {owner}" in text and "or the kit of this site" in text


def test_a_servers_certificate_is_for_the_name_and_for_its_own_machine(kits, ours):
    for hosts, lacking in ((["localhost"], HOST), ([HOST], "localhost")):
        kit = make_kits(kits.parent / lacking, ours, 1, 2, host=HOST) / "server"
        ours.issue(kit, HOST, hosts)
        finding = only(content(kit))
        assert finding.what == "server.crt" and f"is not for {lacking}" in finding.found and "anew" in finding.remedy


# The way from a site to its server.


def test_nobody_listens_and_no_such_host(kits, ours, monkeypatch):
    finding = only(checks.check_kit(kits / "rivers"))
    assert finding.what == "server" and "refused" in finding.found.lower()
    assert "fedsaddle server --engine nvflare" in finding.remedy and "firewalls" in finding.remedy

    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    kit = make_kits(kits.parent / "far", ours, 1, 2, host=HOST) / "rivers"
    finding = only(checks.check_kit(kit))
    assert finding.what == "server" and HOST in finding.found and "name service" in finding.remedy


def test_a_server_of_another_authority_for_another_host_expired_or_without_tls(kits, ours):
    rivers, server = kits / "rivers", kits / "server"
    cases = [(Authority("other"), {}, "is not trusted", "one run of `fedsaddle provision`"),
             (ours, {"hosts": [HOST]}, "not for localhost", "anew"),
             (ours, {"start": -9, "days": -1}, "has expired", "clock")]
    for authority, how, said, remedy in cases:
        authority.issue(server, "localhost", **how)
        with server_of(server):
            finding = only(checks.check_kit(rivers))
            assert finding.what == "TLS" and said in finding.found and remedy in finding.remedy
            assert "not from the authority of this kit, or not for that host" in why_not(
                read_kit(rivers, "site"), "rivers")
    with server_of(server, secure=False):
        finding = only(checks.check_kit(rivers))
        assert finding.what == "TLS" and "no TLS is spoken there" in finding.found and finding.remedy


def test_a_server_that_does_not_accept_the_kit(kits):
    other, rivers = Authority("other"), kits / "rivers"
    other.issue(rivers, "rivers")
    with server_of(kits / "server"):
        found = troubles(checks.check_kit(rivers))
        assert "does not accept this kit's certificate" in why_not(read_kit(rivers, "site"), "rivers")
    assert [finding.what for finding in found] == ["client.crt", "TLS"]
    assert "does not accept this kit's certificate" in found[1].found
    assert "one run of `fedsaddle provision`" in found[1].remedy


def test_why_not_knows_an_open_door_from_a_shut_one(kits):
    kit = read_kit(kits / "rivers", "site")
    assert "nobody answers" in why_not(kit, "rivers")
    with server_of(kits / "server"):
        assert "not under the name 'rivers'" in why_not(kit, "rivers")


# The server's machine.


@pytest.mark.parametrize("which", ["port", "admin_port"])
def test_a_port_that_another_has(kits, which):
    port = json.loads((kits / "server" / "kit.json").read_text())[which]
    with socket.create_server(("127.0.0.1", port)) as taken:
        def hang_up():
            taken.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        finding = only(checks.check_kit(kits / "server"))
    assert finding.what == f"port {port}" and "cannot be used" in finding.found
    assert "end the process" in finding.remedy and "provision" in finding.remedy


def test_ports_that_our_own_server_has(kits, ours):
    server = kits / "server"
    with server_of(server), server_of(server, admin=True):
        found = checks.check_kit(server)
        assert troubles(found) == []
        assert sum("is held by the server of this kit" in finding.found for finding in found) == 2
    Authority("other").issue(server, "localhost")  # that of another project
    with server_of(server):
        ours.issue(server, "localhost")
        assert only(checks.check_kit(server)).what.startswith("port")


def test_the_admins_kit_is_beside_the_servers_and_of_the_same_authority(kits):
    admin, other = kits / "admin", Authority("other")
    other.root_of(admin)
    other.issue(admin, "lead@example.org")
    finding = only(checks.check_kit(kits / "server"))
    assert finding.what == "admin kit" and "of another server" in finding.found
    assert "one run of `fedsaddle provision`" in finding.remedy
    shutil.rmtree(admin)
    finding = only(checks.check_kit(kits / "server"))
    assert finding.what == "admin kit" and "holds no kit.json" in finding.found
    assert "beside" in finding.remedy and "--kit" not in finding.found
    shutil.copytree(kits / "rivers", admin)
    assert "site 'rivers'" in only(checks.check_kit(kits / "server")).found


def test_little_disk_at_the_server(kits, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    assert "make room" in command("--kit", kits / "server", code=1)
    assert command("--kit", kits / "server", "--state", tmp_path / "run", code=1).count("make room") == 1


# Versions and options.


def test_versions_are_those_of_the_extra(monkeypatch):
    monkeypatch.undo()
    extras = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    least, below = checks.VERSIONS["nvflare"]
    assert extras["optional-dependencies"]["nvflare"] == [f"nvflare>={least},<{below}"]
    assert "flwr" not in checks.VERSIONS
    for version, level in (("2.8.1", WRONG), ("2.9.0", OK), ("2.9.3", OK), ("2.10.0", WRONG), (None, WRONG)):
        def installed(name, version=version):
            if name != "nvflare":
                return "99"
            if version is None:
                raise metadata.PackageNotFoundError(name)
            return version

        monkeypatch.setattr(metadata, "version", installed)
        (finding,) = (one for one in checks.check_versions() if one.what == "nvflare")
        assert finding.level == level
    assert finding.remedy == 'pip install "fedsaddle[nvflare]"'


def test_without_cryptography_it_is_said(kits, monkeypatch):
    monkeypatch.setattr(checks, "CAN_READ", False)
    assert only(checks.check_kit(kits / "server")).remedy == 'pip install "fedsaddle[nvflare]"'


def test_without_a_kit_the_rest_is_looked_at(tmp_path):
    text = command("--state", tmp_path / "s")
    assert "warning" in text and "--kit is not given" in text and "can be written to" in text


@pytest.mark.parametrize(("words", "said"), [
    (["--engine", "flower", "--kit", "k"], "--kit: belongs to --engine nvflare"),
    (["--engine", "flower", "--name", "n"], "--name: belongs to --engine nvflare"),
    (["--keys", "k"], "--keys: belongs to --engine flower"),
    (["--server", "h:1"], "--server: belongs to --engine flower"),
    (["--port", "9092"], "--port: belongs to --engine flower"),
    (["--engine", "horse"], "--engine 'horse': is not known"),
])
def test_options_of_the_other_engine_are_refused_by_name(words, said):
    with pytest.raises(SettingError, match=said):
        command(*words)
