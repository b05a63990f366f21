"""A wire in memory: sites in this process. For tests, and to try an algorithm across sites before there are any."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from fedsaddle.sites.site import Site
from fedsaddle.sites.wire import Delivery, Parcel

PAUSE = 0.01  # seconds
Fate = Callable[[Parcel, bytes], Delivery | None]  # what becomes of an answer; None: it is lost


def arrives(parcel: Parcel, answer: bytes) -> Delivery:
    return Delivery(parcel.node, parcel.ticket, answer)


class LocalWire:
    """Sites by the name of their node. A site answers when it is asked; `fate` may lose, hold back or spoil that."""

    def __init__(self, sites: Mapping[str, Site], fate: Fate = arrives) -> None:
        self.sites, self.fate = sites, fate
        self.queue: list[Delivery] = []

    def nodes(self) -> list[str]:
        return list(self.sites)

    def send(self, parcels: Sequence[Parcel]) -> None:
        for parcel in parcels:
            delivery = self.fate(parcel, self.sites[parcel.node].answer(parcel.content))
            self.queue.append(delivery or Delivery(parcel.node, parcel.ticket, error="the answer was lost"))

    def receive(self, seconds: float) -> list[Delivery]:
        found, self.queue = self.queue, []
        if not found:
            time.sleep(min(seconds, PAUSE))
        return found

    def give_up(self, tickets: Sequence[str]) -> None:
        """Whatever was asked has been answered already."""

    def close(self) -> None:
        self.queue = []
