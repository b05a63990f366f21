"""Generators and discriminators by convolutions, for images of 28x28 and 64x64 in [-1, 1].

The module of both is `Adversaries`: the problem `gan` trains its two parts against each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn

from fedsaddle.contracts import SettingError, setting
from fedsaddle.models.blocks import GROUPS, NORM, NORMS, image, norm

NOISE = "numbers that the generator makes an image from"


class Adversaries(nn.Module):
    """`generator`: [rows, noise] -> images; `discriminator`: images -> [rows, outputs], logits."""

    def __init__(self, noise: int, generator: nn.Module, discriminator: nn.Module) -> None:
        super().__init__()
        self.noise, self.generator, self.discriminator = noise, generator, discriminator

    def forward(self, inputs: Tensor) -> Tensor:
        raise SettingError("model dcgan: is a generator and a discriminator, which the problem gan trains; choose "
                           "the problem gan, or another model")


@dataclass(frozen=True)
class DCGAN28:
    """The nets of the cdma experiments. Generator: 1024, 128x7x7, 64x14x14, then the image, tanh. Discriminator:
    conv 32 and conv 64 of 5x5, leaky ReLU, pools, 1024, 1. For one channel: 6,679,105 and 1,102,721 parameters."""

    noise: int = setting(100, NOISE, at_least=1)
    width: int = setting(32, "channels of the discriminator's first layer; all other layers grow and shrink with it. "
                         "Fewer than 32 are narrower nets of the same form, for slow machines", at_least=1)
    norm: str = setting("batch", f"of the generator; {NORM}", choices=NORMS)
    groups: int = setting(2, GROUPS, at_least=1)
    first_weights: str = setting("torch", "of linear and transposed layers: torch's own, or Xavier's uniform ones, as "
                                 "in the authors' code of cdma", choices=("torch", "xavier"))

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        channels = _exactly("dcgan28", input_shape, 28)
        one, two, four, wide = self.width, 2 * self.width, 4 * self.width, 32 * self.width
        generator = nn.Sequential(
            nn.Linear(self.noise, wide), nn.ReLU(), norm(self.norm, wide, self.groups, 0),
            nn.Linear(wide, four * 49), nn.ReLU(), norm(self.norm, four * 49, self.groups, 0),
            nn.Unflatten(1, (four, 7, 7)),
            nn.ConvTranspose2d(four, two, 4, 2, 1), nn.ReLU(), norm(self.norm, two, self.groups),
            nn.ConvTranspose2d(two, channels, 4, 2, 1), nn.Tanh(),
        )
        discriminator = nn.Sequential(
            nn.Conv2d(channels, one, 5), nn.LeakyReLU(0.01), nn.MaxPool2d(2),
            nn.Conv2d(one, two, 5), nn.LeakyReLU(0.01), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(two * 16, wide), nn.LeakyReLU(0.01), nn.Linear(wide, outputs),
        )
        nets = Adversaries(self.noise, generator, discriminator)
        if self.first_weights == "xavier":
            for layer in nets.modules():
                if isinstance(layer, nn.Linear | nn.ConvTranspose2d):
                    nn.init.xavier_uniform_(layer.weight)
        return nets


@dataclass(frozen=True)
class DCGAN64:
    """DCGAN (Radford, Metz and Chintala 2016), widths 64 to 512. For three channels: 3,576,704 parameters in the
    generator and 2,765,568 in the discriminator."""

    noise: int = setting(100, NOISE, at_least=1)
    norm: str = setting("batch", NORM, choices=NORMS)
    groups: int = setting(2, GROUPS, at_least=1)

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        channels = _exactly("dcgan64", input_shape, 64)
        widths = (64, 128, 256, 512)
        made: list[nn.Module] = [nn.Unflatten(1, (self.noise, 1, 1)),
                                 nn.ConvTranspose2d(self.noise, 512, 4, bias=False)]
        seen: list[nn.Module] = [nn.Conv2d(channels, 64, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
        for before, after in pairwise(reversed((channels, *widths))):
            made += [norm(self.norm, before, self.groups), nn.ReLU(),
                     nn.ConvTranspose2d(before, after, 4, 2, 1, bias=False)]
        for before, after in pairwise(widths):
            seen += [nn.Conv2d(before, after, 4, 2, 1, bias=False), norm(self.norm, after, self.groups),
                     nn.LeakyReLU(0.2)]
        seen += [nn.Conv2d(512, outputs, 4, bias=False), nn.Flatten()]
        nets = Adversaries(self.noise, nn.Sequential(*made, nn.Tanh()), nn.Sequential(*seen))
        for layer in nets.modules():  # the paper's first weights
            if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
                nn.init.normal_(layer.weight, 0.0, 0.02)
            elif isinstance(layer, nn.BatchNorm2d | nn.GroupNorm):
                nn.init.normal_(layer.weight, 1.0, 0.02)
        return nets


def _exactly(model: str, input_shape: tuple[int, ...], side: int) -> int:
    """The channels of images of this size."""
    channels, sides = image(model, input_shape, side)
    if sides != (side, side):
        raise SettingError(f"model {model}: images of {sides[0]}x{sides[1]}; it makes {side}x{side} ones: resize the "
                           f"images, or use dcgan{92 - side}")
    return channels
