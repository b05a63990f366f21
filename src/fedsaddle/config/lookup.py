"""What a name in a settings file stands for: an entry of a registry, or `package.module:Name` for one of your own.

The one place where names become classes, for every registry: problems, models, algorithms, data, participation.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedsaddle.config.validation import declared, known_keys, nearest, validated
from fedsaddle.contracts import SettingError


def lookup(registry: Mapping[str, Any], name: str, where: str) -> Any:
    """The class, or the registry's entry about it."""
    if name in registry:
        return registry[name]
    if ":" in name:
        return _imported(name, where)
    raise SettingError(f"{where}.name = {name!r}: is not known{nearest(name, registry)}; choose one of "
                       f"{', '.join(registry)}, or give your own as package.module:Name")


def own_settings(form: Any, table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Settings for a class or function of a user's own: declared ones are checked, others only known by name."""
    parameters = inspect.signature(form).parameters
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        known_keys(table, parameters, where, "setting")
    checked = {f.name for f in declared(form)} if inspect.isclass(form) and dataclasses.is_dataclass(form) else set()
    rest = {name: value for name, value in table.items() if name not in checked}
    return {**rest, **(validated(form, {k: v for k, v in table.items() if k in checked}, where) if checked else {})}


def _imported(name: str, where: str) -> Any:
    path, _, attribute = name.partition(":")
    try:
        with _working_folder():
            found = getattr(importlib.import_module(path), attribute, None)
    except ImportError as error:
        raise SettingError(f"{where}.name = {name!r}: {path} cannot be imported ({error}); install it, or start in the "
                           "folder that holds it") from error
    if not callable(found):
        raise SettingError(f"{where}.name = {name!r}: {path} has no class or function {attribute!r}; "
                           "write package.module:Name")
    return found


@contextmanager
def _working_folder() -> Iterator[None]:
    """A module beside the settings is found by the installed command too; last, so that it hides no package."""
    folder = str(Path.cwd())
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
