"""Convolutions of many clients on a GPU by kernels of our own, where they are faster than the library's grouped ones.

Which do what is read off benchmarks/speed/convolutions.py on an H200: the library is good at 3 x 3 kernels without a
stride, forward and by the inputs, and slow at the gradients by the weights and at images of few channels or few pixels.
"""

from __future__ import annotations

import functools
import importlib.util
import operator
from typing import Any

import torch
from torch import Tensor, fx

from fedsaddle.engine.programs.tracing import value_of

aten = torch.ops.aten
FORM = "int[] form"  # kernels.Form
TERMS = 32  # of a product at a time
FEW_CHANNELS, FEW_PIXELS = 16, 16
TF32 = (8, 0)  # compute capability
MOST_NUMBERS, MOST_GROUPS = 1 << 31, 1 << 16  # places are counted in 32 bits; but for one, a grid's directions have 16
MOST_HANDED_ON = 1 << 28  # by `spread`


@functools.cache
def available() -> bool:
    """Whether the kernels can be had, on an NVIDIA GPU with TF32; the first time, they become operations of torch."""
    if importlib.util.find_spec("triton") is None or torch.version.cuda is None or not torch.cuda.is_available() or \
            torch.cuda.get_device_capability() < TF32:
        return False
    for name, (function, fake) in {"correlated": (_correlated, _small), "spread": (_spread, _large),
                                   "weighed": (_weighed, _weights)}.items():
        torch.library.define(f"fedsaddle::{name}", f"(Tensor one, Tensor other, {FORM}) -> Tensor")
        torch.library.impl(f"fedsaddle::{name}", "CUDA", function)
        torch.library.register_fake(f"fedsaddle::{name}", fake)
    return True


def write_in_own_convolutions(module: fx.GraphModule, beyond: int = 0) -> None:
    """Our kernels in the place of grouped convolutions of a trace, and of their gradients, where they are faster.

    beyond: convolutions with weights of so many pixels a side, and fewer, stay the library's.
    """
    graph = module.graph
    for node in list(graph.nodes):
        given: Any = node.args
        if node.target is aten.convolution.default and \
                _known(given[0], given[1], given[3], given[4], given[5], given[8], beyond):
            _forward(graph, node)
        elif node.target is aten.convolution_backward.default and \
                _known(given[1], given[2], given[4], given[5], given[6], given[9], beyond):
            _backward(graph, node)
    graph.eliminate_dead_code()
    module.recompile()


def _known(x: Any, w: Any, stride: Any, pad: Any, dilation: Any, groups: Any, beyond: int) -> bool:
    value = value_of(x)
    return groups > 1 and value.device.type == "cuda" and value.dtype == torch.float32 and value.dim() == 4 and \
        {*dilation} == {1} and len({*stride}) == len({*pad}) == 1 and max(value_of(w).shape[2:]) > beyond and \
        available()


def fits(form: list[int]) -> bool:
    """Whether the kernels can count all places of the images and weights."""
    n, g, a, h, v, c, p, q, i, j, *_ = form
    return max(g, a) < MOST_GROUPS and g * max(n * a * h * v, n * c * p * q, c * a * i * j) < MOST_NUMBERS


def correlates_faster(form: list[int]) -> bool:
    _, _, a, _, _, _, p, q, i, _, stride, _ = form
    return a < FEW_CHANNELS or p * q <= FEW_PIXELS or stride > 1 or i > 3


def spreads_faster(form: list[int]) -> bool:
    n, g, a, _, _, _, p, q, i, j, stride, _ = form
    handed_on = g * a * i * j * n * p * q  # from all places to their neighbours, numbers in memory
    return (p * q <= FEW_PIXELS or stride > 1 or i > 3) and handed_on < MOST_HANDED_ON


def _forward(graph: fx.Graph, node: fx.Node) -> None:
    x, w, bias, stride, pad, _, transposed, _, groups = node.args
    form = _form(node, x, w, stride, pad, transposed, groups)
    if not fits(form) or not (spreads_faster if transposed else correlates_faster)(form):
        return
    ours = torch.ops.fedsaddle.spread.default if transposed else torch.ops.fedsaddle.correlated.default
    with graph.inserting_before(node):
        found = graph.call_function(ours, (x, w, form))
        if bias is not None:
            found.meta = dict(node.meta)
            columns = graph.call_function(aten.view.default, (bias, [1, -1, 1, 1]))
            columns.meta = {"val": value_of(bias).view(1, -1, 1, 1)}  # type: ignore[arg-type]
            found = graph.call_function(aten.add.Tensor, (found, columns))
    found.meta = dict(node.meta)
    node.replace_all_uses_with(found)


