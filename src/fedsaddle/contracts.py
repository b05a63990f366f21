"""The contract between problems, algorithms, participation and engines. Read this first.

An algorithm is a frozen dataclass of settings whose `round(server, federation)` is the paper's
pseudo-code. It asks clients through `federation.average` and `federation.collect` and never knows
where they run. Server, client state, messages and replies are NamedTuples of flat tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, Protocol

import torch
from torch import Tensor

State = Any  # a NamedTuple of tensors, numbers and further such NamedTuples
Number = Any  # a Python number in `round`, lifted to a 0-dim tensor on the device before a work sees it


class Point(NamedTuple):
    """z = (x, y): the minimising and the maximising variable, both flat. No maximisation: y is empty."""

    x: Tensor
    y: Tensor

    def step(self, direction: Point, eta: Any, gamma: Any) -> Point:
        """Descend in x by eta, ascend in y by gamma."""
        return Point(self.x - eta * direction.x, self.y + gamma * direction.y)

    def __add__(self, other: Point) -> Point:  # type: ignore[override]
        return Point(self.x + other.x, self.y + other.y)

    def __sub__(self, other: Point) -> Point:
        return Point(self.x - other.x, self.y - other.y)

    def __mul__(self, number: Any) -> Point:  # a tuple would repeat itself
        return Point(self.x * number, self.y * number)

    def __rmul__(self, number: Any) -> Point:
        return Point(number * self.x, number * self.y)

    def __truediv__(self, number: Any) -> Point:
        return Point(self.x / number, self.y / number)

    def __neg__(self) -> Point:
        return Point(-self.x, -self.y)


# What a field of a reply is, where that bounds its values: a reply that breaks it is refused before it counts. Written
# as the type of the field, or of a whole reply in the signature of a work.
Feasible = Annotated[Point, "feasible"]  # in the problem's domain
LossValue = Annotated[Tensor, "loss"]  # within problem.ranges["loss"]
RowScores = Annotated[Tensor, "scores"]  # within problem.ranges["scores"]; NaN where there is no row
ShareOf = Annotated[Tensor, "share"]  # between 0 and 1
CountOf = Annotated[Tensor, "counts"]  # not negative, at most the client's rows
Mixture = Annotated[Tensor, "mixture"]  # on the simplex


class Batch(NamedTuple):
    """Rows of one client. A mean over rows is `(weight * value).sum()`: padding weighs 0, real rows sum to 1."""

    inputs: Tensor
    targets: Tensor
    weight: Tensor
    noise: Tensor | tuple[()] = ()  # uniform on [0, 1), one row per example, where the problem asks for it


class Pair(NamedTuple):
    """A batch of a problem with strata: two draws, such as positives and negatives. A missing class weighs 0."""

    positives: Batch
    negatives: Batch


class Scores(NamedTuple):
    """Scores of other clients' rows, the passive side of a pair, and how much each counts: 1 on average."""

    value: Tensor  # one score a row, or one vector
    weight: Tensor


class Draw(NamedTuple):
    """What a work wants of its client's data: so many minibatches, all of it, or both."""

    minibatches: int = 0
    full: bool = False
    inputs: bool = True  # False: the work looks at targets and weights of the full batch alone; no inputs are fetched


ALL = Draw(full=True)


class Data(NamedTuple):
    """What a work receives: the minibatches of its Draw, in order, and the full batch if it was asked for."""

    minibatches: tuple[Any, ...]  # of Batch or Pair
    full: Any  # Batch, Pair or ()


class Cohort(NamedTuple):
    """Distinct clients to ask. `times`: how often each was drawn; `weight`: how much its reply counts in a mean.

    Uniform draws weigh by the objective's client weights. Draws by an algorithm's own weights (lambda) count
    plainly: the weights are in the draw already. Draws by a participation's weights are corrected for them.
    """

    ids: Tensor
    times: Tensor
    weight: Tensor


class Average(NamedTuple):
    """What the server learns from one ask. A field stands in exactly one of `mean`, `sum` and `each`."""

    mean: Any  # weighted mean over those that answered, weights by the cohort
    sum: Any  # of the fields named in `summed`: sum of w_i r_i over those that answered, w the objective's weights
    each: Any  # of the fields named in `collect`: one row per client that answered
    answered: int  # distinct clients
    share: float  # sum of the objective's weights of those that answered
    ids: Tensor
    times: Tensor


class NobodyAnswered(Exception):
    """Raised by an ask without answers, caught by the training loop alone: the round is skipped and recorded."""


class SettingError(ValueError):
    """Wrong input. The text names the setting, the value and the remedy."""


class Oracle(Protocol):
    """A problem as a work sees it: losses and gradients of one client, whatever engine computes them."""

    problem: Any

    def loss(self, z: Point, batch: Any) -> Tensor: ...
    def gradient(self, z: Point, batch: Any) -> Point: ...
    def project(self, z: Point) -> Point: ...
    def scores(self, z: Point, pair: Pair) -> tuple[Tensor, Tensor]: ...
    def active(self, z: Point, pair: Pair, old: tuple[Scores, Scores]) -> tuple[Point, tuple[Tensor, Tensor]]:
        """Gradient of `problem.active_loss`, and the new scores of the pair's rows, which cost nothing more."""


