"""The convolutional net of TensorFlow's image tutorial, which the cdma experiments train on CIFAR-10."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fedsaddle.models.blocks import image

SMALLEST = 18  # 18 -> 16 -> 8 -> 6 -> 3 -> 1


@dataclass(frozen=True)
class CNN:
    """conv 32, pool, conv 64, pool, conv 64 of 3x3 without padding, then 64 and the outputs; ReLU between."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        channels, sides = image("cnn", input_shape, SMALLEST)
        height, width = (((side - 2) // 2 - 2) // 2 - 2 for side in sides)
        return nn.Sequential(
            nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3), nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * height * width, 64), nn.ReLU(),
            nn.Linear(64, outputs),
        )
