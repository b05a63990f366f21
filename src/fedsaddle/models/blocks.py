"""What several nets are made of: normalisation without running statistics, convolutions, a check of image sizes."""

from __future__ import annotations

from torch import nn

from fedsaddle.contracts import SettingError

NORMS = ("group", "batch", "none")
NORM = "group: over groups of channels of one row; batch: over the rows of a batch, in evaluation too; none"
GROUPS = "groups of channels where norm is group"
FORMS = ("auto", "cifar", "imagenet")
FORM = "cifar: a 3x3 convolution first, for small images; imagenet: 7x7, stride 2 and a pool; auto: by the images' size"
LARGE = 64  # pixels a side from which on `auto` takes the imagenet form


def norm(kind: str, channels: int, groups: int, sides: int = 2) -> nn.Module:
    """The normalisation of so many channels, of rows with `sides` further dimensions: 2 for images, 0 for vectors."""
    if kind == "none":
        return nn.Identity()
    if kind == "batch":
        form = nn.BatchNorm2d if sides else nn.BatchNorm1d
        return form(channels, track_running_stats=False)
    if channels % groups:
        raise SettingError(f"model.groups = {groups}: does not divide the {channels} channels of a layer; choose a "
                           "divisor, or set model.norm to 'batch' or 'none'")
    return nn.GroupNorm(groups, channels)


def conv(before: int, after: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size at stride 1; without a bias, since a normalisation follows."""
    return nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)


def he_weights(net: nn.Module) -> nn.Module:
    """First weights of convolutions as residual nets have them (He et al. 2015), by the outputs of each."""
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return net


def is_small(form: str, sides: tuple[int, int]) -> bool:
    """Whether the form for small images is meant."""
    return form == "cifar" or (form == "auto" and min(sides) < LARGE)


def image(model: str, input_shape: tuple[int, ...], smallest: int) -> tuple[int, tuple[int, int]]:
    """Channels and sides of the images, or an error where they are none or too small."""
    if len(input_shape) != 3:
        raise SettingError(f"model {model}: inputs of shape {input_shape} are no images; give each row the shape "
                           "(channels, height, width), or use the model mlp")
    channels, height, width = input_shape
    if min(height, width) < smallest:
        raise SettingError(f"model {model}: images of {height}x{width} are too small; it needs at least "
                           f"{smallest}x{smallest}: enlarge the images, or use the model mlp")
    return channels, (height, width)
