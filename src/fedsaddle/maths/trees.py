"""States, messages and replies are trees: NamedTuples (and tuples) with tensors and numbers at their leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor


def rebuild(node: Any, children: list[Any]) -> Any:
    return type(node)(*children) if hasattr(node, "_fields") else tuple(children)


def map_leaves(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """A tree of the same form; `function` gets the leaves of all trees at one place. None stays None."""
    if tree is None:
        return None
    if isinstance(tree, tuple):
        return rebuild(tree, [map_leaves(function, *nodes) for nodes in zip(tree, *others, strict=True)])
    return function(tree, *others)


def leaves(tree: Any) -> list[Any]:
    if tree is None:
        return []
    return [leaf for child in tree for leaf in leaves(child)] if isinstance(tree, tuple) else [tree]


def with_leaves(tree: Any, values: Iterable[Any]) -> Any:
    """A tree of the same form with these leaves, in order: the inverse of `leaves`."""
    supply = iter(values)
    return map_leaves(lambda _: next(supply), tree)


def named_leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """('z.x', tensor), ('round', 3), ...: the address of every leaf."""
    if tree is None:
        return
    if isinstance(tree, tuple):
        names = getattr(tree, "_fields", None) or [str(i) for i in range(len(tree))]
        for name, child in zip(names, tree, strict=True):
            yield from named_leaves(child, f"{prefix}.{name}" if prefix else name)
    else:
        yield prefix, tree


def fill(tree: Any, values: dict[str, Any], prefix: str = "") -> Any:
    """The same form with the leaves of `values`: the inverse of named_leaves."""
    if tree is None:
        return None
    if isinstance(tree, tuple):
        names = getattr(tree, "_fields", None) or [str(i) for i in range(len(tree))]
        return rebuild(tree, [fill(child, values, f"{prefix}.{name}" if prefix else name)
                              for name, child in zip(names, tree, strict=True)])
    return values[prefix]


def lift(tree: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Tensors go to the device. Numbers become 0-dim tensors, floats of the run's precision, so that a schedule never
    sets a shape; they stay on the host, since sending one by itself would make the host wait for a device."""

    def one(leaf: Any) -> Tensor:
        if isinstance(leaf, Tensor):
            return leaf.to(device) if leaf.dim() or leaf.device.type != "cpu" else leaf
        return torch.tensor(leaf, dtype=None if isinstance(leaf, bool | int) else dtype)

    return map_leaves(one, tree)
