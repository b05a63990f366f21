"""NVFlare as the wire, across real processes over mTLS: the same weights as in simulation, whatever is killed."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import socket
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("nvflare", reason="nvflare, the extra `nvflare`, is not installed")

from cryptography import x509
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedsaddle.contracts import SettingError
from fedsaddle.sites import frames
from fedsaddle.sites.nvflare import courier_server, courier_site
from fedsaddle.sites.nvflare import kit as kits
from fedsaddle.sites.nvflare.job import write_job
from fedsaddle.sites.nvflare.letters import Letter, pack, unpack
from fedsaddle.sites.nvflare.provision import Project, provision, read_project
from fedsaddle.sites.nvflare.session import Node, Server
from fedsaddle.sites.worker import listen
from real_sites import (
    ONE,
    SECONDS,
    SETTINGS,
    Place,
    descendants,
    differences,
    done,
    four_methods_give_the_weights_of_their_simulation,
    records,
    wait_for,
    with_word,
)

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="the processes are looked up in /proc"),
              pytest.mark.xdist_group("nvflare")]
NODES = ("a", "b", "c")


def free_ports(count):
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class Kits(Place):
    """With the kits of a project."""

    def __init__(self, folder, names):
        self.project, self.kits = Project("trial", "localhost", *free_ports(2), names), folder / "kits"
        provision(self.project, self.kits)
        super().__init__(folder, lambda name: self.words(self.kits / name), self.words(self.kits / "server"))

    @staticmethod
    def words(kit):
        return ("--engine", "nvflare", "--kit", kit)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with Kits(tmp_path_factory.mktemp("n"), NODES) as found:
        found.nodes = {name: found.node(number, name) for number, name in enumerate(NODES)}
        yield found


def test_four_methods_give_the_weights_of_their_simulation(place):
    four_methods_give_the_weights_of_their_simulation(place)


def killed(pids):
    assert pids, "nothing to kill"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def test_a_run_survives_kills_of_every_process(place):
    out = place.folder / "killed"
    settings = place.settings(SETTINGS.format(rounds=60) + "at_least = 3\n" + ONE, "killed.toml")
    server = place.server(settings, out)

    def on():
        """A round later, with everybody: others are not counted."""
        count = len(records(out))
        wait_for(lambda: any(not one["skipped"] for one in records(out)[count:]) or server.poll() is not None,
                 f"round {count}: {place.said()}")
        assert server.poll() is None, place.said()

    on()
    killed(with_word(place.folder / "a", "fedsaddle worker"))
    on()
    killed(with_word(place.folder / "a", "client.worker_process"))  # NVFlare ends the whole job
    on()
    killed(with_word(place.folder / "b", "client.client_train"))  # the parent alone; the node starts it again
    killed([place.nodes["c"].pid, *descendants(place.nodes["c"].pid)])
    place.nodes["c"].wait()
    place.nodes["c"] = place.node(2, "c")
    on()
    killed(with_word(out, "server.runner_process"))
    on()
    killed(with_word(out, "server.server_train"))
    on()
    server.kill()
    server.wait()
    before = len(records(out))
    server = place.server(settings, out)
    place.finish(server)
    rounds = records(out)
    assert [one["round"] for one in rounds] == list(range(1, 61)) and 6 <= before < 60
    found = differences(done("replay", out))
    assert found and max(found) < 1e-5, "what was aggregated is what a simulation with the same replies aggregates"


PLANT = """
import sys
if any("client.worker_process" in word for word in sys.orig_argv):
    from fedsaddle.sites.nvflare import courier_site
    def fails(self, *more):
        raise RuntimeError("the row {secret}")
    courier_site.SiteCourier.execute = fails
