"""The work of a chunk of clients, in one of three ways: eager under vmap, from a trace, or compiled."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, fx
from torch.func import vmap

from fedsaddle.contracts import Oracle, Work
from fedsaddle.data.clients import Clients
from fedsaddle.engine.draws import Drawn, Shape, data_of, draw_batches
from fedsaddle.engine.programs import compiling
from fedsaddle.engine.programs.capture import each_captured
from fedsaddle.engine.programs.segments import op_by_op, program
from fedsaddle.engine.programs.tracing import Opaque, Untraceable, trace
from fedsaddle.maths.trees import leaves, map_leaves, with_leaves

EAGER, TRACED, COMPILED = "eager", "traced", "compiled"
KINDS = (EAGER, TRACED, COMPILED)
Body = Callable[[Any, Any, Drawn], tuple[Any, Any]]  # message, states, batches -> replies, states
LONG = 32  # local steps; of a longer work every step is a graph of its own, since capturing takes as long as running
MOST = 64  # programs kept; a work that needs more shapes than that is better off without


class Task(NamedTuple):
    """What a chunk of an ask has to do: everything that decides the operations, and no values."""

    work: Work
    personal: tuple[str, ...]
    shape: Shape
    clients: int

    @property
    def long(self) -> bool:
        return self.shape.minibatches > LONG


class Bodies:
    """The bodies of one problem's works, each made once for its shapes."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.made: dict[Any, _Program] = {}
        self.draws: dict[Any, tuple[Callable[..., Any], Any]] = {}
        self.functions: dict[Any, Any] = {}  # finished segments, shared by all programs

    def body(self, kind: str, task: Task, message: Any, states: Any, drawn: Drawn) -> Body:
        """Raises Untraceable where the work cannot be run in this way."""
        if kind == EAGER:
            return vectorised(self.oracle, task, message, states)
        key = self.key(kind, task, message, states)
        if key not in self.made:
            if len(self.made) >= MOST:
                raise Untraceable(f"it needs more than {MOST} shapes")
            self.made[key] = self._program(kind, task, message, states, drawn)
        return self.made[key]

    def operations(self, work: Work) -> int:
        """How long the code is that was traced for a work; equal local steps count once."""
        mine = _identity(work)
        return max((body.operations for key, body in self.made.items() if key[0] == TRACED and key[1] == mine),
                   default=0)

    def batches(self, kind: str, clients: Clients, shape: Shape, ids: Tensor, key: Tensor) -> Drawn:
        """The batches of a chunk. On a GPU the many small operations of the draws are compiled too."""
        if kind != COMPILED or ids.device.type != "cuda":
            return draw_batches(clients, ids, shape, key)
        name = (shape, len(ids))
        if name not in self.draws:
            drawn: list[Drawn] = []

            def flat(ids: Tensor, key: Tensor) -> list[Tensor]:
                drawn[:] = [draw_batches(clients, ids, shape, key)]
                return leaves(drawn[0])

            run = compiling.compiled_function(flat, [ids, key])
            self.draws[name] = run, map_leaves(lambda _: 0, drawn[0])
        run, form = self.draws[name]
        found: Drawn = with_leaves(form, run(ids, key))
        return found

    def key(self, kind: str, task: Task, message: Any, states: Any) -> Any:
        """Equal for chunks that one program serves."""
        return (kind, _identity(task.work), *task[1:], _form((message, states)))

    def _program(self, kind: str, task: Task, message: Any, states: Any, drawn: Drawn) -> _Program:
        pure(task.work)
        try:
            work, form = self._traced(task, message, states, drawn)
            if kind == COMPILED and begins_shared(work):
                work, form = self._traced(task, message, states, drawn, repeated=True)
            finish = compiling.compiled if kind == COMPILED else op_by_op
            table = compiling.decompositions() if kind == COMPILED else None
            stepwise = task.long and any(leaf.device.type == "cuda" for leaf in leaves((message, drawn)))
            functions = self.functions.setdefault(f"{kind}, step by step" if stepwise else kind, {})
            made = program(work, each_captured(finish) if stepwise else finish, functions, table, compact=stepwise)
        except Untraceable:
            raise
        except Exception as error:  # torch's tracer raises what it likes; the eager way needs none of it
            raise Untraceable(f"{type(error).__name__}: {str(error)[:200]}") from error
        finally:
            compiling.give_freed_memory_back()
        return _Program(made, form)

    def _traced(self, task: Task, message: Any, states: Any, drawn: Drawn, repeated: bool = False) -> tuple[Any, Any]:
        """The trace of a work and the form of its result. repeated: every client has a copy of the message's tensors,
        so that the first local step, on the server's variables, is no other function than the rest."""
        example, body = (message, states, drawn), vectorised(self.oracle, task, message, states, repeated)
        found: list[Any] = []

        def copies(leaf: Tensor) -> Tensor:
            return leaf.expand(task.clients, *leaf.shape).contiguous() if leaf.dim() else leaf

        def flat(*values: Tensor) -> tuple[Tensor, ...]:
            message, states, drawn = with_leaves(example, values)
            found[:] = [body(map_leaves(copies, message) if repeated else message, states, drawn)]
            return tuple(leaves(found[0]))

        work = trace(flat, leaves(example))
        return work, map_leaves(lambda _: 0, found[0])


