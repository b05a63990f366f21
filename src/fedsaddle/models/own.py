"""A module of a user's own, named in a settings file as `package.module:Name`."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch import nn

from fedsaddle.contracts import SettingError
from fedsaddle.models.checks import check_module


@dataclass(frozen=True)
class Own:
    """A class or function that gives an nn.Module. `shape` (of an input) and `outputs` are passed where its signature
    has them and the settings do not."""

    form: Any
    settings: dict[str, Any]

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        known = inspect.signature(self.form).parameters
        more = {"shape": input_shape, "outputs": outputs}
        arguments = {**{name: value for name, value in more.items() if name in known}, **self.settings}
        name = getattr(self.form, "__qualname__", repr(self.form))
        missing = [p.name for p in known.values() if p.default is p.empty and p.name not in arguments
                   and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        if missing:
            raise SettingError(f"model.{missing[0]}: {name} needs it; set it under [model], or give it a default. "
                               "Parameters called shape and outputs are filled in")
        net = self.form(**arguments)
        if not isinstance(net, nn.Module):
            raise SettingError(f"model: {name} gives {type(net).__name__}; it must give a torch nn.Module")
        check_module(net)
        return net
