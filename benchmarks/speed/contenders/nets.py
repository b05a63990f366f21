"""The models in PyTorch, layer by layer what fedsaddle.models builds, for environments without FedSaddle."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional
from work import CLASSES, HELD, SHAPES, first_weights, starts, table


class Residual(nn.Module):
    """Two 3x3 convolutions beside a shortcut without parameters."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.stride, self.more = 1 if before == after else 2, after - before
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, self.stride, 1, bias=False), nn.GroupNorm(2, after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.GroupNorm(2, after))

    def forward(self, inputs: Tensor) -> Tensor:
        kept = inputs[:, :, :: self.stride, :: self.stride]
        half = self.more // 2
        return functional.relu(self.body(inputs) + functional.pad(kept, (0, 0, 0, 0, half, self.more - half)))


def build(work: SimpleNamespace) -> nn.Module:
    kind, width = work.model, work.hidden
    if kind == "linear":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, CLASSES))
    if kind == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                             nn.Linear(width, CLASSES))
    if kind == "lenet5":
        return nn.Sequential(
            nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, CLASSES))
    blocks = [Residual(before, after) for before, after in
              zip((16, 16, 16, 16, 32, 32, 32, 64, 64), (16, 16, 16, 32, 32, 32, 64, 64, 64), strict=True)]
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.GroupNorm(2, 16), nn.ReLU(), *blocks,
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))


@torch.no_grad()
def started(net: nn.Module, work: SimpleNamespace) -> nn.Module:
    """The net with the first weights that all contenders have, on the device."""
    for parameter, value in zip(net.parameters(), first_weights(work), strict=True):
        parameter.copy_(torch.from_numpy(value))
    return net.to(work.device)


def data(work: SimpleNamespace) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets and the first row of every client, on the device."""
    inputs, targets = (torch.from_numpy(part).to(work.device) for part in table(work))
    return inputs, targets, torch.from_numpy(starts(work)).to(work.device)


@torch.no_grad()
def loss_of(net: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    return float(functional.cross_entropy(net(inputs[:HELD]), targets[:HELD]))


def wait(work: SimpleNamespace) -> None:
    if work.device == "cuda":
        torch.cuda.synchronize()


def device_memory(work: SimpleNamespace) -> dict[str, float]:
    """The most that tensors have taken on the device, the table apart."""
    if work.device != "cuda":
        return {}
    inputs = 4 * work.table
    for side in SHAPES[work.model]:
        inputs *= side
    return {"device_beyond_mb": (torch.cuda.max_memory_allocated() - inputs) / 2**20}
