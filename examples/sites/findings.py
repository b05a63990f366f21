"""What a finished run across sites shows, from its records alone. Pure functions: demo.py prints what they find."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

Record = dict[str, Any]
LOST = "lost the state"  # of a site that was asked to go on from a state that it does not have


class Line(NamedTuple):
    """One node in numbers."""

    name: str
    asked: int
    answered: int
    late: int
    refused: int

    @property
    def passed_over(self) -> int:
        """Asks that went on without it: its answer came late, or never."""
        return self.asked - self.answered - self.refused


class Closed(NamedTuple):
    """An ask that went on without somebody."""

    round: int
    seconds: float
    answered: int
    asked: int


class Absence(NamedTuple):
    """Rounds in which a node did not answer, between two in which it did."""

    last: int
    back: int


def table_of(records: Sequence[Record], names: Sequence[str]) -> list[Line]:
    asks = list(_asks(records))
    return [Line(name, sum(client in ask["asked_clients"] for _, ask in asks),
                 sum(client in ask["clients"] for _, ask in asks),
                 sum(ask.get("late_clients", []).count(client) for _, ask in asks),
                 sum(refusal["node"] == name for _, ask in asks for refusal in ask["refused"]))
            for client, name in enumerate(names)]


def closed_without(records: Sequence[Record], client: int, name: str) -> list[Closed]:
    """Asks in which the client was asked, and that ended before it had said anything."""
    return [Closed(number, ask["virtual_seconds"], len(ask["clients"]), len(ask["asked_clients"]))
            for number, ask in _asks(records)
            if client in ask["asked_clients"] and client not in ask["clients"]
            and all(refusal["node"] != name for refusal in ask["refused"])]


def absence(records: Sequence[Record], client: int, killed_after: int) -> Absence | None:
    """How long a client was away that was killed after a round; None where it did not answer before or again."""
    answered = [number for number, ask in _asks(records) if client in ask["clients"]]
    before, after = [n for n in answered if n <= killed_after + 1], [n for n in answered if n > killed_after + 1]
    return Absence(before[-1], after[0]) if before and after else None


def has_answered(records: Sequence[Record], client: int) -> bool:
    return any(client in ask["clients"] for _, ask in _asks(records))


def owes(records: Sequence[Record], client: int) -> bool:
    """Whether a client was asked, and neither answered nor came late so far: it is not asked again before it does."""
    owing = False
    for _, ask in _asks(records):
        if client in ask.get("late_clients", []):
            owing = False
        if client in ask["asked_clients"]:
            owing = client not in ask["clients"]
    return owing


def reasons(records: Sequence[Record], name: str) -> list[tuple[int, str]]:
    """The refusals of a node: the round and the reason."""
    return [(number, refusal["reason"]) for number, ask in _asks(records) for refusal in ask["refused"]
            if refusal["node"] == name]


def told(record: Record, names: Sequence[str]) -> str:
    """A round in a line."""

    def named(clients: Sequence[int]) -> str:
        return " ".join(names[client] for client in clients) or "nobody"

    asks = [f"asked {named(ask['asked_clients'])}; used {named(ask['clients'])}; {ask['virtual_seconds']:.1f} s"
            + "".join(f"; [yellow]{one['node']}: {one['reason']}[/yellow]" for one in ask["refused"])
            for ask in record["asks"]]
    auc = record.get("measures", {}).get("test", {}).get("auc")
    return f"round {record['round']:2}: {' | '.join(asks)}" + (f"  [green]test AUC {auc:.4f}[/green]" if auc else "")


def answers_around(records: Sequence[Record], client: int, round: int) -> str:
    away = absence(records, client, round)
    return f"used until round {away.last}, and again from round {away.back} on" if away else "it never came back"


def replay_numbers(text: str) -> tuple[float, float, float]:
    """The measure at the sites, the simulation's, and the difference of the solutions, from what `replay` prints."""
    found = re.search(r"\w+ (\d\.\d+)\W+\w+ (\d\.\d+)\W+(\d\.\d+e[+-]\d+)", text)
    if not found:
        raise ValueError("replay printed no result")
    sites, simulation, off = (float(part) for part in found.groups())
    return sites, simulation, off


class Seen(NamedTuple):
    """What the run was put through, as far as records cannot know it."""

    slow: int
    sleep: float  # seconds that the slow site slept at a time
    killed: int
    killed_after: int  # round
    control: float  # norm of the control in the dead site's file of the state `start`; 0: there was no such file
    start: tuple[int, ...]  # the state that the server would let it start from
    end: tuple[int, ...]  # the state that stands at the end
    unworked: int  # the site whose worker was killed
    unworked_after: int  # round


def complaints(records: Sequence[Record], names: Sequence[str], seen: Seen, replay: str) -> list[str]:
    """What is not as it should be; nothing where all is well."""
    return [*_of_slow(records, names, seen), *_of_killed(records, names, seen), *_of_worker(records, names, seen),
            *_of_replay(replay)]


def _of_slow(records: Sequence[Record], names: Sequence[str], seen: Seen) -> Iterator[str]:
    asks = sorted(closed_without(records, seen.slow, names[seen.slow]), key=lambda ask: ask.seconds)
    if not asks:
        yield f"no ask ended without {names[seen.slow]}, the slow one"
    elif asks[len(asks) // 2].seconds >= seen.sleep:
        yield f"asks without {names[seen.slow]} took {asks[len(asks) // 2].seconds:.0f} s, as if it had been waited for"


def _of_killed(records: Sequence[Record], names: Sequence[str], seen: Seen) -> Iterator[str]:
    name, away = names[seen.killed], absence(records, seen.killed, seen.killed_after)
    if away is None:
        yield f"{name} did not answer before it was killed, or never again"
    elif away.back - away.last < 2:
        yield f"{name} was killed, and missed no round"
    if any(LOST in reason for _, reason in reasons(records, name)):
        yield f"{name} lost its state"
    if seen.start[0] < 0 or seen.control <= 0:
        yield f"{name} had no state on its disk to start from"
    if seen.end[0] <= seen.start[0]:
        yield f"{name} came back, and its state did not go on"


def _of_worker(records: Sequence[Record], names: Sequence[str], seen: Seen) -> Iterator[str]:
    if absence(records, seen.unworked, seen.unworked_after) is None:
        yield f"{names[seen.unworked]} did not answer again after its worker was killed"


def _of_replay(text: str) -> Iterator[str]:
    try:
        sites, simulation, off = replay_numbers(text)
    except ValueError as error:
        yield str(error)
        return
    if sites != simulation:
        yield f"the sites measured {sites}, the simulation with the same replies {simulation}"
    if off >= 1e-5:
        yield f"the solutions of the sites and of the simulation differ by {off:.1e}"


def _asks(records: Sequence[Record]) -> Iterator[tuple[int, Record]]:
    for record in records:
        for ask in record["asks"]:
            yield record["round"], ask