def _backward(graph: fx.Graph, node: fx.Node) -> None:
    """By the weights always by our kernel, and by the inputs where that is faster."""
    above, x, w, sizes, stride, pad, dilation, transposed, further, groups, _ = node.args
    form = _form(above, x, w, stride, pad, transposed, groups)
    if not fits(form):
        return
    large, small = (above, x) if transposed else (x, above)
    ours, by_inputs = torch.ops.fedsaddle, (correlates_faster if transposed else spreads_faster)(form)
    for user in list(node.users):
        if user.target is not operator.getitem:
            raise ValueError("a gradient of a convolution is used as a whole")
        with graph.inserting_before(user):
            if user.args[1] == 0 and by_inputs:
                found = graph.call_function((ours.correlated if transposed else ours.spread).default, (above, w, form))
            elif user.args[1] == 0:
                alone = graph.call_function(aten.convolution_backward.default, (
                    above, x, w, sizes, stride, pad, dilation, transposed, further, groups, [True, False, False]))
                alone.meta = dict(node.meta)
                found = graph.call_function(operator.getitem, (alone, 0))
            elif user.args[1] == 1:
                found = graph.call_function(ours.weighed.default, (large, small, form))
            else:
                found = graph.call_function(aten.sum.dim_IntList, (above, [0, 2, 3]))
        found.meta = dict(user.meta)
        user.replace_all_uses_with(found)


def _form(result: Any, x: Any, w: Any, stride: Any, pad: Any, transposed: Any, groups: Any) -> list[int]:
    """result: the convolution, or whatever has its shape."""
    large, small = (result, x) if transposed else (x, result)
    (n, a, h, v), (_, c, p, q) = value_of(large).shape, value_of(small).shape
    i, j = value_of(w).shape[2:]
    return [int(size) for size in (n, groups, a // groups, h, v, c // groups, p, q, i, j, stride[0], pad[0])]


# The operations.


def _correlated(x: Tensor, w: Tensor, form: list[int]) -> Tensor:
    from fedsaddle.engine.programs import kernels  # noqa: PLC0415  # needs triton

    one = kernels.Form(*form)
    return kernels.correlated(x.contiguous(), w.contiguous(), one, blocks_for("y", one))


def _spread(y: Tensor, w: Tensor, form: list[int]) -> Tensor:
    from fedsaddle.engine.programs import kernels  # noqa: PLC0415

    one = kernels.Form(*form)
    return kernels.spread(y.contiguous(), w.contiguous(), one)


def _weighed(x: Tensor, y: Tensor, form: list[int]) -> Tensor:
    from fedsaddle.engine.programs import kernels  # noqa: PLC0415

    one = kernels.Form(*form)
    return kernels.weighed(x.contiguous(), y.contiguous(), one, blocks_for("w", one))


def _small(x: Tensor, w: Tensor, form: list[int]) -> Tensor:
    n, g, _, _, _, c, p, q, *_ = form
    return x.new_empty(n, g * c, p, q)


def _large(y: Tensor, w: Tensor, form: list[int]) -> Tensor:
    n, g, a, h, v, *_ = form
    return y.new_empty(n, g * a, h, v)


def _weights(x: Tensor, y: Tensor, form: list[int]) -> Tensor:
    _, g, a, _, _, c, _, _, i, j, *_ = form
    return x.new_empty(g * c, a, i, j)


def blocks_for(what: str, form: Any) -> Any:
    """Of the product that computes y or w."""
    from fedsaddle.engine.programs import kernels  # noqa: PLC0415

    tall = min(128, max(16, 1 << (form.C - 1).bit_length()))
    wide = form.N * form.P * form.Q >= 1024 if what == "y" else tall == 128
    return kernels.Blocks(tall, 128 if wide else 64, TERMS, 8 if tall == 128 else 4, 3)
