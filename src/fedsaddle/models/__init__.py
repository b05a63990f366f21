"""Plain modules without running statistics. `MODELS`: the settings dataclass of each, by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fedsaddle.models.checks import check_module
from fedsaddle.models.cnn import CNN
from fedsaddle.models.dcgan import DCGAN28, DCGAN64, Adversaries
from fedsaddle.models.dense import MLP, Linear
from fedsaddle.models.densenet import DenseNet121
from fedsaddle.models.lenet import LeNet5
from fedsaddle.models.own import Own
from fedsaddle.models.recurrent import GRU
from fedsaddle.models.resnet import ResNet18, ResNet20

MODELS: dict[str, type[Any]] = {
    "linear": Linear, "mlp": MLP, "lenet5": LeNet5, "cnn": CNN, "resnet18": ResNet18, "resnet20": ResNet20,
    "densenet121": DenseNet121, "dcgan28": DCGAN28, "dcgan64": DCGAN64, "gru": GRU,
}

__all__ = [
    "CNN", "DCGAN28", "DCGAN64", "GRU", "MLP", "MODELS", "Adversaries", "DenseNet121", "LeNet5", "Linear", "Own",
    "ResNet18", "ResNet20", "build", "check_module", "model_of",
]


def model_of(form: Any, settings: dict[str, Any]) -> Any:
    """What `build` takes: the settings object of an entry of MODELS, or a user's own module with its arguments."""
    return form(**settings) if hasattr(form, "build") else Own(form, settings)


def build(model: Any, input_shape: tuple[int, ...], outputs: int, seed: int) -> nn.Module:
    """The module of a settings object with its usual first weights, drawn from `seed` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net: nn.Module = model.build(input_shape, outputs)
    return net
