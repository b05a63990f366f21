"""Linear models and multilayer perceptrons on the flattened input."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod

from torch import nn

from fedsaddle.contracts import SettingError, setting


@dataclass(frozen=True)
class Linear:
    """One linear layer with a bias."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), outputs))


@dataclass(frozen=True)
class MLP:
    """Linear layers with ReLU between them."""

    hidden: tuple[int, ...] = setting((200, 200), "units of each hidden layer")

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        if any(size < 1 for size in self.hidden):
            raise SettingError(f"model.hidden: {self.hidden} has an empty layer; give each at least one unit")
        sizes = (prod(input_shape), *self.hidden)
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))
