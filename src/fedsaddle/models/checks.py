"""What a module must not have to be trained by clients that are averaged and run side by side."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from fedsaddle.contracts import SettingError


def check_module(net: nn.Module) -> None:
    """Refuse running statistics and random layers. Dropout called as a function in `forward` cannot be seen here."""
    for name, _ in net.named_buffers():
        owner, _, leaf = name.rpartition(".")
        if leaf.startswith("running_") or leaf == "num_batches_tracked":
            # Buffers are no part of x: they would be neither averaged nor sent, and vmap cannot update them.
            raise SettingError(f"net: {_where(owner, net.get_submodule(owner))} keeps running statistics (buffer "
                               f"{name}), which are not averaged over clients; use nn.GroupNorm, or set "
                               "track_running_stats=False to use each batch's own statistics")
    for name, layer in net.named_modules():
        if _dropped(layer) > 0:
            raise SettingError(f"net: {_where(name, layer)} drops units at random with p={_dropped(layer)}; a client "
                               "function must be deterministic, so set p=0 or leave the layer out")
        if isinstance(layer, nn.RReLU):
            raise SettingError(f"net: {_where(name, layer)} draws its slope at random; a client function must be "
                               "deterministic, so use nn.LeakyReLU")


def _dropped(layer: nn.Module) -> float:
    if isinstance(layer, _DropoutNd):
        return layer.p
    return float(layer.dropout) if isinstance(layer, nn.RNNBase | nn.MultiheadAttention) else 0.0


def _where(name: str, layer: nn.Module) -> str:
    return f"{name or 'the module itself'} ({type(layer).__name__})"
