"""A problem as client functions see it: its loss, its gradient, its projection.

The gradient is an operation of its own with its own rule for `vmap`: inside a vectorised ask the rule
receives plain tensors with a client axis, so a compiled or hand-written gradient for many clients can
take its place without a change to any algorithm.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils import _pytree as pytree

from fedsaddle.contracts import Pair, Point, Problem, Scores, SettingError
from fedsaddle.engine.programs.tracing import Opaque


class ProblemOracle:
    """The oracle of any problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        closed_form = getattr(problem, "gradient", None)
        self._one = closed_form or grad(problem.loss, argnums=(0, 1))
        self._project = getattr(problem, "project", None)

        def active_loss(x: Tensor, y: Tensor, both: Any) -> Any:
            return self._coupled().active_loss(x, y, *both)

        self._active = grad(active_loss, argnums=(0, 1), has_aux=True)

    def loss(self, z: Point, batch: Any) -> Tensor:
        return self.problem.loss(z.x, z.y, batch)

    def gradient(self, z: Point, batch: Any) -> Point:
        leaves, form = pytree.tree_flatten(batch)
        x, y = _Gradient.apply(_Rule(self._one, form), z.x, z.y, *leaves)  # type: ignore[no-untyped-call]
        return Point(x, y)

    def scores(self, z: Point, pair: Pair) -> tuple[Tensor, Tensor]:
        score = self._coupled().scores
        return score(z.x, pair[0]), score(z.x, pair[1])

    def active(self, z: Point, pair: Pair, old: tuple[Scores, Scores]) -> tuple[Point, tuple[Tensor, Tensor]]:
        leaves, form = pytree.tree_flatten((pair, old))
        x, y, *scores = _Gradient.apply(_Rule(self._active, form), z.x, z.y, *leaves)  # type: ignore[no-untyped-call]
        return Point(x, y), (scores[0], scores[1])

    def _coupled(self) -> Any:
        if not hasattr(self.problem, "active_loss"):
            raise SettingError(f"problem {type(self.problem).__name__}: has no pairs of rows across clients, which "
                               "this algorithm is for; choose the problem pairwise or metric, or another algorithm")
        return self.problem

    def project(self, z: Point) -> Point:
        return self._project(z) if self._project else z


class _Rule:
    """The gradient of one client as a function of flat arguments, with flat results."""

    def __init__(self, one: Any, form: Any) -> None:
        self.one, self.form = one, form

    def __call__(self, x: Tensor, y: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
        return tuple(pytree.tree_leaves(self.one(x, y, pytree.tree_unflatten(list(leaves), self.form))))


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(rule: _Rule, *values: Tensor) -> tuple[Tensor, ...]:
        return rule(*values)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: no method differentiates through a gradient."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], rule: _Rule, *values: Tensor) -> Any:
        many = Opaque(vmap(rule, in_dims=in_dims[1:]), (rule.one, rule.form, in_dims[1:]))
        results = many(*values)
        return results, (0,) * len(results)
