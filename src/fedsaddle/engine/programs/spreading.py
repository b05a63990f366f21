"""Elementwise operations on a concatenation, done on its parts.

A flat gradient is the concatenation of the gradients of a net's layers, and a step is elementwise on it. A compiler
turns that into one loop that asks at every element which part it is in; on the parts there are plain loops, and what
computes a part can be joined with them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fedsaddle.engine.programs.tracing import value_of

aten = torch.ops.aten
JOINED = 8  # so many parts, or fewer, inductor's code for GPUs computes in one loop, all of them for every element
ELEMENTWISE = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.mul.Scalar, aten.div.Scalar,
               aten.neg.default)
Parts = list[tuple[fx.Node, int, int]]  # a part, and from where to where it reaches


def spread(module: fx.GraphModule) -> None:
    """Move concatenations of flat vectors behind the elementwise operations that follow them."""
    graph = module.graph
    parts: dict[fx.Node, Parts] = {}
    for node in list(graph.nodes):
        if _joins_flat_vectors(node):
            parts[node] = _of_cat(node)
        elif node.target in ELEMENTWISE and any(one in parts for one in node.args if isinstance(one, fx.Node)):
            _apply(graph, node, parts)
    graph.eliminate_dead_code()
    module.recompile()


def fill_up_concatenations(module: fx.GraphModule) -> None:
    """Add empty parts to short concatenations, so that a compiler for GPUs writes each part for itself."""
    graph = module.graph
    for node in list(graph.nodes):
        if not _joins_flat_vectors(node):
            continue
        parts = list(node.args[0])
        empty = value_of(parts[0])[:, :0]
        with graph.inserting_before(node):
            while len(parts) <= JOINED:
                parts.append(graph.call_function(aten.slice.Tensor, (parts[0], 1, 0, 0)))
                parts[-1].meta = {"val": empty}
        node.args = (parts, 1)
    module.recompile()


def _joins_flat_vectors(node: fx.Node) -> bool:
    """Whether it is a concatenation of one flat vector for each client, the only ones that are worth it."""
    return node.target is aten.cat.default and len(node.args) > 1 and node.args[1] in (1, -1) \
        and value_of(node).dim() == 2


def _of_cat(node: fx.Node) -> Parts:
    found: Parts = []
    end = 0
    for part in node.args[0]:  # type: ignore[union-attr]
        start, end = end, end + value_of(part).shape[1]  # type: ignore[arg-type]
        found.append((part, start, end))  # type: ignore[arg-type]
    return found


def _apply(graph: fx.Graph, node: fx.Node, parts: dict[fx.Node, Parts]) -> None:
    shape = value_of(node).shape
    whole = next(parts[one] for one in node.args if isinstance(one, fx.Node) and one in parts)
    results: Parts = []
    with graph.inserting_before(node):
        for number, (_, start, end) in enumerate(whole):

            def piece(one: Any, number: int = number, start: int = start, end: int = end) -> Any:
                if not isinstance(one, fx.Node):
                    return one
                if one in parts and [p[1:] for p in parts[one]] == [p[1:] for p in whole]:
                    return parts[one][number][0]
                value = value_of(one)
                if value.dim() and value.shape[-1] == shape[1]:
                    return graph.call_function(aten.slice.Tensor, (one, value.dim() - 1, start, end))
                return one

            made = graph.call_function(node.target, tuple(piece(one) for one in node.args), dict(node.kwargs))  # type: ignore[arg-type]
            made.meta = {"val": value_of(node)[:, start:end]}
            results.append((made, start, end))
        joined = graph.call_function(aten.cat.default, ([one for one, _, _ in results], 1))
    joined.meta = dict(node.meta)
    node.replace_all_uses_with(joined)
    parts[joined] = results