"""


def test_strangers_are_refused_in_words_and_no_row_in_an_exception_reaches_the_server(tmp_path_factory, monkeypatch):
    secret = "4711.0815 is ill"
    with Kits(tmp_path_factory.mktemp("w"), ("d", "e")) as place:
        kit, forged, foreign = (place.folder / "kits" / name for name in ("e", "forged", "foreign"))
        shutil.copytree(kit, forged)  # the certificate of e in the name of d
        about = json.loads((forged / kits.ABOUT).read_text())
        (forged / kits.ABOUT).write_text(json.dumps({**about, "name": "d"}))
        provision(place.project, place.folder / "other")
        shutil.copytree(place.folder / "other" / "e", foreign)
        shutil.copyfile(kit / "startup" / "rootCA.pem", foreign / "startup" / "rootCA.pem")
        place.nodes = {kit.name: place.node(1, name, place.words(kit), kit.name)
                       for name, kit in (("d", forged), ("e", foreign))}
        planted = place.folder / "planted"
        planted.mkdir()
        (planted / "sitecustomize.py").write_text(PLANT.format(secret=secret))
        monkeypatch.setenv("PYTHONPATH", str(planted))
        place.nodes["d"] = place.node(0, "d")
        monkeypatch.delenv("PYTHONPATH")
        settings = place.settings(SETTINGS.format(rounds=2).replace("clients = 3", "clients = 1")
                                  + "start_seconds = 10\n" + ONE, "one.toml")
        server = place.server(settings, place.folder / "run")
        wait_for(lambda: "does not accept this kit's certificate" in place.said("foreign"), "foreign")
        wait_for(lambda: "not under the name 'd'" in place.said("forged"), "forged")
        assert server.wait(SECONDS) == 2, place.said()
        said = place.said()
        assert "refused: the certificate of 'e' was shown by somebody who calls itself 'd'" in said
        assert "refused: somebody showed a certificate that is not from the authority of the kits" in said
        assert "node d did not introduce itself: the site's courier failed" in said
    assert holding(place.folder / "d", secret), "the exception was raised, and told at the site"
    assert not holding(place.folder / "run", secret) and secret not in said


def holding(folder, text):
    """Files with the text, also in packed ones."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file():
            contents = [path.read_bytes()]
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as packed:
                    contents += [packed.read(name) for name in packed.namelist()]
            found += [path for content in contents if text.encode() in content]
    return found


def test_kits_stream_no_logs_run_no_foreign_code_and_store_nothing_in_the_temporary_folder(tmp_path):
    made = provision(Project("trial", "fed.example.org", 9002, 9003, ("rivers", "hills"), days=30), tmp_path)
    assert [kit.name for kit in made] == ["server", "admin", "rivers", "hills"]
    for path in tmp_path.rglob("*"):
        assert not path.stat().st_mode & 0o077, f"{path} is open to others"
        assert not path.is_file() or "/tmp/nvflare" not in path.read_text(), path
    for kit in (tmp_path / "server", tmp_path / "rivers"):
        rights = json.loads((kit / "local" / "authorization.json").read_text())["permissions"]
        assert set(rights) == {"lead"} and rights["lead"]["byoc"] == rights["lead"]["shell_commands"] == "none"
        resources = json.loads((kit / "local" / "resources.json").read_text())
        assert all(name.startswith("fedsaddle.") for name in resources["class_allow_list"])
        assert resources["class_list_enforcement_mode"] == "enforce"
        assert not any("logging" in part["path"] for part in resources["components"])
    assert json.loads((tmp_path / "rivers" / "local" / "resources.json").read_text())["allow_log_streaming"] is False
    with (tmp_path / "rivers" / "startup" / "client.crt").open("rb") as file:
        certificate = x509.load_pem_x509_certificate(file.read())
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=29) < left <= timedelta(days=30)
    key = (tmp_path / "rivers" / "startup" / "client.key").read_bytes()
    provision(Project("trial", "fed.example.org", 9002, 9003, ("rivers", "hills", "lakes"), days=30), tmp_path)
    assert (tmp_path / "rivers" / "startup" / "client.key").read_bytes() == key, "what is there stays"
    assert kits.read_kit(tmp_path / "server", kits.SERVER).sites == ("rivers", "hills", "lakes")
    assert kits.read_kit(tmp_path / "lakes", kits.SITE).name == "lakes"

@pytest.mark.parametrize(("other", "named"), [
    ({"server": "other.example.org"}, "server = 'other.example.org'.*fed.example.org.*--out"),
    ({"port": 9004}, "port = 9004.*9002.*--out"), ({"admin_port": 9004}, "admin_port = 9004.*9003.*--out"),
    ({"admin": "else@example.org"}, "admin = 'else@example.org'.*admin@example.org.*--out")])
