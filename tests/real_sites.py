"""Real processes of `fedsaddle server` and `fedsaddle node` on this machine, for the tests of every engine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
    """Nodes that stay up, and servers as they are wanted. What an engine needs are words of their commands."""

    def __init__(self, folder, node_words, server_words):
        """node_words: of the node of a name."""
        self.folder, self.nodes, self.node_words, self.server_words = folder, {}, node_words, server_words
        self.settings(SETTINGS.format(rounds=1) + ONE, "first.toml")
        done("deal", folder / "first.toml", "--out", folder / "data")
        (folder / "policy.toml").write_text("raw_scores = true\n")

    def settings(self, text, name):
        path = self.folder / name
        path.write_text(text)
        return path

    def node(self, number, name, words=None, state=None):
        """words: instead of its own; state: its folder, of its name if not given."""
        log = (self.folder / f"{state or name}.log").open("a")
        return fedsaddle("node", "--data", self.folder / "data" / f"site-{number}.npz", "--name", name, "--state",
                         self.folder / (state or name), "--group", min(number, 1), "--policy",
                         self.folder / "policy.toml", *(words or self.node_words(name)), stdout=log, stderr=log)

    def server(self, settings, out):
        log = (self.folder / "server.log").open("a")
        return fedsaddle("server", settings, "--out", out, *self.server_words, stdout=log, stderr=log)

    def finish(self, server):
        try:
            code = server.wait(SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the server does not end: {self.said()}")
        assert code == 0, self.said()

    def said(self, name="server"):
        return (self.folder / f"{name}.log").read_text()[-3000:]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.nodes.values():
            process.terminate()
        for process in self.nodes.values():
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
        left = with_word(self.folder, "")
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


def four_methods_give_the_weights_of_their_simulation(place):
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
