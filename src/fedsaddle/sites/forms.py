"""The form of a tree in plain values: which fields there are, and which leaf is where. For messages on their way out.

A reader looks a NamedTuple up in our own modules and in those of the run's algorithm and problem, which it has imported
already, and refuses any other name: bytes can make it build tuples, never import or call anything else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from fedsaddle.maths.trees import named_leaves

LEAF = 0
OURS = "fedsaddle."


def form_of(tree: Any) -> Any:
    """A NamedTuple is [module, name, children], a tuple [children], a leaf 0."""
    if isinstance(tree, tuple):
        children = [form_of(child) for child in tree]
        return [type(tree).__module__, type(tree).__qualname__, children] if hasattr(tree, "_fields") else [children]
    return LEAF


def leaves_of(tree: Any) -> dict[str, Tensor]:
    return dict(named_leaves(tree))


def built(form: Any, leaves: dict[str, Tensor], modules: Iterable[str], prefix: str = "") -> Any:
    """The tree of this form with these leaves. ValueError where it names a type that is none of these modules'."""
    if form == LEAF:
        if prefix not in leaves:
            raise ValueError("a leaf is missing")
        return leaves[prefix]
    kind: Any = None
    if isinstance(form, list) and len(form) == 1 and isinstance(form[0], list):
        children = form[0]
    else:
        kind, children = _named(form, set(modules))
    names = kind._fields if kind else [str(i) for i in range(len(children))]
    if len(names) != len(children):
        raise ValueError("a field is missing")
    values = [built(child, leaves, modules, f"{prefix}.{name}" if prefix else name)
              for name, child in zip(names, children, strict=True)]
    return kind(*values) if kind else tuple(values)


def _named(form: Any, modules: set[str]) -> tuple[Any, list[Any]]:
    if not (isinstance(form, list) and len(form) == 3 and isinstance(form[0], str) and isinstance(form[1], str)
            and isinstance(form[2], list)):
        raise ValueError("it is no form")
    module, name, children = form
    if not (module.startswith(OURS) or module in modules) or not name.isidentifier():
        raise ValueError("it names a type of another module")
    kind = getattr(sys.modules.get(module), name, None)
    if not (isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")):
        raise ValueError("it names a type that there is not")
    return kind, children
