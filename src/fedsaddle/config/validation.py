"""Validation of one settings dataclass: types, bounds and choices as its fields declare them."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal

import pydantic

from fedsaddle.contracts import SettingError


def check(settings: Any, where: str) -> None:
    """The same validation for a dataclass that was made in Python."""
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        values = {f.name: getattr(settings, f.name) for f in declared(type(settings))}
        validated(type(settings), values, where)


def declared(form: type) -> list[dataclasses.Field[Any]]:
    """The fields that are settings; others are objects that code passes in."""
    return [f for f in dataclasses.fields(form) if "meaning" in f.metadata]


def validated(
    form: type, values: Mapping[str, Any], where: str,
    fixed: Mapping[str, Any] | None = None, defaults: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All settings of a dataclass, given values checked, defaults filled in, fixed ones left out."""
    fields = [f for f in declared(form) if f.name not in (fixed or {})]
    known_keys(values, [f.name for f in fields], where, "setting")
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    try:
        model = _model(form)(**{**(fixed or {}), **(defaults or {}), **given})
    except pydantic.ValidationError as error:
        texts = dict.fromkeys(_explained(e, form, where) for e in error.errors())  # a union complains once a member
        raise SettingError("\n".join(texts)) from None
    return {f.name: getattr(model, f.name) for f in fields}


@lru_cache(maxsize=256)
def _model(form: type) -> type[pydantic.BaseModel]:
    hints = typing.get_type_hints(form)
    fields: dict[str, Any] = {}
    for f in declared(form):
        bounds = {"gt": f.metadata["above"], "ge": f.metadata["at_least"], "le": f.metadata["at_most"]}
        bounds = {name: bound for name, bound in bounds.items() if bound is not None}
        hint = Literal[f.metadata["choices"]] if f.metadata["choices"] else hints[f.name]
        fields[f.name] = (hint, pydantic.Field(default=f.default, **bounds))
    return pydantic.create_model(form.__name__, __config__=pydantic.ConfigDict(strict=True), **fields)


def _explained(error: Any, form: type, where: str) -> str:
    key = str(error["loc"][0])
    field = next(f for f in declared(form) if f.name == key)
    m = field.metadata
    words = {"above": "above", "at_least": "at least", "at_most": "at most"}
    limits = [f"{word} {m[bound]}" for bound, word in words.items() if m[bound] is not None]
    kind = getattr(field.type, "__name__", str(field.type)).removesuffix(" | None")  # a class where not postponed
    allowed = " or ".join(repr(c) for c in m["choices"]) if m["choices"] else " and ".join([kind, *limits])
    close = nearest(error["input"], m["choices"] or ())
    return f"{where}.{key} = {error['input']!r}: must be {allowed} ({m['meaning']}){close}"


def known_keys(values: Mapping[str, Any], known: Iterable[str], where: str, word: str) -> None:
    for key, value in values.items():
        if key not in known:
            path = f"{where}.{key}" if where else key
            raise SettingError(f"{path} = {value!r}: no such {word}{nearest(key, known)}; known: {', '.join(known)}")


def nearest(word: Any, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(word), [str(k) for k in known], n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
