"""Many rounds in one sitting across sites on Flower: what a phase costs beside the work, and whether anything grows.

    python benchmarks/sites/endurance.py [--rounds 100] [--nodes 4] [--width 960] [--phases 8] [--out FILE.json]

Starts `fedsaddle server` and nodes on loopback over TLS with node keys; the model has about a million parameters. Every
ten rounds memory, processes and open files of all of them are counted. Then, on the same machine, empty phases of
Flower used by hand with as many floats (phase.py), for the ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import phase

SETTINGS = """
[run]
rounds = {rounds}
evaluate_every = {rounds}
[data]
name = "digits"
clients = {nodes}
positive = 1
partition = "iid"
[problem]
name = "auc"
[model]
name = "mlp"
hidden = [{width}, {width}]
[algorithm]
name = "local-sgda"
steps = 1
eta = 0.01
"""
EVERY = 10


def fedsaddle(*words: Any, log: Path | None = None) -> subprocess.Popen[bytes]:
    out = log.open("ab") if log else subprocess.DEVNULL
    return subprocess.Popen([sys.executable, "-m", "fedsaddle", *map(str, words)], stdout=out, stderr=out,
                            env={**os.environ, "OMP_NUM_THREADS": "1"})


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found, waiting = [], [pid]
    while waiting:
        found.append(waiting.pop())
        for task in Path(f"/proc/{found[-1]}/task").glob("*/children"):
            try:
                waiting += [int(word) for word in task.read_text().split()]
            except OSError:
                continue
    return found


def counted(pids: list[int]) -> dict[str, int]:
    """Processes, megabytes and open files of these and what they started."""
    total = {"processes": 0, "megabytes": 0, "files": 0}
    for pid in (one for top in pids for one in family(top)):
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        except OSError:
            continue
        total["processes"] += 1
        total["megabytes"] += pages * os.sysconf("SC_PAGE_SIZE") >> 20
        total["files"] += files
    return total


def sitting(folder: Path, rounds: int, nodes: int, width: int) -> dict[str, Any]:
    settings, keys, names = folder / "run.toml", folder / "keys", [f"n{number}" for number in range(nodes)]
    settings.write_text(SETTINGS.format(rounds=rounds, nodes=nodes, width=width))
    fedsaddle("deal", settings, "--out", folder / "data").wait()
    fedsaddle("keys", keys, "--server", "localhost", *(word for name in names for word in ("--node", name))).wait()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = [fedsaddle("node", "--data", folder / "data" / f"site-{number}.npz", "--server", f"127.0.0.1:{port}",
                         "--name", name, "--keys", keys, "--state", folder / name, log=folder / f"{name}.log")
               for number, name in enumerate(names)]
    server = fedsaddle("server", settings, "--keys", keys, "--host", "127.0.0.1", "--port", port, "--out",
                       folder / "out", log=folder / "server.log")
    counts, records = [], folder / "out" / "records.jsonl"
    try:
        while server.poll() is None:
            time.sleep(0.5)
            done = len(records.read_text().splitlines()) if records.exists() else 0
            if done >= EVERY * (len(counts) + 1) and done < rounds:
                counts.append({"round": done, **counted([server.pid, *(one.pid for one in started)])})
                print(counts[-1], flush=True)
    finally:
        for process in (server, *started):
            process.terminate()
        for process in (server, *started):
            process.wait()
    if server.returncode:
        raise SystemExit(f"the server failed: {(folder / 'server.log').read_text()[-500:]}")
    asks = [ask for line in records.read_text().splitlines() for ask in json.loads(line)["asks"]]
    beside = [ask["virtual_seconds"] - ask["work_seconds"] for ask in asks]
    return {"rounds": len(asks), "floats": asks[0]["floats_up"] // nodes, "median": statistics.median(beside),
            "worst": max(beside), "work": statistics.median(ask["work_seconds"] for ask in asks), "counts": counts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, usual in (("rounds", 100), ("nodes", 4), ("width", 960), ("phases", 8)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fs") as folder:
        found = sitting(Path(folder), given.rounds, given.nodes, given.width)
    with tempfile.TemporaryDirectory(prefix="fs") as folder:
        hand = phase.measure(Path(folder), given.nodes, given.phases, found["floats"], 1)["by hand"]
    raw = statistics.median(max(ends) for ends in hand)
    found |= {"by hand": raw, "ratio": found["median"] / raw}
    print(f"{found['rounds']} phases of {found['floats']:,} floats to {given.nodes} nodes and back: "
          f"{found['median']:.2f} s beside the work (worst {found['worst']:.2f}), Flower by hand {raw:.2f} s, "
          f"ratio {found['ratio']:.2f}")
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
