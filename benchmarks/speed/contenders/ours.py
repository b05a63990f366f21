"""FedSaddle, through fedsaddle.train as a user calls it."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nets
import torch
import work as shared
from torch import nn

import fedsaddle
from fedsaddle.data.clients import Clients, Run
from fedsaddle.models import MLP, LeNet5, Linear, ResNet20, build

NEVER = 10**9
LONG = 10**5  # rounds


class Enough(Exception):
    """The seconds are used up."""


def model(work: SimpleNamespace) -> nn.Module:
    form = {"linear": Linear(), "mlp": MLP((work.hidden, work.hidden)), "lenet5": LeNet5(), "resnet20": ResNet20()}
    return nets.started(build(form[work.model], shared.SHAPES[work.model], shared.CLASSES, 0), work)


def algorithm(work: SimpleNamespace) -> Any:
    common = {"eta": work.lr, "steps": work.steps, "asked": work.cohort}
    more = {"drfa": {"gamma": shared.GAMMA}, "cdma-one": {"gamma": work.lr}}
    return fedsaddle.make(work.method, **common, **more.get(work.method, {}))


def main() -> None:
    work = shared.spec()
    torch.set_num_threads(1)
    inputs, targets, starts = nets.data(work)
    laps = shared.Laps(work)
    clients = Clients(inputs, targets, Run(starts, torch.full_like(starts, work.rows)))
    began, rounds, lap = time.perf_counter(), 0, 1

    def watch(record: dict[str, Any]) -> None:
        nonlocal began, rounds, lap
        rounds += 1
        if rounds < lap:
            return
        nets.wait(work)
        # On a CPU the package's own clock counts; on a GPU a lap has ended when the device has done it.
        seconds = (time.perf_counter() - began) / lap if work.device == "cuda" else record["seconds"]
        if laps.add(seconds) and not work.exact:
            raise Enough
        began, rounds, lap = time.perf_counter(), 0, laps.lap()

    loss, folder = None, Path(tempfile.mkdtemp()) / "run"
    try:
        result = fedsaddle.train(
            algorithm(work), fedsaddle.Agnostic(model(work)), clients, watch=watch, out=folder,
            test=(inputs[: shared.HELD], targets[: shared.HELD]), batch_size=work.batch, evaluate_every=NEVER,
            # A long run: what pays only then (compiling) is tried, and its steady state is what is measured.
            rounds=work.warmup + work.rounds if work.exact else LONG, checkpoint_every=NEVER,
            device=work.device, **work.run)
        loss = result.measures["test"]["loss"]
    except Enough:
        pass
    report = folder / "calibration.json"
    laps.report({"fedsaddle": fedsaddle.__version__, "torch": torch.__version__}, loss,
                chosen=json.loads(report.read_text()) if report.exists() else {}, **nets.device_memory(work))
    shutil.rmtree(folder.parent, ignore_errors=True)


if __name__ == "__main__":
    main()
