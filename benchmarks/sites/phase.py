"""How long an empty phase takes through FlowerWire, and through Flower used by hand, on the same SuperLink and nodes.

    python benchmarks/sites/phase.py [--nodes 4] [--phases 8] [--floats 1000000] [--out phase.json]

A phase sends the floats to all the nodes, which send them back; the work is nothing. Flower by hand is a ServerApp and
a ClientApp as its documentation writes them (an ArrayRecord), with the same short polling. Both take turns, block by
block: a noisy machine is then noisy for both. Both start a process for every message, as Flower does; the third row,
measured after them, is the wire with the resident courier, which `SuperNode` starts unless it is told otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path

from fedsaddle.sites import frames, keys
from fedsaddle.sites.flower.app import write_app
from fedsaddle.sites.flower.processes import Certificates, SuperLink, SuperNode, register_node, submit
from fedsaddle.sites.flower.wire import FlowerWire
from fedsaddle.sites.wire import Parcel

BY_HAND = '''
import json, time
from pathlib import Path
import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.query()
def echo(message, context):
    return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

@server.main()
def main(grid, context):
    phases, floats, out, turn = json.loads(Path(context.run_config["socket"]).read_text())
    for phase in range(phases):
        values = np.random.default_rng(phase).random(floats, dtype=np.float32)
        start = time.monotonic()
        record = RecordDict({"arrays": ArrayRecord([values])})
        wait = set(grid.push_messages([Message(record, dst_node_id=node, message_type="query", ttl=600.0)
                                       for node in grid.get_node_ids()]))
        ends = []
        while wait:
            for reply in grid.pull_messages(wait):
                assert (reply.content["arrays"].to_numpy_ndarrays()[0] == values).all()
                wait.discard(reply.metadata.reply_to_message_id)
                ends.append(time.monotonic() - start)
            time.sleep(0.1)
        with open(out, "a") as file:
            file.write(json.dumps(ends) + "\\n")
    Path(turn).touch()
'''


class Echo:
    """A worker that does nothing."""

    def __init__(self, path: Path) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(path))
        self.listener.listen(4)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            with connection:
                frames.send_frame(connection, frames.receive_frame(connection, 1 << 34))


def by_hand(link: SuperLink, folder: Path, block: int, phases: int, floats: int) -> list[list[float]]:
    app = write_app(folder / "by-hand")
    settings = app / "pyproject.toml"
    text = settings.read_text()
    for courier in ("courier_server:server", "courier_site:client"):
        text = text.replace(f"fedsaddle.sites.flower.{courier}", f"byhand:{courier.partition(':')[2]}")
    settings.write_text(text)
    (app / "byhand.py").write_text(BY_HAND)
    out, turn, ask = (folder / f"{name}-{block}" for name in ("times", "turn", "ask"))
    ask.write_text(json.dumps([phases, floats, str(out), str(turn)]))
    submit(link.connection, app, ask)
    until = time.monotonic() + 60 + 60 * phases
    while not turn.exists():
        assert time.monotonic() < until, "Flower by hand does not end"
        time.sleep(0.2)
    return [json.loads(line) for line in out.read_text().splitlines()]


def through_wire(wire: FlowerWire, nodes: list[str], phases: int, floats: int) -> list[list[float]]:
    times = []
    for phase in range(phases):
        content = os.urandom(4 * floats)
        start = time.monotonic()
        wire.send([Parcel(node, f"{start}-{phase}-{node}", content, 600.0) for node in nodes])
        ends: list[float] = []
        while len(ends) < len(nodes):
            for delivery in wire.receive(60.0):
                assert delivery.content == content, delivery.error
                ends.append(time.monotonic() - start)
        times.append(ends)
    return times


def measure(folder: Path, count: int, phases: int, floats: int, blocks: int) -> dict[str, list[list[float]]]:
    keys.make_authority(folder, 2)
    keys.server_certificate(folder, ["127.0.0.1"], 2)
    link = SuperLink(folder / "link", certificates=Certificates(folder / "ca.crt", folder / "server.pem",
                                                                folder / "server.key"))
    nodes: list[SuperNode] = []
    wire = FlowerWire(folder / "wire")
    times: dict[str, list[list[float]]] = {"by hand": [], "wire": [], "resident": []}

    def start(number: int, resident: bool) -> SuperNode:
        return SuperNode(folder / f"node-{number}", link.address,
                         {"worker": str(folder / f"{number}.sock"), "limit": 1 << 34}, root=folder / "ca.crt",
                         private_key=folder / "nodes" / f"n{number}" / "key", resident=resident)

    try:
        for number in range(count):
            register_node(link.connection, keys.node_key(folder, f"n{number}").with_suffix(".pub"))
            Echo(folder / f"{number}.sock")
            nodes.append(start(number, resident=False))
        submit(link.connection, write_app(folder), wire.path)
        wire.wait(60.0)
        names = [node.node for node in nodes]
        through_wire(wire, names, 1, floats)  # what the first message costs more is nobody's here
        for block in range(blocks):
            times["by hand"] += by_hand(link, folder, block, phases, floats)
            times["wire"] += through_wire(wire, names, phases, floats)
        for number, node in enumerate(nodes):
            node.stop()
            nodes[number] = start(number, resident=True)
        through_wire(wire, names, 1, floats)
        times["resident"] = through_wire(wire, names, phases * blocks, floats)
    finally:
        wire.close()
        for node in nodes:
            node.stop()
        link.stop()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--phases", type=int, default=4, help="of a block")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--floats", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="phase") as folder:
        times = measure(Path(folder), given.nodes, given.phases, given.floats, given.blocks)
    rows = {name: {"phases": len(ends),
                   "first half median": statistics.median(one[(given.nodes - 1) // 2] for one in ends),
                   "all median": statistics.median(one[-1] for one in ends),
                   "all mean": statistics.fmean(one[-1] for one in ends), "all worst": max(one[-1] for one in ends)}
            for name, ends in times.items()}
    print(f"{given.nodes} nodes, {4 * given.floats:,} bytes each way, TLS, seconds")
    print(f"{'':10}" + "".join(f"{column:>20}" for column in rows["wire"]))
    for name, row in rows.items():
        print(f"{name:10}" + "".join(f"{value:20.2f}" for value in row.values()))
    for name in ("wire", "resident"):
        print(f"{name} / by hand: " + ", ".join(f"{column} {rows[name][column] / rows['by hand'][column]:.2f}"
                                                for column in rows[name] if column != "phases"))
    if given.out:
        measured = {"nodes": given.nodes, "bytes": 4 * given.floats, "rows": rows}
        given.out.write_text(json.dumps(measured, indent=2) + "\n")


if __name__ == "__main__":
    main()
