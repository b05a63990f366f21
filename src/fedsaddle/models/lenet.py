"""LeNet-5 as the cdma experiments use it: valid 5x5 convolutions, 2x2 max pools, ReLU."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fedsaddle.contracts import setting
from fedsaddle.models.blocks import image

SMALLEST = 16  # 16 -> 12 -> 6 -> 2 -> 1; a smaller image has nothing left after the second pool


@dataclass(frozen=True)
class LeNet5:
    """conv 6, pool, conv 16, pool, then 120, 84 and the outputs; 28x28 images arrive there as 256 numbers."""

    relu_outputs: bool = setting(False, "a ReLU after the outputs, too, as the authors' code of cdma has it")

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        channels, sides = image("lenet5", input_shape, SMALLEST)
        height, width = (((side - 4) // 2 - 4) // 2 for side in sides)
        return nn.Sequential(
            nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * height * width, 120), nn.ReLU(),
            nn.Linear(120, 84), nn.ReLU(),
            nn.Linear(84, outputs), *([nn.ReLU()] if self.relu_outputs else []),
        )
