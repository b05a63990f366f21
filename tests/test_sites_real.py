"""Across real processes on loopback, over TLS with node keys: the same weights as in simulation, whatever is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr, the extra `flower`, is not installed")
pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="the processes are looked up in /proc"),
              pytest.mark.xdist_group("flower")]
NODES = ("a", "b", "c")
SECONDS = 240

SETTINGS = """
[run]
rounds = {rounds}
evaluate_every = {rounds}
batch_size = 8
[data]
name = "breast-cancer"
clients = 3
partition = "iid"
[problem]
name = "pairwise"
[model]
name = "linear"
[sites]
deadline = 40
"""
FOUR = """
[participation]
select = {{ name = "cyclic", groups = 2 }}
[algorithms.cdma-ada]
name = "cdma-ada"
steps = 2
eta = 0.05
asked = 1
[algorithms.codasca]
name = "codasca"
steps = 2
eta = 0.05
[algorithms.drfa]
name = "drfa"
steps = 2
eta = 0.05
asked = 2
[algorithms.cycp-pairwise]
name = "cycp-pairwise"
steps = 2
eta = 0.05
"""
ONE = """
[algorithm]
name = "codasca"
steps = 2
eta = 0.05
"""


def fedsaddle(*words, **more):
    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", "fedsaddle", *map(str, words)], env=quiet, text=True, **more)


def done(*words):
    process = fedsaddle(*words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = process.communicate(timeout=SECONDS)[0]
    assert process.returncode == 0, said
    return said


def descendants(pid):
    """All processes below one, by /proc."""
    found, waiting = [], [pid]
    while waiting:
        children = Path(f"/proc/{waiting.pop()}/task")
        for task in children.glob("*/children"):
            try:
                numbers = [int(word) for word in task.read_text().split()]
            except OSError:
                continue
            found += numbers
            waiting += numbers
    return found


def with_word(folder, word):
    """Processes whose command line has the word and the folder's path: those of this test alone."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in line and str(folder) in line:
            found.append(int(path.parent.name))
    return found


class Place:
    """Three nodes that stay up, and servers as they are wanted."""

    def __init__(self, folder):
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.settings(SETTINGS.format(rounds=1) + ONE, "first.toml")
        done("deal", folder / "first.toml", "--out", folder / "data")
        names = [word for name in NODES for word in ("--node", name)]
        done("keys", folder / "keys", "--server", "localhost", *names)
        policy = folder / "policy.toml"
        policy.write_text("raw_scores = true\n")
        self.nodes = {name: self.node(number, name, policy) for number, name in enumerate(NODES)}

    def settings(self, text, name):
        path = self.folder / name
        path.write_text(text)
        return path

    def node(self, number, name, policy=None):
        log = (self.folder / f"{name}.log").open("a")
        group = ("--group", min(number, 1))
        rules = ("--policy", policy) if policy else ()
        return fedsaddle("node", "--data", self.folder / "data" / f"site-{number}.npz", "--server",
                         f"127.0.0.1:{self.port}", "--name", name, "--keys", self.folder / "keys", "--state",
                         self.folder / name, *group, *rules, stdout=log, stderr=log)

    def server(self, settings, out):
        log = (self.folder / "server.log").open("a")
        return fedsaddle("server", settings, "--keys", self.folder / "keys", "--host", "127.0.0.1", "--port", self.port,
                         "--out", out, stdout=log, stderr=log)

    def finish(self, server):
        try:
            code = server.wait(SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the server does not end: {self.said()}")
        assert code == 0, self.said()

    def said(self):
        return (self.folder / "server.log").read_text()[-3000:]

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
    found = Place(tmp_path_factory.mktemp("s"))
    try:
        yield found
    finally:
        found.close()
        left = with_word(found.folder, "")
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert not left, "processes were left behind"


def differences(said):
    return [float(number) for number in re.findall(r"\d(?:\.\d+)?e[+-]\d+", said)]


def records(folder):
    path = folder / "records.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(condition, what):
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.2)


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


def test_a_run_survives_kills_of_worker_node_superlink_and_server(place):
    out = place.folder / "killed"
    settings = place.settings(SETTINGS.format(rounds=9) + ONE, "killed.toml")
    server = place.server(settings, out)
    after = lambda count: wait_for(lambda: len(records(out)) >= count or server.poll() is not None,  # noqa: E731
                                   f"round {count}: {place.said()}")
    after(1)
    os.kill(with_word(place.folder / "a", "fedsaddle worker")[0], signal.SIGKILL)
    after(3)
    for pid in [place.nodes["b"].pid, *descendants(place.nodes["b"].pid)]:
        os.kill(pid, signal.SIGKILL)
    place.nodes["b"].wait()
    place.nodes["b"] = place.node(1, "b", place.folder / "policy.toml")
    after(5)
    for pid in with_word(out, "superlink") or with_word(out, "gate"):
        if pid != server.pid:
            os.kill(pid, signal.SIGKILL)
    after(6)
    assert server.poll() is None, place.said()
    server.kill()
    server.wait()
    before = len(records(out))
    server = place.server(settings, out)
    place.finish(server)
    rounds = records(out)
    assert [one["round"] for one in rounds] == list(range(1, 10)) and before >= 6
    assert rounds[before - 1]["total"]["answered"] <= rounds[-1]["total"]["answered"]
    asked = [client for one in rounds for ask in one["asks"] for client in ask["clients"]]
    assert {0, 1, 2} == set(asked[-6:]), "all nodes are back at the end"
    found = differences(done("replay", out))
    assert found and max(found) < 1e-5, "what was aggregated is what a simulation with the same replies aggregates"
