"""Residual nets (He, Zhang, Ren and Sun 2016): ResNet-18, and ResNet-20 for CIFAR."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from fedsaddle.contracts import setting
from fedsaddle.models.blocks import FORM, FORMS, GROUPS, NORM, NORMS, conv, he_weights, image, is_small, norm

WIDTH = "channels of the first stage, twice as many in each further one; fewer make a narrower and quicker net"

Norm = Callable[[int], nn.Module]


class Residual(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int, norms: Norm, padded: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(before, after, 3, stride), norms(after), nn.ReLU(),
                                  conv(after, after, 3), norms(after))
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.shortcut = Padded(stride, after - before) if padded else \
                nn.Sequential(conv(before, after, 1, stride), norms(after))

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.relu(self.body(inputs) + self.shortcut(inputs))


class Padded(nn.Module):
    """A shortcut without parameters: every second pixel, and channels of zeros (the paper's option A)."""

    def __init__(self, stride: int, more: int) -> None:
        super().__init__()
        self.stride, self.more = stride, more

    def forward(self, inputs: Tensor) -> Tensor:
        kept = inputs[:, :, :: self.stride, :: self.stride]
        return functional.pad(kept, (0, 0, 0, 0, self.more // 2, self.more - self.more // 2))


def net(
    stem: list[nn.Module], width: int, count: int, blocks: int, outputs: int, norms: Norm, padded: bool = False,
) -> nn.Module:
    """So many blocks in each of `count` stages; each stage but the first halves the image and doubles the channels."""
    layers, before = [*stem], width
    for stage in range(count):
        after = width << stage
        for block in range(blocks):
            layers.append(Residual(before, after, 2 if block == 0 and stage > 0 else 1, norms, padded))
            before = after
    return he_weights(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs)))


@dataclass(frozen=True)
class ResNet18:
    """Widths 64 to 512, two blocks each. 11,689,512 parameters for ImageNet, 11,173,962 for CIFAR-10."""

    width: int = setting(64, WIDTH, at_least=1)
    form: str = setting("auto", FORM, choices=FORMS)
    norm: str = setting("group", NORM, choices=NORMS)
    groups: int = setting(2, GROUPS, at_least=1)

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        channels, sides = image("resnet18", input_shape, 8)

        def norms(width: int) -> nn.Module:
            return norm(self.norm, width, self.groups)

        stem = [conv(channels, self.width, 3), norms(self.width), nn.ReLU()] if is_small(self.form, sides) else \
            [conv(channels, self.width, 7, 2), norms(self.width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        return net(stem, self.width, 4, 2, outputs, norms)


@dataclass(frozen=True)
class ResNet20:
    """Widths 16, 32, 64, three blocks each: 269,722 parameters for CIFAR-10 with padded shortcuts, as the paper has."""

    width: int = setting(16, WIDTH, at_least=1)
    shortcut: str = setting("padded", "where the width changes: padded, without parameters; or a 1x1 convolution "
                            "(272,474 parameters)", choices=("padded", "convolution"))
    norm: str = setting("group", NORM, choices=NORMS)
    groups: int = setting(2, GROUPS, at_least=1)

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        channels, _ = image("resnet20", input_shape, 8)

        def norms(width: int) -> nn.Module:
            return norm(self.norm, width, self.groups)

        stem = [conv(channels, self.width, 3), norms(self.width), nn.ReLU()]
        return net(stem, self.width, 3, 3, outputs, norms, self.shortcut == "padded")
