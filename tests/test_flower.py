"""Flower as the wire: FlowerWire against a courier made here, and the whole way through real processes over TLS."""

import asyncio
import contextlib
import os
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="flwr, the extra `flower`, is not installed")

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from flwr.app import ConfigRecord, RecordDict

from fedsaddle.contracts import SettingError
from fedsaddle.sites import courier_wire, frames, keys, programs
from fedsaddle.sites.flower import app, courier_server, courier_site, processes, records, running, session
from fedsaddle.sites.flower import gate as gates
from fedsaddle.sites.flower import wire as wires
from fedsaddle.sites.notes import receive_note, send_note
from fedsaddle.sites.wire import Delivery, Parcel, WireLost

pytestmark = pytest.mark.xdist_group("flower")
LIMIT = 8 << 20


# FlowerWire and a courier that is a socket in this test.


class Courier:
    def __init__(self, wire, run="1"):
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.connect(str(wire.path))
        send_note(self.connection, {"is": "here", "run": run})
        wire.wait(10.0)

    def told(self):
        return receive_note(self.connection)

    def deliver(self, node, ticket, content=b"", error=""):
        send_note(self.connection, {"is": "delivery", "node": node, "ticket": ticket, "error": error}, content)

    def close(self):
        self.connection.close()


@pytest.fixture
def wire(tmp_path):
    wire = wires.FlowerWire(tmp_path)
    yield wire
    wire.close()


@pytest.fixture
def courier(wire):
    courier = Courier(wire)
    yield courier
    courier.close()


def received(wire, count, seconds=10.0):
    got = []
    until = time.monotonic() + seconds
    while len(got) < count and time.monotonic() < until:
        got += wire.receive(1.0)
    return got


def test_parcels_of_one_content_go_to_the_courier_together(wire, courier):
    wire.send([Parcel("7", "r1-7", b"model\nand", 5.0), Parcel("8", "r1-8", b"other", 5.0),
               Parcel("9", "r1-9", b"model\nand", 6.0)])
    head, content = courier.told()
    assert (head["do"], content) == ("send", b"model\nand")
    assert head["parcels"] == [{"node": "7", "ticket": "r1-7", "seconds": 5.0},
                               {"node": "9", "ticket": "r1-9", "seconds": 6.0}]
    assert courier.told() == ({"do": "send", "parcels": [{"node": "8", "ticket": "r1-8", "seconds": 5.0}]}, b"other")


def test_answers_are_delivered_once_and_only_those_that_were_asked(wire, courier):
    wire.send([Parcel("7", "a", b"", 60.0), Parcel("8", "b", b"", 60.0)])
    courier.deliver("7", "stranger", b"x")
    courier.deliver("7", "a", b"\n{}\n")
    courier.deliver("7", "a", b"again")
    courier.deliver("8", "b", error="the site's worker is not there")
    assert received(wire, 3, seconds=2.0) == [Delivery("7", "a", b"\n{}\n"),
                                              Delivery("8", "b", error="the site's worker is not there")]
    assert wire.receive(0.0) == []


def test_an_answer_that_was_given_up_is_delivered_all_the_same(wire, courier):
    wire.send([Parcel("7", "a", b"", 60.0)])
    wire.give_up(["a"])
    courier.deliver("7", "a", b"late")
    assert received(wire, 1) == [Delivery("7", "a", b"late")]


def test_a_ticket_is_not_sent_twice(wire, courier):
    wire.send([Parcel("7", "a", b"", 60.0)])
    with pytest.raises(ValueError, match="'a' was sent before"):
        wire.send([Parcel("8", "a", b"", 60.0)])


def test_nodes_are_what_the_courier_says(wire, courier):
    def tell():
        assert courier.told() == ({"do": "nodes"}, b"")
        send_note(courier.connection, {"is": "nodes", "nodes": ["7", "8"]})

    with ThreadPoolExecutor() as pool:
        telling = pool.submit(tell)
        assert wire.nodes() == ["7", "8"]
        telling.result()


