"""A traced work cut at its gradients into segments; equal segments (the local steps) are one function.

A segment begins with a gradient that needs the one before, and holds what follows from it until the next. So a work
of K steps is a prologue, K times the same segment, and an epilogue, and whatever is paid per function (compiling)
is paid once, for any K.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, fx, nn

from fedsaddle.engine.programs.convolutions import write_in_own_convolutions
from fedsaddle.engine.programs.tracing import (
    Layout,
    Opaque,
    Untraceable,
    hold,
    layout_of,
    shape_of,
    simplify,
    trace,
    value_of,
)

Finished = tuple[Callable[..., Sequence[Tensor]], Sequence[Tensor]]  # what runs a segment, and results of its shapes
Finish = Callable[[fx.GraphModule, list[Tensor]], Finished]
Functions = dict[Any, tuple[Callable[..., Sequence[Tensor]], list[Layout]]]  # with what its results are like
Gradients = dict[Any, fx.GraphModule]  # by kind and the shapes of what they are given
CALLS = "call_function"


class Segment(NamedTuple):
    """One occurrence in the trace."""

    nodes: list[fx.Node]
    inputs: list[fx.Node]  # from outside, in the order of their first use
    kind: tuple[Any, ...]  # equal kinds are the same function


class Cut(NamedTuple):
    prologue: list[fx.Node]  # depends on no gradient
    segments: list[Segment]
    epilogue: list[fx.Node]


def program(
    work: fx.GraphModule, finish: Finish, functions: Functions, decompositions: Any = None, compact: bool = False,
) -> fx.GraphModule:
    """The traced work as a module that calls its segments. `functions`: those finished already; new ones are added.

    compact: whoever calls a segment gives it tensors without gaps, wherever its inputs lie.
    """
    cut = cut_at_gradients(work.graph)
    results = _results(cut)
    graph, root, known = fx.Graph(), nn.Module(), {}
    laid_out: dict[fx.Node, Layout] = {}  # a compiler may lay a result out otherwise than the trace did
    gradients: Gradients = {}
    for node in work.graph.nodes:
        if node.op == "placeholder":
            known[node] = graph.node_copy(node)
        elif node.op == "get_attr":
            known[node] = hold(root, graph, _attribute(work, node.target))
    for node in cut.prologue:
        known[node] = graph.node_copy(node, known.__getitem__)
    for segment in cut.segments:
        positions = results[segment.kind]
        layouts = [laid_out[node] if node in laid_out else layout_of(value_of(node)) for node in segment.inputs]
        layouts = [layout.compact() for layout in layouts] if compact else layouts
        key = (segment.kind, *positions, *(layout.stride for layout in layouts))
        if key not in functions:
            values = [layout.zeros() for layout in layouts]
            run, made = finish(_function(segment, positions, decompositions, values, gradients), values)
            functions[key] = run, [layout_of(value) for value in made]
        function, found = functions[key]
        call = graph.call_function(function, tuple(known[node] for node in segment.inputs))
        for place, position in enumerate(positions):
            known[segment.nodes[position]] = graph.call_function(operator.getitem, (call, place))
            laid_out[segment.nodes[position]] = found[place]
    for node in cut.epilogue:
        known[node] = graph.node_copy(node, known.__getitem__)
    last = next(iter(reversed(work.graph.nodes)))
    graph.output(fx.map_arg(last.args[0], known.__getitem__))
    graph.eliminate_dead_code()
    return fx.GraphModule(root, graph)


def cut_at_gradients(graph: fx.Graph) -> Cut:
    """A node goes with the last gradient that it depends on; gradients that do not depend on each other go together."""
    after: dict[fx.Node, int] = {}
    prologue: list[fx.Node] = []
    groups: list[list[fx.Node]] = [[]]
    for node in graph.nodes:
        depth = max((after[one] for one in node.all_input_nodes), default=-1)
        if isinstance(node.target, Opaque):
            if depth >= len(groups) - 1:
                groups.append([])
            depth = len(groups) - 1
        after[node] = depth
        if node.op == CALLS:
            (prologue if depth < 0 else groups[depth]).append(node)
    groups = [group for group in groups if group]
    epilogue: list[fx.Node] = []
    if len(groups) > 1:
        step = len(groups[-2])
        if _segment(groups[-1][:step]).kind == _segment(groups[-2]).kind:
            groups[-1], epilogue = groups[-1][:step], groups[-1][step:]
    return Cut(prologue, [_segment(group) for group in groups], epilogue)


def _segment(nodes: list[fx.Node]) -> Segment:
    place = {node: number for number, node in enumerate(nodes)}
    inputs: dict[fx.Node, int] = {}

    def refer(node: fx.Node) -> Any:
        if node in place:
            return ("own", place[node])
        return ("input", inputs.setdefault(node, len(inputs)))

    lines = []
    for node in nodes:
        target = ("gradient", node.target.kind) if isinstance(node.target, Opaque) else node.target
        arguments = fx.map_arg((node.args, node.kwargs), lambda one: _Reference(refer(one)))
        lines.append((target, repr(arguments)))
    return Segment(nodes, list(inputs), (*lines, *(shape_of(node) for node in inputs)))


class _Reference(str):
    """Stands for a node in the text of a segment's arguments."""

    def __new__(cls, where: Any) -> _Reference:
        return super().__new__(cls, f"<{where[0]} {where[1]}>")


