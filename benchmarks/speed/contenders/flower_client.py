"""What a Ray actor of Flower's simulation does. A module of its own: actors import it by name."""

from __future__ import annotations

import os
from functools import cache
from types import SimpleNamespace

import nets
import numpy as np
import torch
import work as shared
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn import functional


@cache
def prepared(text: str) -> tuple[SimpleNamespace, nn.Module, Tensor, Tensor, np.ndarray, np.random.Generator]:
    """What an actor makes once and keeps: the rows and a net."""
    torch.set_num_threads(1)
    work = shared.spec(text)
    inputs, targets, _ = nets.data(work)
    return work, nets.build(work), inputs, targets, shared.starts(work), np.random.default_rng(os.getpid())


def client_app(text: str) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        work, net, inputs, targets, starts, dice = prepared(text)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(net.parameters(), lr=work.lr)
        need = work.steps * work.batch
        order = np.concatenate([dice.permutation(work.rows) for _ in range(-(-need // work.rows))])[:need]
        rows = torch.from_numpy(order + starts[int(context.node_config["partition-id"])])
        for x, y in zip(inputs[rows].split(work.batch), targets[rows].split(work.batch), strict=True):
            optimiser.zero_grad()
            functional.cross_entropy(net(x), y).backward()
            optimiser.step()
        reply = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": work.rows})}
        return Message(content=RecordDict(reply), reply_to=message)

    return app