def test_what_flower_never_answers_expires_once(wire, courier, monkeypatch):
    monkeypatch.setattr(courier_wire, "GRACE", 0.05)
    wire.send([Parcel("7", "a", b"", 0.05), Parcel("8", "b", b"", 60.0)])
    assert received(wire, 1) == [Delivery("7", "a", error="expired")]
    courier.deliver("7", "a", b"too late")
    courier.deliver("8", "b", b"in time")
    assert received(wire, 1) == [Delivery("8", "b", b"in time")]


def test_no_courier_is_a_lost_wire(wire):
    for use in (wire.nodes, lambda: wire.receive(5.0), lambda: wire.send([Parcel("7", "a", b"", 1.0)]),
                lambda: wire.wait(0.01)):
        with pytest.raises(WireLost):
            use()


def test_a_courier_that_hangs_up_is_a_lost_wire_until_the_next_one(wire, courier):
    wire.send([Parcel("7", "a", b"", 60.0), Parcel("8", "b", b"", 60.0)])
    courier.deliver("7", "a", b"came before")
    courier.close()
    assert received(wire, 1) == [Delivery("7", "a", b"came before")]
    with pytest.raises(WireLost):
        wire.receive(60.0)
    with pytest.raises(WireLost):
        wire.nodes()
    second = Courier(wire, run="2")
    assert wire.run == "2" and wire.receive(0.0) == []
    wire.send([Parcel("8", "b", b"", 60.0)])  # what the first courier carried is forgotten, so it may be sent again
    second.deliver("8", "b", b"from the second")
    assert received(wire, 1) == [Delivery("8", "b", b"from the second")]
    second.close()


def test_a_receiver_that_waits_hears_at_once_that_the_wire_is_lost(wire, courier):
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(wire.receive, 60.0)
        courier.close()
        with pytest.raises(WireLost):
            waiting.result(timeout=30.0)


def test_a_stranger_on_the_socket_changes_nothing(wire):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(str(wire.path))
        frames.send_frame(stranger, b"hello")
    courier = Courier(wire)
    wire.send([Parcel("7", "a", b"", 60.0)])
    courier.deliver("7", "a", b"1")
    assert received(wire, 1) == [Delivery("7", "a", b"1")]
    courier.close()


def test_the_socket_is_the_users_own_and_goes_away(tmp_path):
    wire = wires.FlowerWire(tmp_path / "own")
    assert wire.path.stat().st_mode & 0o077 == 0 and wire.path.parent.stat().st_mode & 0o077 == 0
    wire.close()
    assert not wire.path.exists()
    with pytest.raises(WireLost):
        wire.receive(1.0)
    with pytest.raises(SettingError, match="too long for a local socket"):
        wires.FlowerWire(tmp_path / ("x" * 120))


def test_without_keys_only_what_says_insecure_starts(tmp_path):
    for start in (lambda: processes.SuperLink(tmp_path), lambda: processes.SuperNode(tmp_path, "h:1", {}),
                  lambda: processes.SuperNode(tmp_path, "h:1", {}, root=tmp_path / "ca.crt")):
        with pytest.raises(SettingError, match="insecure"):
            start()


def test_the_last_words_of_a_log_say_something():
    log = "INFO: ok\nTraceback (most recent call last):\n  File x\nValueError: no\n\n\x1b[0m  \nINFO:    Finished\n"
    assert running.last_words(log) == "ValueError: no"
    assert "refuses the key" in running.last_words("Exit Code: 305\n[code: 2004] Failed\nINFO:     Finished\n")


def test_what_was_left_behind_in_a_folder_is_ended_by_the_next_start(tmp_path):
    first = programs.Program("sleeper", ["python", "-c", "import time; time.sleep(60)"], tmp_path)
    other = programs.Program("other", ["python", "-c", "import time; time.sleep(60)"], tmp_path)
    second = programs.Program("sleeper", ["python", "-c", "print('ValueError: done')"], tmp_path)
    assert not first.alive() and other.alive()
    while second.alive():
        time.sleep(0.05)
    assert str(running.failure(second, "ended")) == "sleeper: ended (exit code 0): ValueError: done"
    other.stop()
    second.stop()
    assert not other.alive() and ours(tmp_path) == []


