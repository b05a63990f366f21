"""FlowerWire: the coordinator's end, to which the ServerApp courier connects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedsaddle.sites.courier_wire import CourierWire, Words

WORDS = Words(courier="Flower's ServerApp", host="the SuperLink")


def FlowerWire(folder: Path, lives: Callable[[], bool] = lambda: True) -> CourierWire:  # named as the wire it makes
    """lives: whether the SuperLink runs, where that can be seen. `wait` after every `processes.submit`."""
    return CourierWire(folder, WORDS, lambda: "" if lives() else f"{WORDS.host} ended")
