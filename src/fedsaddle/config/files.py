"""Settings files and assignments from the command line, as plain tables."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fedsaddle.contracts import SettingError


def read(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"settings file {str(path)!r}: cannot be read ({error.strerror}); give the path of a TOML "
                           "file or the name of a recipe (`fedsaddle list recipes`)") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"settings file {str(path)!r}: is not valid TOML ({error}); mend it there") from error


def with_assignments(tables: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """A copy of the tables with `section.key=value` texts applied."""
    result: dict[str, Any] = _copied(tables)
    for text in assignments:
        path, equals, value = text.partition("=")
        keys = path.strip().split(".")
        if not equals or len(keys) < 2:
            raise SettingError(f"--set {text!r}: must be section.key=value, such as algorithm.eta=0.2")
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = value.strip()  # a plain word needs no quotes
        for place in _meant(keys, result, text):
            _assign(result, place, parsed, text)
    return result


def _meant(keys: list[str], tables: Mapping[str, Any], text: str) -> list[list[str]]:
    """The path, or those of all methods whose labels fit: `algorithms.CODASCA-*.eta`, `overrides.*.run.rounds`."""
    if keys[0] not in ("algorithms", "overrides") or not {*keys[1]} & {"*", "?"}:
        return [keys]
    labels = tables.get("algorithms", {})
    fitting = [[keys[0], label, *keys[2:]] for label in labels if fnmatchcase(label, keys[1])]
    if not fitting:
        raise SettingError(f"--set {text!r}: no method is called so; "
                           + (f"there are {', '.join(labels)}" if labels else "write algorithm, there is only one"))
    return fitting


def _assign(table: Any, keys: list[str], value: Any, text: str) -> None:
    path = ".".join(keys)
    for key in keys[:-1]:
        if isinstance(table, list):
            table = table[int(key)] if key.isdigit() and int(key) < len(table) else None
        else:
            table = _opened(table, key)
        if not isinstance(table, dict | list):
            raise SettingError(f"--set {text!r}: {path} cannot be set, there is no table {key!r} to hold it")
    if isinstance(table, list):
        raise SettingError(f"--set {text!r}: {path} is one of a list; give its number, such as respond.0.rate")
    table[keys[-1]] = value


def _opened(table: dict[str, Any], key: str) -> Any:
    if isinstance(table.get(key), str):  # `model = "mlp"` is short for a table with that name
        table[key] = {"name": table[key]}
    return table.setdefault(key, {})


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copied(each) for name, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


def merged(tables: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The tables with these changes. A table that has a name takes the place of another, one without adds to it."""
    result: dict[str, Any] = _copied(tables)
    for key, value in changes.items():
        before = result.get(key)
        if isinstance(value, Mapping) and isinstance(before, dict) and "name" not in value:
            result[key] = merged(before, value)
        else:
            result[key] = _copied(value) if isinstance(value, Mapping) else value
    return result