def test_a_port_that_is_taken_is_said(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(SettingError, match="port = "):
        processes.SuperLink(tmp_path, port=other.getsockname()[1], insecure=True)


# What the couriers say.


@pytest.mark.parametrize("size", [0, 1, records.PIECE, records.PIECE + 1, 3 * records.PIECE - 1])
def test_a_letter_comes_out_as_it_went_in(size):
    letter = records.Letter("t", os.urandom(size), "why")
    assert records.unpack(records.pack(letter)) == letter


def test_what_is_no_letter_is_refused():
    good = records.pack(records.Letter("t", b"abc"))
    for name, values in (("label", {"ticket": 1, "error": "", "pieces": 1}), ("piece 0", {"bytes": "abc"}),
                         ("label", {"ticket": "t", "error": ""}), ("label", {"ticket": "t", "error": "", "pieces": 2}),
                         ("other", {"bytes": b"abc"})):
        with pytest.raises(ValueError):
            records.unpack(RecordDict({**good, name: ConfigRecord(values)}))
    with pytest.raises(ValueError):
        records.unpack(RecordDict())


def reply(letter=None, code=None):
    return SimpleNamespace(has_error=lambda: code is not None, error=SimpleNamespace(code=code, reason="secret rows"),
                           content=letter and records.pack(letter))


def test_the_servers_courier_believes_a_site_neither_its_ticket_nor_a_long_reason():
    later, over = time.monotonic() + 60.0, time.monotonic() - 1.0
    for given, until, expected in (
            (reply(records.Letter("forged", b"x")), later, records.Letter("mine", b"x")),
            (reply(records.Letter("", b"x", "a\x1b[2Jb\n" + "c" * 500)), later,
             records.Letter("mine", b"", "a[2Jb" + "c" * 193)),
            (reply(code=2), later, records.Letter("mine", b"", "the site's courier failed")),
            (reply(code=3), over, records.Letter("mine", b"", "expired")),
            (reply(code=99), later, records.Letter("mine", b"", courier_server.LOST))):
        assert courier_server.read(given, courier_server.Open("7", "mine", until)) == expected


def test_the_sites_courier_says_what_is_wrong_in_fixed_sentences(tmp_path):
    def said(config, seconds=30.0):
        content = records.pack(records.Letter("t", b"x"))
        message = SimpleNamespace(content=content, metadata=SimpleNamespace(ttl=seconds))
        return courier_site.answer(message, SimpleNamespace(node_config=config)).error

    go = threading.Event()
    worker = Worker(tmp_path / "w")
    worker.work = lambda content: b"late" if go.wait(60.0) else None
    config = {"worker": str(worker.path), "limit": 100}
    assert said({}) == "the site's node has no worker, or no limit, in its configuration"
    assert said({"worker": str(tmp_path / "none"), "limit": 1}) == "the site's worker is not there"
    assert said(config | {"limit": "secret"}) == "the site's courier failed"
    assert said(config, seconds=0.0) == "the site's worker did not answer in time"
    go.set()
    assert said(config) == ""
    worker.close()
    message = SimpleNamespace(content=RecordDict())
    assert courier_site.answer(message, None).error == "the site did not understand the message"


# Who gets through to the SuperLink.


def passed(path, client, kind="http"):
    """The statuses with which a request comes back: 200 from the application behind the gate."""
    sent = []

    async def send(message):
        sent.append(message)

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})

    asyncio.run(gates.gate(application)({"type": kind, "path": path, "client": client}, None, send))
    return [message["status"] for message in sent if message["type"] == "http.response.start"]


@pytest.mark.parametrize("path", ["/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task",
                                  "/docs", "/health", "/v1/fleetx", "/", "/v1/control/../fleet/"])