class _Program:
    def __init__(self, made: fx.GraphModule, form: Any) -> None:
        self.run, self.form = made.forward, form
        functions = {node.target for node in made.graph.nodes}
        self.operations = sum(getattr(function, "operations", 1) for function in functions)

    def __call__(self, message: Any, states: Any, drawn: Drawn) -> tuple[Any, Any]:
        result: tuple[Any, Any] = with_leaves(self.form, self.run(*leaves((message, states, drawn))))
        return result


def vectorised(oracle: Oracle, task: Task, message: Any, states: Any, repeated: bool = False) -> Body:
    """The work under vmap, operation by operation."""
    axes: Any = None
    if repeated:
        axes = map_leaves(lambda leaf: 0 if leaf.dim() else None, message)
    elif task.personal:
        axes = type(message)(*(0 if name in task.personal else None for name in message._fields))

    def one(message: Any, state: Any, drawn: Drawn) -> tuple[Any, Any]:
        return task.work(oracle, message, state, data_of(drawn, task.shape.minibatches))

    body: Body = vmap(one, in_dims=(axes, 0 if leaves(states) else None, 0))
    return body


def begins_shared(work: fx.GraphModule) -> bool:
    """Whether of several gradients only the first is at a point that all clients share, as in plain local steps."""
    shared = [node.target.kind[-1][0] is None for node in work.graph.nodes if isinstance(node.target, Opaque)]
    return len(shared) > 1 and shared[0] and not any(shared[1:])


def pure(work: Work) -> None:
    """Refuse a work whose code may behave otherwise the next time: a trace would not notice.

    A function without surroundings, or a method of frozen settings, does the same for the same shapes.
    """
    owner = getattr(work, "__self__", None)
    frozen = dataclasses.is_dataclass(owner) and owner.__dataclass_params__.frozen  # type: ignore[union-attr]
    plain = isinstance(work, types.FunctionType) and not work.__closure__
    if not (frozen or plain):
        raise Untraceable("it is neither a plain function nor a method of a frozen dataclass")


def _identity(work: Any) -> Any:
    """A method of equal settings is the same work; the settings are held, so that no other object takes their place."""
    owner = getattr(work, "__self__", None)
    return work if owner is None else (work.__func__, _Held(owner))


class _Held(NamedTuple):
    owner: Any

    def __hash__(self) -> int:
        return id(type(self.owner))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and (self.owner is other.owner or bool(self.owner == other.owner))


def _form(tree: Any) -> Any:
    """The structure of a tree with the shapes of its leaves."""
    if isinstance(tree, tuple):
        return (type(tree), *(_form(child) for child in tree))
    return (tuple(tree.shape), tree.stride(), tree.dtype, tree.device.type) if isinstance(tree, Tensor) else tree
