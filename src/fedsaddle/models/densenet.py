"""DenseNet-121 (Huang, Liu, van der Maaten and Weinberger 2017)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsaddle.contracts import setting
from fedsaddle.models.blocks import FORM, FORMS, GROUPS, NORM, NORMS, conv, he_weights, image, is_small, norm

GROWTH, BOTTLENECK, LAYERS = 32, 128, (6, 12, 24, 16)


class Dense(nn.Module):
    """A bottleneck whose new channels are put beside its inputs."""

    def __init__(self, before: int, norms: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(norms(before), nn.ReLU(), conv(before, BOTTLENECK, 1),
                                  norms(BOTTLENECK), nn.ReLU(), conv(BOTTLENECK, GROWTH, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([inputs, self.body(inputs)], 1)


@dataclass(frozen=True)
class DenseNet121:
    """Growth 32, blocks of 6, 12, 24 and 16 layers. 7,978,856 parameters for ImageNet, 6,956,298 for CIFAR-10."""

    form: str = setting("auto", FORM, choices=FORMS)
    norm: str = setting("group", NORM, choices=NORMS)
    groups: int = setting(2, GROUPS, at_least=1)

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        channels, sides = image("densenet121", input_shape, 8)
        small = is_small(self.form, sides)
        if not small:
            image("densenet121", input_shape, 29)  # of which one pixel is left in the last block, as of 8 otherwise

        def norms(width: int) -> nn.Module:
            return norm(self.norm, width, self.groups)

        width = 2 * GROWTH
        layers: list[nn.Module] = [conv(channels, width, 3)] if small else \
            [conv(channels, width, 7, 2), norms(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        for block, count in enumerate(LAYERS):
            if block:  # a transition halves the channels and the image
                layers += [norms(width), nn.ReLU(), conv(width, width // 2, 1), nn.AvgPool2d(2)]
                width //= 2
            for _ in range(count):
                layers.append(Dense(width, norms))
                width += GROWTH
        return he_weights(nn.Sequential(*layers, norms(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                                        nn.Linear(width, outputs)))
