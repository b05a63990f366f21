"""Traces: the operations of a function on tensors as a flat graph.

A gradient is one opaque node of the trace of a work, however large the net is, and is traced by itself: a work of
512 local steps has 512 such nodes, all of one kind, and the net's operations are recorded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing,
    get_proxy_mode,
    make_fx,
    track_tensor_tree,
)
from torch.utils import _pytree as pytree

Function = Callable[..., Sequence[Tensor]]
NO_WORK = {"view", "_unsafe_view", "reshape", "expand", "alias"}  # they do nothing where the shape stays as it is

aten = torch.ops.aten
RESHAPED: dict[Any, Any] = {  # only the shape is set in place; later nodes refer to the result in any case
    aten.squeeze_.dim: aten.squeeze.dim, aten.squeeze_.dims: aten.squeeze.dims,
    aten.squeeze_.default: aten.squeeze.default,
    aten.unsqueeze_.default: aten.unsqueeze.default, aten.transpose_.default: aten.transpose.int,
    aten.t_.default: aten.t.default,
}
WRITTEN: dict[Any, Any] = {aten.reciprocal_.default: aten.reciprocal.default}  # by torch's gradient of a group norm


class Untraceable(RuntimeError):
    """A function that cannot be run from a trace."""


class Opaque:
    """A function of tensors that a trace records as one node."""

    def __init__(self, function: Function, kind: Any) -> None:
        self.function = function
        self.kind = kind  # two calls of equal kinds on equal shapes are the same function
        self.__name__ = "gradient"

    def __call__(self, *values: Tensor) -> Any:
        mode: Any = get_proxy_mode()
        if mode is None:
            return self.function(*values)
        if any(map(torch._is_functional_tensor, values)):  # they have no proxies: they would be taken for constants
            raise Untraceable("it changes a tensor in place beside a gradient")
        # A work's steps are all of a kind: the first is computed, for the shapes of its results, and stands for all.
        known = mode.tracer.__dict__.setdefault("known_gradients", {})
        name = (self.kind, *((value.shape, value.stride(), value.dtype) for value in values))
        with disable_proxy_modes_tracing():
            if name not in known:
                known[name] = [layout_of(result) for result in self.function(*values)]
            results = tuple(layout.zeros() for layout in known[name])
        proxies = pytree.tree_map(mode.tracer.unwrap_proxy, values)
        node = mode.tracer.create_proxy("call_function", self, proxies, {})
        return track_tensor_tree(results, node, constant=None, tracer=mode.tracer)


def trace(function: Function, values: Sequence[Tensor], decompositions: Any = None) -> fx.GraphModule:
    """The operations of function(*values), dead ones left out."""
    module = _recorded(function, values, decompositions)
    if _in_place(module):  # torch's own rules do so at places; a trace without it means the same
        module = _recorded(functionalize(function, remove="mutations"), values, decompositions)
    for node in _in_place(module):
        raise Untraceable(f"it changes a tensor in place ({node.target})")
    return module


def _recorded(function: Function, values: Sequence[Tensor], decompositions: Any) -> fx.GraphModule:
    # A tensor that is given twice (z and the last z, in the first round) must be two: else one stands for both.
    apart = [value.detach() for value in values]
    # One mode for the shapes of all values: without a context, torch makes a new one for every operation.
    with torch.no_grad(), tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True))):
        module = make_fx(function, decomposition_table=decompositions)(*apart)
    for node in module.graph.nodes:
        node.type = None  # an annotation, which a compiler cannot write down where it is a text
        node.target = RESHAPED.get(node.target, node.target)
        if node.target in WRITTEN and _is_its_own(node.args[0]):
            node.target = WRITTEN[node.target]
    module.graph.eliminate_dead_code()
    return module


def _is_its_own(value: Any) -> bool:
    """Whether a value is fresh memory that one operation alone sees."""
    schema = getattr(value.target, "_schema", None)
    return schema is not None and len(value.users) == 1 and all(one.alias_info is None for one in schema.returns)


def _in_place(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op == "call_function" and _mutates(node.target)]


def _mutates(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is not None and schema.is_mutable


class Layout(NamedTuple):
    """All of a tensor but its numbers."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def zeros(self) -> Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device).zero_()

    def compact(self) -> Layout:
        """Without gaps, in order."""
        return self._replace(stride=torch.empty(self.shape, device="meta").stride())


def layout_of(value: Tensor) -> Layout:
    return Layout(value.shape, value.stride(), value.dtype, value.device)


def value_of(node: fx.Node) -> Tensor:
    value = node.meta.get("val", node.meta.get("tensor_meta"))
    if not isinstance(value, Tensor):
        raise Untraceable(f"the value of {node} is no tensor")
    return value


def shape_of(node: fx.Node) -> tuple[Any, ...]:
    value = value_of(node)
    return tuple(value.shape), tuple(value.stride()), value.dtype


def simplify(module: fx.GraphModule, fold: bool = False) -> None:
    """Leave out what computes nothing: views that keep the shape, transposes that cancel, what is known already, and
    gradients of a convolution that nobody asks for.

    fold: constants are made once, not at every call; a compiler would rather see them made.
    """
    graph = module.graph
    graph.eliminate_dead_code()
    known: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or _repeats(node, known) or not isinstance(node.target, torch._ops.OpOverload):
            continue
        name = node.target._schema.name.removeprefix("aten::")
        first = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        if name in NO_WORK and first is not None and shape_of(node) == shape_of(first):
            node.replace_all_uses_with(first)
        elif name == "transpose" and first is not None and first.target is node.target:
            inner = first.args[0]
            if isinstance(inner, fx.Node) and {*first.args[1:]} == {*node.args[1:]} and \
                    shape_of(node) == shape_of(inner):
                node.replace_all_uses_with(inner)
        elif name == "convolution_backward":
            _compute_what_is_used(node)
        elif fold and not node.all_input_nodes and _constant(node):
            _fold(module, node)
    graph.eliminate_dead_code()
    module.recompile()


def _compute_what_is_used(node: fx.Node) -> None:
    """Of a convolution's gradients, by its inputs, weights and bias: one operation, whose last argument says which."""
    used, mask = {user.args[1] for user in node.users}, node.args[-1]
    node.args = (*node.args[:-1], [wanted and place in used for place, wanted in enumerate(mask)])  # type: ignore[arg-type]


def _repeats(node: fx.Node, known: dict[Any, fx.Node]) -> bool:
    """Whether an earlier node is the same, which then stands for both: two losses of one net share its outputs."""
    if isinstance(node.target, Opaque) or _random(node):
        return False
    same = known.setdefault((node.target, repr((node.args, node.kwargs))), node)
    if same is node:
        return False
    node.replace_all_uses_with(same)
    return True


def _random(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _constant(node: fx.Node) -> bool:
    return not _random(node) and "val" in node.meta


def _fold(module: fx.GraphModule, node: fx.Node) -> None:
    value = node.target(*node.args, **node.kwargs)  # type: ignore[operator]
    if not isinstance(value, Tensor):
        return
    with module.graph.inserting_before(node):
        held = hold(module, module.graph, value)
    held.meta = dict(node.meta)
    node.replace_all_uses_with(held)


def hold(owner: torch.nn.Module, graph: fx.Graph, value: Tensor) -> fx.Node:
    """A node for a constant tensor, kept by the module that owns the graph."""
    number = sum(name.startswith("constant_") for name, _ in owner.named_buffers())
    owner.register_buffer(f"constant_{number}", value)
    return graph.get_attr(f"constant_{number}")