def test_kits_keep_the_address_they_were_made_for(other, named, tmp_path):
    first = Project("trial", "fed.example.org", 9002, 9003, ("rivers",))
    for kit in provision(first, tmp_path):
        assert json.loads((kit / "kit.json").read_text())["port"] == 9002
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(SettingError, match=named):
        provision(dataclasses.replace(first, sites=("rivers", "hills"), **other), tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before



@pytest.mark.parametrize(("text", "word"), [
    ('server = "fed.example.org"', "sites: is empty"),
    ('server = "fed.example.org"\nsites = ["a", "a"]', "'a': is there twice"),
    ('server = "fed.example.org"\nsites = ["server"]', "a name that is needed"),
    ('server = "https://x"\nsites = ["a"]', "server = 'https://x'"),
    ('server = "x"\nsites = ["a"]\nport = 1\nadmin_port = 1', "admin_port = 1"),
    ('server = "x"\nsites = ["a"]\nsite = 1', "site"),
])
def test_a_project_that_cannot_be_is_refused_by_name(tmp_path, text, word):
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(SettingError, match=re.escape(word)):
        read_project(tmp_path / "p.toml")


def test_a_kit_of_another_is_refused_by_name(tmp_path):
    provision(Project("trial", "localhost", 9002, 9003, ("a",)), tmp_path)
    with pytest.raises(SettingError, match="is the kit of site 'a'"):
        Server(tmp_path / "run", tmp_path / "a", print)
    with pytest.raises(SettingError, match="that of 'a'"):
        Node(tmp_path / "home", tmp_path / "a", "b", tmp_path / "w")
    with pytest.raises(SettingError, match=r"holds no kit\.json"):
        Node(tmp_path / "home", tmp_path / "nothing", "b", tmp_path / "w")


def test_the_servers_courier_passes_on_neither_nvflares_words_nor_a_long_reason():
    assert courier_server.read(make_reply(ReturnCode.EXECUTION_EXCEPTION)) == Letter(error="the site's courier failed")
    assert courier_server.read(None).error == "the site's courier failed"
    strange = Shareable()
    strange["content"] = "row 1"
    assert courier_server.read(strange).error == "the site answered with a message whose parts are not ours"
    assert courier_server.read(pack(Letter(b"kept?", "x\n" * 1000))) == Letter(b"", "x" * 100)
    assert courier_server.read(pack(Letter(b"\0content"))) == Letter(b"\0content")


def test_the_sites_courier_says_what_is_wrong_in_fixed_sentences(tmp_path, monkeypatch):
    monkeypatch.setattr(courier_site, "RETURN", 0.1)
    courier = courier_site.SiteCourier()

    def said(shareable, **own):
        courier.own = own
        return unpack(courier.execute("carry", shareable, None, Signal())).error

    ask = pack(Letter(b"content", seconds=0.3))
    assert "no worker, or no limit" in said(ask)
    assert said(Shareable(), worker="w", limit=1) == "the site did not understand the message"
    assert said(ask, worker=str(tmp_path / "none"), limit=1) == "the site's worker is not there"
    with listen(tmp_path / "w.sock") as silent:
        assert said(ask, worker=str(tmp_path / "w.sock"), limit=1) == "the site's worker did not answer in time"
        silent.accept()[0].close()

        def answer():
            for content in (b"seven b", None):
                with silent.accept()[0] as asked:
                    assert frames.receive_frame(asked, 100) == b"content"
                    if content:
                        frames.send_frame(asked, content)

        with ThreadPoolExecutor() as pool:
            answering = pool.submit(answer)
            assert "larger than the site allows" in said(ask, worker=str(tmp_path / "w.sock"), limit=6)
            assert "went away before it answered" in said(ask, worker=str(tmp_path / "w.sock"), limit=6)
            answering.result()


def test_a_job_holds_no_code_and_tells_the_sites_nothing_of_the_server(tmp_path):
    kit = kits.Kit(tmp_path, kits.SERVER, "s", "o", "h", 1, 2, ("rivers", "hills"))
    job = write_job(tmp_path, kit, tmp_path / "wire.sock")
    files = {path.relative_to(job).as_posix(): path.read_text() for path in job.rglob("*") if path.is_file()}
    assert set(files) == {"meta.json", "server/config/config_fed_server.json", "site/config/config_fed_client.json"}
    assert str(tmp_path) in files["server/config/config_fed_server.json"]
    assert str(tmp_path) not in files["site/config/config_fed_client.json"]
    assert json.loads(files["meta.json"])["deploy_map"] == {"server": ["server"], "site": ["rivers", "hills"]}
