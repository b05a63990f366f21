"""NVFlare as the wire, across real processes over mTLS: the same weights as in simulation, whatever is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="nvflare, the extra `nvflare`, is not installed")

from test_sites_real import (
    FOUR,
    ONE,
    SETTINGS,
    descendants,
    differences,
    done,
    fedsaddle,
    records,
    wait_for,
    with_word,
)

from fedsaddle.contracts import SettingError
from fedsaddle.sites.nvflare import kit as kits
from fedsaddle.sites.nvflare.provision import Project, provision, read_project

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="the processes are looked up in /proc"),
              pytest.mark.xdist_group("nvflare")]
NODES = ("a", "b", "c")
SECONDS = 240


def free_ports(count):
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class Place:
    """Three nodes that stay up, and servers as they are wanted."""

    def __init__(self, folder):
        self.folder = folder
        port, admin_port = free_ports(2)
        self.project = Project("trial", "localhost", port, admin_port, NODES)
        provision(self.project, folder / "kits")
        self.settings(SETTINGS.format(rounds=1) + ONE, "first.toml")
        done("deal", folder / "first.toml", "--out", folder / "data")
        (folder / "policy.toml").write_text("raw_scores = true\n")
        self.nodes = {name: self.node(number, name) for number, name in enumerate(NODES)}

    def settings(self, text, name):
        path = self.folder / name
        path.write_text(text)
        return path

    def node(self, number, name, kit=None, state=None):
        log = (self.folder / f"{state or name}.log").open("a")
        return fedsaddle("node", "--engine", "nvflare", "--data", self.folder / "data" / f"site-{number}.npz",
                         "--name", name, "--kit", kit or self.folder / "kits" / name, "--state",
                         self.folder / (state or name), "--group", min(number, 1), "--policy",
                         self.folder / "policy.toml", stdout=log, stderr=log)

    def server(self, settings, out):
        log = (self.folder / "server.log").open("a")
        return fedsaddle("server", settings, "--engine", "nvflare", "--kit", self.folder / "kits" / "server", "--out",
                         out, stdout=log, stderr=log)

    def finish(self, server):
        try:
            code = server.wait(SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the server does not end: {self.said()}")
        assert code == 0, self.said()

    def said(self, name="server"):
        return (self.folder / f"{name}.log").read_text()[-3000:]

    def close(self):
        for process in self.nodes.values():
            process.terminate()
        for process in self.nodes.values():
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    found = Place(tmp_path_factory.mktemp("n"))
    try:
        yield found
    finally:
        found.close()
        left = with_word(found.folder, "")
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert not left, "processes were left behind"


def test_four_methods_give_the_weights_of_their_simulation(place):
    settings = place.settings(SETTINGS.format(rounds=3) + FOUR.format(), "four.toml")
    place.finish(place.server(settings, place.folder / "four"))
    said = done("replay", place.folder / "four")
    found = differences(said)
    assert len(found) == 4 and max(found) < 1e-5, said
    for name in ("cdma-ada", "codasca", "drfa", "cycp-pairwise"):
        rounds = records(place.folder / "four" / name)
        assert len(rounds) == 3 and not any(one["skipped"] for one in rounds)
        groups = [{client for ask in one["asks"] for client in ask["asked_clients"]} for one in rounds]
        assert groups[0] <= {0} and groups[1] <= {1, 2}, "the groups are those that the nodes named"
