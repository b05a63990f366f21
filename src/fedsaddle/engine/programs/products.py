"""Products of small matrices, one pair for every client, written out as sums.

A library multiplies them in a kernel of its own, whose start costs more than the arithmetic. Written out they are
elementwise, and a compiler joins them with what surrounds them: the gradient of a layer's weights, a product over the
few rows of a batch, becomes part of the step that uses it.
"""

from __future__ import annotations

import torch
from torch import fx

from fedsaddle.engine.programs.tracing import value_of

aten = torch.ops.aten
INNER = 16  # at most so many terms in a sum: the rows of a batch
RESULTS = 256  # or at most so many numbers in a client's result: the scores of a batch


def write_out_small_products(module: fx.GraphModule) -> None:
    graph = module.graph
    for node in list(graph.nodes):
        if node.target is not aten.bmm.default:
            continue
        left, right = node.args
        (_, rows, inner), columns = value_of(left).shape, value_of(right).shape[2]
        if inner > INNER and rows * columns > RESULTS:
            continue
        with graph.inserting_before(node):
            tall = graph.call_function(aten.unsqueeze.default, (left, 3))  # client, row, inner, 1
            wide = graph.call_function(aten.unsqueeze.default, (right, 1))  # client, 1, inner, column
            terms = graph.call_function(aten.mul.Tensor, (tall, wide))
            total = graph.call_function(aten.sum.dim_IntList, (terms, [2]))
        total.meta = dict(node.meta)
        node.replace_all_uses_with(total)
    graph.eliminate_dead_code()
    module.recompile()
