"""Across real processes on loopback, over TLS with node keys: the same weights as in simulation, whatever is killed."""

from __future__ import annotations

import os
import signal
import socket
import sys

import pytest

pytest.importorskip("flwr", reason="flwr, the extra `flower`, is not installed")

from real_sites import (
    ONE,
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
              pytest.mark.xdist_group("flower")]
NODES = ("a", "b", "c")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("s")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    keys = ("--keys", folder / "keys")
    with Place(folder, lambda name: ("--server", f"127.0.0.1:{port}", *keys),
               ("--host", "127.0.0.1", "--port", port, *keys)) as found:
        done("keys", folder / "keys", "--server", "localhost", *(w for name in NODES for w in ("--node", name)))
        found.nodes = {name: found.node(number, name) for number, name in enumerate(NODES)}
        yield found


def test_four_methods_give_the_weights_of_their_simulation(place):
    four_methods_give_the_weights_of_their_simulation(place)


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
    place.nodes["b"] = place.node(1, "b")
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
