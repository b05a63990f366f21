"""pfl-research: FederatedAveraging on its simulated backend, one process. FedAvg."""

from __future__ import annotations

import logging
import os
import time
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

os.environ["PFL_PYTORCH_DEVICE"] = "cpu"
import nets
import numpy as np
import torch
import work as shared
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional


class Classifier(nn.Module):
    """The net with the two functions that pfl asks of a module."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self.net(inputs), targets)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
        return {"loss": Weighted(float(self.loss(inputs, targets)) * len(inputs), len(inputs))}


class Timer(TrainingProcessCallback):
    """The clock, between the ends of two rounds."""

    def __init__(self, laps: shared.Laps) -> None:
        self.laps, self.last = laps, 0.0

    def on_train_begin(self, *, model: Any) -> Metrics:
        self.laps.start()
        self.last = time.perf_counter()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        now = time.perf_counter()
        enough = self.laps.add(now - self.last)
        self.last = time.perf_counter()
        return enough, Metrics()


def population(work: SimpleNamespace, inputs: Tensor, targets: Tensor) -> FederatedDataset:
    """Clients by number; a client's rows are shuffled whenever it is asked."""
    starts, dice = shared.starts(work), np.random.default_rng(work.seed)
    queue: list[int] = []
    need = work.steps * work.batch

    def next_client() -> int:
        if not queue:  # all distinct until everyone was asked
            queue.extend(dice.permutation(work.clients).tolist())
        return queue.pop()

    def dataset(client: int) -> Dataset:
        order = np.concatenate([dice.permutation(work.rows) for _ in range(-(-need // work.rows))])[:need]
        rows = torch.from_numpy(order + starts[client])
        return Dataset((inputs[rows], targets[rows]))

    return FederatedDataset(dataset, next_client)


def main() -> None:
    work = shared.spec()
    torch.set_num_threads(1)
    logging.disable(logging.INFO)
    inputs, targets, _ = nets.data(work)
    laps = shared.Laps(work)
    net = nets.started(nets.build(work), work)
    clients = population(work, inputs, targets)
    module = Classifier(net)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    rounds = work.warmup + work.rounds
    params = NNAlgorithmParams(central_num_iterations=rounds, evaluation_frequency=rounds + 1,
                               train_cohort_size=work.cohort, val_cohort_size=0)
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch)
    FederatedAveraging().run(params, SimulatedBackend(clients, clients, [WeightByUser()]), model, local,
                             callbacks=[Timer(laps)], send_metrics_to_platform=False)
    laps.report({"pfl": version("pfl"), "torch": torch.__version__}, nets.loss_of(net, inputs, targets))


if __name__ == "__main__":
    main()