def test_the_gate_lets_other_machines_do_only_what_a_node_does(path):
    for stranger in (("192.0.2.7", 5000), ("2001:db8::1", 5000), ("::ffff:192.0.2.7", 1), ("localhost", 1), None, ()):
        assert passed(path, stranger) == [403]
        assert passed("/v1/fleet/activate-node", stranger) == [200]
    for own in (("127.0.0.1", 5000), ("::1", 5000), ("::ffff:127.0.0.1", 1)):
        assert passed(path, own) == [200]


def test_the_gate_has_no_other_door():
    assert passed("/v1/fleet/x", ("192.0.2.7", 1), kind="websocket") == []
    assert passed(running.MARK, ("192.0.2.7", 1)) == [204]


# The whole way: SuperLink, two SuperNodes, couriers; the workers are threads here.


class Worker:
    """Answers a frame with what `work` makes of it."""

    def __init__(self, path):
        self.path, self.work = path, lambda content: content
        self.listener = None
        self.open()

    def open(self):
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(self.path))
        self.listener.listen(4)
        threading.Thread(target=self.serve, args=(self.listener,), daemon=True).start()

    def serve(self, listener):
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    answer = self.work(frames.receive_frame(connection, LIMIT))
                    if answer is not None:
                        frames.send_frame(connection, answer)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.path.unlink()


class Site:
    def __init__(self, folder, name, link, resident):
        self.resident, self.folder, self.link, self.key = resident, folder / name, link, keys.node_key(folder, name)
        self.root = folder / "ca.crt"
        self.worker = Worker(folder / f"{name}.sock")
        self.registered = processes.register_node(link.connection, self.key.with_suffix(".pub"), name)
        self.start()

    def start(self):
        self.supernode = processes.SuperNode(
            self.folder, self.link.address, {"worker": str(self.worker.path), "limit": LIMIT}, root=self.root,
            private_key=self.key, resident=self.resident)

    def stop(self):
        self.supernode.stop()

    @property
    def node(self):
        return self.supernode.node


class Federation:
    def __init__(self, folder):
        self.folder, self.tickets = folder, 0
        keys.make_authority(folder, 2)
        keys.server_certificate(folder, ["127.0.0.1"], 2)
        with contextlib.ExitStack() as stack:
            self.link = processes.SuperLink(folder / "link", certificates=processes.Certificates(
                folder / "ca.crt", folder / "server.pem", folder / "server.key"))
            stack.callback(self.link.stop)
            with ThreadPoolExecutor() as pool:
                # Both kinds of courier: Flower's process for every message, and ours for all of them.
                self.a, self.b = pool.map(lambda name: self.site(stack, name, resident=name == "b"), "ab")
            self.wire = wires.FlowerWire(folder / "wire")
            stack.callback(self.wire.close)
            self.submit()
            self.close = stack.pop_all().close

    def site(self, stack, name, resident):
        site = Site(self.folder, name, self.link, resident)
        stack.callback(site.stop)
        return site

    def submit(self):
        processes.submit(self.link.connection, app.write_app(self.folder), self.wire.path)
        self.wire.wait(60.0)

    def parcel(self, site, content=b"", seconds=60.0):
        self.tickets += 1
        return Parcel(site.node, f"ticket {self.tickets}", content, seconds)