# A pure client function: (oracle, message, client state, data) -> (reply, client state). No clock, file or
# generator, no `.item()`, no `if tensor`: it runs under vmap, in a CUDA graph and on a remote machine.
Work = Callable[[Oracle, Any, Any, Data], tuple[Any, Any]]


class Federation(Protocol):
    """The clients, as an algorithm sees them."""

    num_clients: int
    round: int  # rounds elapsed, skipped ones included; addresses the randomness
    cycle: int  # rounds until every group of clients has been active once (1 without groups)
    epoch_ends: bool  # whether this round is the last of its cycle
    batch_size: int

    def cohort(self, size: int | None, weights: Tensor | None = None, replace: bool = False) -> Cohort:
        """Draw clients among those that can be asked now. size None: all of them."""

    def everyone(self) -> Cohort:
        """Every client that can be asked now."""

    def average(
        self, work: Work, message: Any, cohort: Cohort, batches: int | Draw,
        personal: Sequence[str] = (), collect: Sequence[str] = (), summed: Sequence[str] = (),
    ) -> Average:
        """Ask the cohort. `personal`: message fields with one row per client of the cohort;
        `collect`: reply fields learnt client by client; `summed`: reply fields summed with the objective's weights.
        """

    def collect(
        self, work: Work, message: Any, cohort: Cohort, batches: int | Draw, personal: Sequence[str] = (),
    ) -> Average:
        """Ask the cohort and learn every reply field client by client."""

    def project(self, z: Point) -> Point:
        """Onto the domain of the problem, for steps that the server takes itself."""

    def randint(self, low: int, high: int) -> int:
        """The server's own keyed dice: low <= value < high."""

    def uniform(self) -> float: ...


class Problem(Protocol):
    """min_x max_y mean_i f_i(x, y). Required: `first` and `loss`. The rest may be left out:

    strata: tuple[str, ...] = ()          ("positives", "negatives") or ("rows", "rows"): batches are Pairs
    scores(x, batch) -> Tensor            of every row: what pairwise methods exchange
    active_loss(x, y, pair, old)          -> (loss, new scores), the pair's rows against old: tuple[Scores, Scores]
    noise: int = 0                        uniform numbers per example, in batch.noise
    mixes_rows: bool = False              whether rows of a batch touch each other; seen by itself for batch norm
    project(z) -> Point                   onto the domain of (x, y)
    gradient(x, y, batch) -> Point        where it is known in closed form
    prepare(federation) -> Problem        learns constants of the objective before round 0
    constants() -> dict[str, float]       what prepare learnt: goes to the run folder and the checkpoint
    with_constants(values) -> Problem     the inverse, for a resumed run
    measure(z, rows) -> dict[str, float]  on a pooled data set: Rows(inputs, targets)
    by_row(z, rows) -> dict[str, Tensor]  loss and accuracy of every row: what is measured client by client
    best_response(z, rows) -> Tensor      y*(x) on a pooled data set, where it is known in closed form
    alarms(measures) -> list[str]         what a person should know, in words
    named(z) -> dict[str, Tensor]         the solution under the names of a user's module
    headline: str                         the measure to show first
    ranges: dict[str, tuple]              least and largest value of "loss" and of "scores", where there is one
    pose(settings, materials) -> Problem  a static method: makes it from a settings file
    """

    def first(self) -> Point:
        """The starting point."""

    def loss(self, x: Tensor, y: Tensor, batch: Any) -> Tensor:
        """The loss of one client on a batch, a scalar: always `(batch.weight * per_example).sum()`."""


class Algorithm(Protocol):
    """A frozen dataclass of settings. `first_client(z)` is needed where clients keep state between rounds."""

    def first(self, z: Point, federation: Federation) -> State:
        """The server's state before round 0. It has a field `round`: updates done."""

    def round(self, server: Any, federation: Federation) -> State: ...

    def solution(self, server: Any) -> Point:
        """What the method returns after the rounds done so far."""


class Rows(NamedTuple):
    """A pooled data set for evaluation."""

    inputs: Tensor
    targets: Tensor


class Materials(NamedTuple):
    """What a problem can be made from when it is named in a settings file: `Problem.pose(settings, materials)`."""

    clients: Any  # data.Clients
    weights: Tensor  # the objective's client weights
    classes: int
    net: Callable[[int], Any]  # the model of the settings, with so many outputs


def setting(
    default: Any, meaning: str, *, above: float | None = None, at_least: float | None = None,
    at_most: float | None = None, choices: tuple[Any, ...] | None = None,
) -> Any:
    """A field of a settings dataclass, with its meaning and bounds. Checked in config.py, shown by `fedsaddle list`."""
    bounds = {"above": above, "at_least": at_least, "at_most": at_most, "choices": choices}
    return dataclasses.field(default=default, metadata={"meaning": meaning, **bounds})


def as_draw(batches: int | Draw) -> Draw:
    return batches if isinstance(batches, Draw) else Draw(minibatches=batches)


def empty() -> Tensor:
    """The y of a problem that only minimises."""
    return torch.zeros(0)