def _results(cut: Cut) -> dict[tuple[Any, ...], list[int]]:
    """For every kind the positions of the nodes that any of its segments hands on."""
    found: dict[tuple[Any, ...], set[int]] = {}
    for segment in cut.segments:
        own = set(segment.nodes)
        positions = {number for number, node in enumerate(segment.nodes)
                     if any(user not in own for user in node.users)}
        found.setdefault(segment.kind, set()).update(positions)
    return {kind: sorted(positions) for kind, positions in found.items()}


def _function(
    segment: Segment, positions: list[int], decompositions: Any, values: Sequence[Tensor], gradients: Gradients,
) -> fx.GraphModule:
    """The segment with the operations of its gradients written out. values: its inputs, as they will be laid out."""
    graph, root = fx.Graph(), nn.Module()
    known: dict[Any, Any] = {}
    laid_out = dict(zip(segment.inputs, values, strict=True))
    for number, node in enumerate(segment.inputs):
        known[node] = graph.placeholder(f"value_{number}")
        known[node].meta = {"val": laid_out[node]}
    for node in segment.nodes:
        if isinstance(node.target, Opaque):
            inputs: list[Any] = list(node.args)
            given = [laid_out[one] if one in laid_out else layout_of(value_of(one)).zeros() for one in inputs]
            kind = (node.target.kind, *((one.shape, one.stride(), one.dtype) for one in given))
            if kind not in gradients:
                gradients[kind] = trace(node.target.function, given, decompositions)
            known[node] = _inlined(graph, root, gradients[kind], [known[one] for one in inputs])
        elif node.target is operator.getitem and isinstance(known[node.args[0]], tuple):
            known[node] = known[node.args[0]][node.args[1]]
        else:
            known[node] = graph.node_copy(node, known.__getitem__)
    graph.output(tuple(known[segment.nodes[position]] for position in positions))
    module = fx.GraphModule(root, graph)
    simplify(module)
    return module


def _inlined(graph: fx.Graph, root: nn.Module, inner: fx.GraphModule, arguments: list[Any]) -> Any:
    """The nodes of a gradient's own trace, copied into the graph; its results."""
    inside: dict[fx.Node, Any] = {}
    given = iter(arguments)
    for each in inner.graph.nodes:
        if each.op == "placeholder":
            inside[each] = next(given)
        elif each.op == "get_attr":
            inside[each] = hold(root, graph, _attribute(inner, each.target))
            inside[each].meta = {"val": _attribute(inner, each.target)}
        elif each.op == "output":
            return tuple(inside[one] for one in each.args[0])
        elif each.op == CALLS:
            inside[each] = graph.node_copy(each, inside.__getitem__)
        else:
            raise Untraceable(f"its gradient calls {each.target}")
    return ()


def _attribute(module: nn.Module, name: str) -> Tensor:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    if not isinstance(value, Tensor):
        raise Untraceable(f"{name} is no tensor")
    return value.detach()


def op_by_op(segment: fx.GraphModule, values: list[Tensor]) -> Finished:
    """Finish a segment without compiling it."""
    simplify(segment, fold=True)
    write_in_own_convolutions(segment)
    for node in segment.graph.nodes:
        node.meta = {}  # values of every shape, which would stay as long as the function
    forward = segment.forward

    def gradient_step(*values: Tensor) -> Sequence[Tensor]:
        found: Sequence[Tensor] = forward(*values)
        return found

    gradient_step.operations = len(segment.graph.nodes)  # type: ignore[attr-defined]
    return gradient_step, gradient_step(*values)
