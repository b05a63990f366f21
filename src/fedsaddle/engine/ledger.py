"""What was sent: floats and bytes, down and up, and who was asked, answered or came too late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from fedsaddle.maths.trees import named_leaves


class Traffic(NamedTuple):
    """The traffic of an ask, a round or a run; adds up. Late replies are counted apart: nobody used them."""

    asked: int = 0
    answered: int = 0
    late: int = 0
    floats_down: int = 0
    floats_up: int = 0
    floats_late: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    bytes_late: int = 0
    virtual_seconds: float = 0.0

    def __add__(self, other: Traffic) -> Traffic:  # type: ignore[override]
        return Traffic(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))  # type: ignore[arg-type]


class Size(NamedTuple):
    """The size of one message to, or one reply from, one client."""

    floats: int
    bytes: int


def size_of(tree: Any, per_client: Sequence[str] = ()) -> Size:
    """Floating-point numbers and bytes of a tree of tensors; fields named `per_client` hold a row for every client."""
    floats = total = 0
    for name, leaf in named_leaves(tree):
        if isinstance(leaf, Tensor):
            count = leaf.numel()
            if name.split(".")[0] in per_client:
                count //= max(1, leaf.shape[0])
            floats += count if leaf.is_floating_point() else 0
            total += count * leaf.element_size()
    return Size(floats, total)


def traffic_of(message: Size, reply: Size, asked: int, answered: int, late: int, seconds: float) -> Traffic:
    return Traffic(
        asked=asked, answered=answered, late=late,
        floats_down=asked * message.floats, floats_up=answered * reply.floats, floats_late=late * reply.floats,
        bytes_down=asked * message.bytes, bytes_up=answered * reply.bytes, bytes_late=late * reply.bytes,
        virtual_seconds=seconds,
    )