def ours(folder):
    """Processes whose command line or working folder is in the folder."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            with contextlib.suppress(OSError):
                text = (process / "cmdline").read_bytes().decode(errors="replace") + os.readlink(process / "cwd")
                if str(folder) in text:
                    found.append(text)
    return found


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("f")
    federation = Federation(folder)
    assert len(ours(folder)) >= 3  # else the check below could not fail
    yield federation
    federation.close()
    assert ours(folder) == []


def test_bytes_come_back_as_they_were(federation):
    wire, a, b = federation.wire, federation.a, federation.b
    assert sorted(wire.nodes()) == sorted([a.node, b.node]) == sorted([a.registered, b.registered])
    large = os.urandom(4 << 20)
    parcels = [federation.parcel(a), federation.parcel(b, large)]
    wire.send(parcels)
    expected = {Delivery(p.node, p.ticket, p.content) for p in parcels}
    assert set(received(wire, 2, 60.0)) == expected


def test_a_slow_worker_does_not_hold_up_the_other_and_a_missing_one_is_said(federation):
    wire, a, b = federation.wire, federation.a, federation.b
    go = threading.Event()
    a.worker.work = lambda content: b"slow" if go.wait(60.0) else None
    b.worker.close()
    slow, missing = federation.parcel(a), federation.parcel(b)
    wire.send([slow, missing])
    assert received(wire, 1, 60.0) == [Delivery(b.node, missing.ticket, error="the site's worker is not there")]
    b.worker.open()
    second = federation.parcel(b, b"again")
    wire.send([second])
    assert received(wire, 1, 60.0) == [Delivery(b.node, second.ticket, b"again")]
    go.set()
    assert received(wire, 1, 60.0) == [Delivery(a.node, slow.ticket, b"slow")]


def test_a_worker_that_dies_or_says_too_much_is_an_error_without_its_words(federation):
    wire, a, b = federation.wire, federation.a, federation.b
    a.worker.work = lambda content: None  # closes without an answer
    b.worker.work = lambda content: bytes(LIMIT + 1)
    died, large = federation.parcel(a), federation.parcel(b)
    wire.send([died, large])
    assert set(received(wire, 2, 60.0)) == {
        Delivery(a.node, died.ticket, error="the site's worker went away before it answered"),
        Delivery(b.node, large.ticket, error="the answer of the site's worker is larger than the site allows")}
    a.worker.work = b.worker.work = lambda content: content


def test_a_killed_node_answers_again_under_the_same_name(federation):
    wire, b = federation.wire, federation.b
    before = b.node
    assert processes.register_node(federation.link.connection, b.key.with_suffix(".pub")) == before
    b.supernode.kill()
    b.start()
    assert b.node == before
    parcel = federation.parcel(b, b"back")
    wire.send([parcel])
    assert received(wire, 1, 60.0) == [Delivery(before, parcel.ticket, b"back")]


def test_strangers_are_refused(federation, tmp_path):
    key = keys.node_key(federation.folder, "stranger")
    for folder, how, why in (
            ("key", {"root": federation.folder / "ca.crt", "private_key": key}, r"\(exit code 1\): .*refuses the key"),
            ("plain", {"insecure": True, "seconds": 25.0}, "nobody answers there, or one side speaks TLS")):
        with pytest.raises(running.FlowerFailed, match=why):
            processes.SuperNode(tmp_path / folder, federation.link.address, {"worker": "w", "limit": 1}, **how)
    with pytest.raises(ssl.SSLError), socket.create_connection(("127.0.0.1", federation.link.port)) as connection:
        ssl.create_default_context().wrap_socket(connection, server_hostname="localhost")  # it knows no such authority
    until = time.monotonic() + 10
    told = {}
    while len(told) < 3 and time.monotonic() < until:
        lines = federation.link.program.log.read_text().splitlines()
        told = {line.partition(": ")[2].partition(": ")[2] for line in lines if line.startswith("refused:")}
    assert told >= {"its key is not registered here, or another node with it is online", "it speaks without TLS",
                    "it does not know the authority of this server's certificate"}
    assert ours(tmp_path) == []


def test_a_node_without_a_key_is_refused(federation, tmp_path):
    """Our own commands start none, so this is Flower's."""
    node = running.start("supernode", [
        "flower-supernode", "--superlink", federation.link.address, "--root-certificates",
        str(federation.folder / "ca.crt"), "--host", "127.0.0.1", "--port", str(programs.free_port())], tmp_path)
    until = time.monotonic() + 60
    while node.alive() and time.monotonic() < until:
        time.sleep(0.2)
    node.kill()
    assert running.last_words(node.said()) == "the SuperLink wants a key, and none was given"
    with pytest.raises(SettingError, match="--keys: is missing"):
        session.Node(tmp_path, federation.link.address, None, "x", False, tmp_path / "w")


