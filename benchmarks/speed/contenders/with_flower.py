"""Flower's simulation: its FedAvg strategy, two Ray actors with one thread each. FedAvg."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
# Actors import this folder's modules too.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent.resolve()), os.environ.get("PYTHONPATH", "")])
import nets
import work as shared
from flower_client import client_app
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor

ACTORS = 2


class Timed(FedAvg):
    """Flower's own strategy; the clock runs from the choice of the clients to the averaged model."""

    laps: shared.Laps

    def configure_train(self, *args: Any, **named: Any) -> Iterable[Message]:
        self.began = time.perf_counter()
        return super().configure_train(*args, **named)

    def aggregate_train(self, *args: Any, **named: Any) -> tuple[ArrayRecord | None, MetricRecord | None]:
        result = super().aggregate_train(*args, **named)
        self.laps.add(time.perf_counter() - self.began)
        return result


def main() -> None:
    text = sys.argv[1]
    work = shared.spec(text)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    laps = shared.Laps(work)
    final: dict[str, Tensor] = {}
    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = Timed(fraction_train=work.cohort / work.clients, fraction_evaluate=0.0,
                         min_train_nodes=work.cohort, min_available_nodes=work.clients)
        strategy.laps = laps
        laps.start()
        first = ArrayRecord(nets.started(nets.build(work), work).state_dict())
        final.update(strategy.start(grid, first, num_rounds=work.warmup + work.rounds).arrays.to_torch_state_dict())

    run_simulation(server_app, client_app(text), num_supernodes=work.clients, backend_config={
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": ACTORS, "include_dashboard": False, "log_to_driver": False},
    })
    net = nets.build(work)
    net.load_state_dict(final)
    inputs, targets, _ = nets.data(work)
    laps.report({name: version(name) for name in ("flwr", "ray", "torch")}, nets.loss_of(net, inputs, targets))


if __name__ == "__main__":
    main()
