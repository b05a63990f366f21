"""A generator against a discriminator (Goodfellow et al. 2014), as the cdma experiments train it.

f_i(x, y) = mean over client i's rows of log D(row) + log(1 - D(G(noise))), D the sigmoid of the discriminator's output,
noise uniform on [-1, 1]. This is the minimax (saturating) form of the papers; their published code lets the generator
descend -log D(G(noise)) instead, here `generator_loss = "non-saturating"`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vjp
from torch.nn import functional

from fedsaddle.contracts import Batch, Materials, Point, Rows, SettingError, setting
from fedsaddle.maths import flat
from fedsaddle.metrics.primal import Pooled, fixed_noise
from fedsaddle.metrics.sliced import sliced_wasserstein
from fedsaddle.models.checks import check_module

SEEN = 2048  # rows, evenly spaced, that are evaluated; samples made at once


@dataclass(frozen=True)
class GAN:
    """x: the generator's parameters, y: the discriminator's. `noise`: numbers that a sample is made from."""

    generator: nn.Module  # [rows, noise] -> samples
    discriminator: nn.Module  # samples -> one output a row, the logit of being real
    noise: int = 100
    generator_loss: str = setting(
        "saturating", "what x descends: log(1 - D(G)), which y ascends, or non-saturating: -log D(G)",
        choices=("saturating", "non-saturating"),
    )
    headline = "sliced_wasserstein"

    @staticmethod
    def pose(settings: dict[str, Any], materials: Materials) -> GAN:
        nets = materials.net(1)
        if not all(hasattr(nets, name) for name in ("generator", "discriminator", "noise")):
            raise SettingError("model: the problem gan needs a generator and a discriminator; choose the model dcgan28 "
                               "or dcgan64, or one of your own with the attributes generator, discriminator and noise")
        return GAN(nets.generator, nets.discriminator, nets.noise, **settings)

    def __post_init__(self) -> None:
        for net in (self.generator, self.discriminator):
            check_module(net)

    def first(self) -> Point:
        return Point(flat.flatten(self.generator), flat.flatten(self.discriminator))

    def loss(self, x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        real, fake = self._logits(y, batch.inputs), self._logits(y, self._made(x, batch))
        return (batch.weight * (functional.logsigmoid(real) + functional.logsigmoid(-fake))).sum()

    def gradient(self, x: Tensor, y: Tensor, batch: Batch) -> Point:
        """Of f in both variables; in x of the generator's own loss where that is not f."""
        if self.generator_loss == "saturating":
            return Point(*grad(self.loss, argnums=(0, 1))(x, y, batch))
        made, back_to_x = _with_way_back(lambda x: self._made(x, batch), x)
        fake, back = _with_way_back(self._logits, y, made)  # both losses see the same samples
        real, back_from_real = _with_way_back(lambda y: self._logits(y, batch.inputs), y)
        by_y = back_from_real(batch.weight * torch.sigmoid(-real))[0] + back(-batch.weight * torch.sigmoid(fake))[0]
        by_samples = back(-batch.weight * torch.sigmoid(-fake))[1]  # of -log D(G(noise))
        return Point(back_to_x(by_samples)[0], by_y)

    def _made(self, x: Tensor, batch: Batch) -> Tensor:
        made = self._generated(x, batch.noise)
        if made.shape != batch.inputs.shape:
            raise SettingError(f"problem.generator: makes rows of shape {tuple(made.shape[1:])}, the data's have "
                               f"{tuple(batch.inputs.shape[1:])}; choose a generator for this shape")
        return made

    def _generated(self, x: Tensor, uniform: Any) -> Tensor:
        made: Tensor = flat.call(self.generator, x, 2 * uniform - 1)
        return made

    def _logits(self, y: Tensor, inputs: Tensor) -> Tensor:
        output = flat.call(self.discriminator, y, inputs)
        if tuple(output.shape) not in ((len(inputs),), (len(inputs), 1)):
            raise SettingError(f"problem.discriminator: gives {tuple(output.shape)} for {len(inputs)} rows; give it "
                               "one output, the logit of being real")
        logits: Tensor = output.reshape(len(inputs))
        return logits

    @torch.no_grad()
    def by_row(self, z: Point, rows: Rows) -> dict[str, Tensor]:
        """f of every row and its own sample."""
        uniform = fixed_noise(len(rows.inputs), self.noise, z.x.dtype, z.x.device)
        real, fake = self._logits(z.y, rows.inputs), self._logits(z.y, self._generated(z.x, uniform))
        return {"loss": functional.logsigmoid(real) + functional.logsigmoid(-fake)}

    @torch.no_grad()
    def samples(self, z: Point, count: int, seed: int = 0) -> Tensor:
        """So many samples of the generator, the same for the same seed."""
        uniform = fixed_noise(count, self.noise, z.x.dtype, z.x.device, seed=seed)
        return torch.cat([self._generated(z.x, part) for part in torch.split(uniform, SEEN)])

    @torch.no_grad()
    def measure(self, z: Point, rows: Rows) -> dict[str, float]:
        """On evenly spaced rows: f, both losses, how real D finds rows and samples, how far samples lie from rows."""
        count = min(SEEN, len(rows.inputs))
        spaced = (torch.arange(count) * (len(rows.inputs) / count)).long().to(rows.inputs.device)
        rows = Rows(rows.inputs[spaced], rows.targets[spaced])
        totals = torch.zeros(5, dtype=torch.float64, device=rows.inputs.device)
        for share, batch in Pooled(self, rows, z.x.dtype).batches():
            real, fake = self._logits(z.y, batch.inputs).double(), self._logits(z.y, self._made(z.x, batch)).double()
            parts = (functional.logsigmoid(real), functional.logsigmoid(-fake), functional.logsigmoid(fake),
                     torch.sigmoid(real), torch.sigmoid(fake))
            totals += share * torch.stack([part.mean() for part in parts])
        real, fake, fooled, seen_real, seen_fake = totals.tolist()  # one transfer
        objective = real + fake
        return {
            "objective": objective, "discriminator_loss": -objective,
            "generator_loss": fake if self.generator_loss == "saturating" else -fooled,
            "real": seen_real, "fake": seen_fake,
            "sliced_wasserstein": sliced_wasserstein(rows.inputs, self.samples(z, count)),
        }

    def alarms(self, measures: dict[str, float]) -> list[str]:
        if not isfinite(measures["objective"]):
            return ["the losses are no longer finite: the run has diverged; lower the step sizes"]
        if measures["real"] > 0.999 and measures["fake"] < 0.001:
            return ["the discriminator tells samples from rows without fail, where a saturating generator loss has no "
                    "gradient left; lower gamma, or set problem.generator_loss to 'non-saturating'"]
        return []

    def named(self, z: Point) -> dict[str, Tensor]:
        parts = (("generator", self.generator, z.x), ("discriminator", self.discriminator, z.y))
        return {f"{part}.{name}": values.clone() for part, net, flat_ in parts
                for name, values in flat.named(net, flat_).items()}


def _with_way_back(function: Callable[..., Tensor], *at: Tensor) -> tuple[Tensor, Callable[[Tensor], Sequence[Tensor]]]:
    """The value, and how gradients by it become gradients by the arguments."""
    value, back = vjp(function, *at)  # type: ignore[misc]
    return value, back
