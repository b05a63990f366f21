"""What changes when a method is written as some published code has it, and not as its paper does.

    .venv/bin/python benchmarks/findings.py [--out docs/results/findings.json]

Each variant is an algorithm of one's own, a few lines over the package's; both run on the same clients with the same
draws, three seeds. Prints Markdown, which stands in docs/results/findings.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import fedsaddle
from fedsaddle import recipes
from fedsaddle.algorithms.codasca import CODASCA, Change, Client, Go
from fedsaddle.algorithms.drfa import DRFA
from fedsaddle.algorithms.drfa import Go as DRFAGo
from fedsaddle.algorithms.local_sgda_plus import LocalSGDAPlus
from fedsaddle.assemble import deal
from fedsaddle.config import read, settle
from fedsaddle.contracts import Data, Oracle, Point
from fedsaddle.data.synthetic import quadratic_clients
from fedsaddle.models import Linear, build
from fedsaddle.problems.quadratic import coefficients

SEEDS = (0, 1, 2)
CLIENTS, DIMENSION = 20, 5


@dataclass(frozen=True)
class OverwrittenSnapshot(LocalSGDAPlus):
    """Local SGDA+ whose frozen x is renewed after every local step."""

    def local_steps(self, oracle: Oracle, go: Any, client: Any, data: Data) -> Any:
        z = go.z
        for batch in data.minibatches:
            d = Point(oracle.gradient(z, batch).x, oracle.gradient(z, batch).y)
            z = oracle.project(z.step(d, self.eta, self.gamma))
        return z, client


@dataclass(frozen=True)
class PrimalControlOnly(CODASCA):
    """CODASCA whose control of the dual variable is computed and not applied."""

    def local_steps(self, oracle: Oracle, go: Go, client: Client, data: Data) -> tuple[Change, Client]:
        z, total = go.z, 0 * go.z
        for batch in data.minibatches:
            g = oracle.gradient(z, batch)
            z = oracle.project(z.step(Point(g.x - client.c.x + go.c.x, g.y), go.eta, go.eta))
            total = total + g
        new = total / len(data.minibatches)
        return Change(z - go.z, new - client.c), Client(new, client.tag)


@dataclass(frozen=True)
class LastIterate(DRFA):
    """DRFA whose losses are taken at the end of the round and not at a random step of it."""

    def local_steps(self, oracle: Oracle, go: DRFAGo, client: Any, data: Data) -> Any:
        local, client = super().local_steps(oracle, go, client, data)
        return local._replace(snapshot=local.z), client


def saddle(algorithm: Any, seed: int, rounds: int, rows: int = 1) -> tuple[float, torch.Tensor]:
    """Distance to the solution of a quadratic after so many rounds, and the point; everyone answers."""
    clients = quadratic_clients(CLIENTS, rows, DIMENSION, DIMENSION, 2.0, 0.0, 1.0, seed)
    problem = fedsaddle.Quadratic(DIMENSION, DIMENSION,
                                  mean=coefficients(clients, torch.ones(CLIENTS), DIMENSION, DIMENSION))
    result = fedsaddle.train(algorithm, problem, clients, rounds=rounds, seed=seed, batch_size=1, dtype="float64",
                             evaluate_every=rounds, execution="eager", workers=1)
    return result.measures["train"]["distance"], torch.cat(tuple(result.point))


def worst(algorithm: Any, seed: int, rounds: int) -> float:
    """Worst accuracy over ten clients of one digit each, mean of the last ten rounds."""
    settings = settle(read(recipes.path("drfa/fashion")), ["data.name=digits", "data.clients=10"])  # type: ignore[arg-type]
    dealt = deal(settings)
    net = build(Linear(), tuple(dealt.clients.inputs.shape[1:]), dealt.classes, seed)
    result = fedsaddle.train(algorithm, fedsaddle.Agnostic(net), dealt.clients, rounds=rounds, seed=seed, batch_size=20,
                             evaluate_every=1, per_client=True, execution="eager", workers=1)
    return statistics.fmean(r["measures"]["clients"]["accuracy_worst"] for r in result.records[-10:])


def row(label: str, value: Callable[[int], float]) -> dict[str, Any]:
    values = [value(seed) for seed in SEEDS]
    return {"label": label, "values": values, "mean": statistics.fmean(values), "deviation": statistics.stdev(values)}


def findings() -> dict[str, list[dict[str, Any]]]:
    local: dict[str, Any] = {"eta": 0.05, "gamma": 0.05, "steps": 10}
    nc = fedsaddle.make("cdma-nc", rho=0.0, **local)
    stages: dict[str, Any] = {"eta": 0.05, "steps": 10}
    robust: dict[str, Any] = {"eta": 0.1, "gamma": 0.008, "steps": 10, "asked": 10, "everyone": True}
    return {
        "Local SGDA+, distance to the saddle after 200 rounds": [
            row("as its paper: x frozen for a round", lambda s: saddle(LocalSGDAPlus(**local), s, 200)[0]),
            row("frozen x overwritten in every step", lambda s: saddle(OverwrittenSnapshot(**local), s, 200)[0]),
            row("CDMA-NC", lambda s: saddle(nc, s, 200)[0]),
            row("largest difference of the overwritten one from CDMA-NC", lambda s: float(
                (saddle(OverwrittenSnapshot(**local), s, 200)[1] - saddle(nc, s, 200)[1]).abs().max())),
        ],
        "CODASCA, distance to the saddle after 400 rounds": [
            row("as its paper: controls in x and y", lambda s: saddle(CODASCA(**stages), s, 400)[0]),
            row("control of y computed, not applied", lambda s: saddle(PrimalControlOnly(**stages), s, 400)[0]),
            row("no controls at all: CODA+", lambda s: saddle(fedsaddle.make("coda+", **stages), s, 400)[0]),
        ],
        "DRFA on digits, worst accuracy after 300 rounds": [
            row("as its paper: losses at a random step", lambda s: worst(DRFA(**robust), s, 300)),
            row("losses at the last step", lambda s: worst(LastIterate(**robust), s, 300)),
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = findings()
    for title, rows in found.items():
        print(f"\n| {title} | mean | deviation |\n|---|---|---|")
        for one in rows:
            print(f"| {one['label']} | {one['mean']:.4g} | {one['deviation']:.2g} |")
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
