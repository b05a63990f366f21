"""FedSaddle, through fedsaddle.train as a user calls it."""

from __future__ import annotations

import time
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
    last, chosen = time.perf_counter(), {}

    def watch(record: dict[str, Any]) -> None:
        nonlocal last
        nets.wait(work)
        now = time.perf_counter()
        # A round on a GPU has ended when the device has; on a CPU the package's own clock leaves the evaluation out.
        seconds = now - last if work.device == "cuda" and laps.warm else record["seconds"]
        chosen.update({name: record[name] for name in ("execution", "workers", "chunk") if name in record})
        if laps.add(seconds) and not work.exact:
            raise Enough
        last = time.perf_counter()

    loss = None
    try:
        result = fedsaddle.train(
            algorithm(work), fedsaddle.Agnostic(model(work)), clients, watch=watch,
            test=(inputs[: shared.HELD], targets[: shared.HELD]), rounds=work.warmup + work.rounds,
            batch_size=work.batch, evaluate_every=NEVER, device=work.device, **work.run)
        loss = result.measures["test"]["loss"]
    except Enough:
        pass
    laps.report({"fedsaddle": fedsaddle.__version__, "torch": torch.__version__}, loss, chosen=chosen,
                **nets.device_memory(work))


if __name__ == "__main__":
    main()