def test_a_node_whose_key_was_taken_away_is_shut_out(federation, tmp_path):
    link, key = federation.link.connection, keys.node_key(federation.folder, "guest")
    guest = processes.register_node(link, key.with_suffix(".pub"))
    assert processes.shut_out(link, [federation.a.node, federation.b.node]) == [guest]
    assert processes.shut_out(link, [federation.a.node, federation.b.node]) == []
    with pytest.raises(running.FlowerFailed, match="refuses the key"):
        processes.SuperNode(tmp_path / "guest", federation.link.address, {"worker": "w", "limit": 1},
                            root=federation.folder / "ca.crt", private_key=key)


def test_a_node_that_looks_for_its_server_ends_when_it_is_told_to(tmp_path):
    told, asked = [], iter([False, False, True])
    with session.Node(tmp_path, f"127.0.0.1:{programs.free_port()}", None, "x", True, tmp_path / "w") as node:
        node.watch(told.append, lambda: next(asked, True))
    assert len(told) == 1 and "is ended before it was connected" in told[0]
    assert ours(tmp_path) == []


def test_a_node_says_that_the_servers_certificate_has_expired(tmp_path):
    keys.make_authority(tmp_path, 2)
    keys.server_certificate(tmp_path, ["127.0.0.1"], 2)
    expired(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        def accept():
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with contextlib.suppress(OSError):
                    context.wrap_socket(connection, server_side=True).close()

        threading.Thread(target=accept, daemon=True).start()
        with pytest.raises(running.FlowerFailed, match="certificate has expired"):
            processes.SuperNode(
                tmp_path / "node", f"127.0.0.1:{listening.getsockname()[1]}", {"worker": "w", "limit": 1},
                root=tmp_path / "ca.crt", private_key=keys.node_key(tmp_path, "a"), seconds=60.0)
    with pytest.raises(SettingError, match="expired on"):
        session.Server(tmp_path / "out", tmp_path, "127.0.0.1", 0, None, False, print).__enter__()


def expired(folder):
    """The same server certificate, whose time is over."""
    authority = keys.read_key(folder / "ca.key")
    old = keys.read_certificates(folder / "server.pem")[0]
    end = datetime.now(UTC) - timedelta(hours=1)
    new = x509.CertificateBuilder(old.issuer, old.subject, old.public_key(), old.serial_number, end - timedelta(days=1),
                                  end, list(old.extensions)).sign(authority, hashes.SHA256())
    (folder / "server.pem").write_bytes(new.public_bytes(Encoding.PEM))


STRANGE = '''
from pathlib import Path
from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.query()
def run(message, context):
    Path(context.node_config["worker"] + ".ran").touch()
    return Message(message.content, reply_to=message)

@server.main()
def main(grid, context):
    import time
    from fedsaddle.sites.flower.records import KIND, Letter, pack
    nodes = sorted(grid.get_node_ids())
    wait = set(grid.push_messages([Message(pack(Letter("t", b"x")), dst_node_id=node, message_type=KIND, ttl=60.0)
                                   for node in nodes]))
    while wait:
        wait -= {reply.metadata.reply_to_message_id for reply in grid.pull_messages(wait)}
        time.sleep(0.2)
    Path(context.run_config["socket"]).touch()
'''


def test_code_that_comes_with_a_run_does_not_run_beside_a_resident_courier(federation):
    """Site a has Flower's own executor, which runs it: the check below can fail."""
    strange = app.write_app(federation.folder / "strange")
    settings = (strange / "pyproject.toml").read_text()
    for ours_, theirs in (("courier_server:server", "strange:server"), ("courier_site:client", "strange:client")):
        settings = settings.replace(f"{app.HOME}.{ours_}", theirs)
    (strange / "pyproject.toml").write_text(settings)
    (strange / "strange.py").write_text(STRANGE)
    done = federation.folder / "done"
    processes.submit(federation.link.connection, strange, done)
    until = time.monotonic() + 60.0
    while not done.exists() and time.monotonic() < until:
        time.sleep(0.2)
    assert done.exists()
    assert [Path(f"{site.worker.path}.ran").exists() for site in (federation.a, federation.b)] == [True, False]
