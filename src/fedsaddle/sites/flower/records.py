"""Bytes as Flower's records, the same in both directions: what the couriers put into a message and take out of it."""

from __future__ import annotations

from typing import NamedTuple

from flwr.app import ConfigRecord, RecordDict

PIECE = 4 << 20  # bytes
KIND = "query"  # Flower's word for a message that neither trains nor evaluates: it must not guess what we do


class Letter(NamedTuple):
    ticket: str
    content: bytes = b""
    error: str = ""


def pack(letter: Letter) -> RecordDict:
    """The content in records of its own: Flower stores equal records once, so a model for many nodes goes up once, and
    carries several at a time, so 100 MB take half as long in pieces."""
    pieces = [letter.content[start:start + PIECE] for start in range(0, len(letter.content), PIECE)]
    label = ConfigRecord({"ticket": letter.ticket, "error": letter.error, "pieces": len(pieces)})
    return RecordDict({"label": label, **{f"piece {at}": ConfigRecord({"bytes": piece})
                                          for at, piece in enumerate(pieces)}})


def unpack(records: RecordDict) -> Letter:
    """ValueError if the records are not a letter: they come from another machine."""
    try:
        label = records.config_records["label"]
        ticket, error, count = label["ticket"], label["error"], label["pieces"]
        pieces = [records.config_records[f"piece {at}"]["bytes"] for at in range(len(records) - 1)]
    except KeyError as missing:
        raise ValueError(f"a message without {missing}") from None
    if not (isinstance(ticket, str) and isinstance(error, str) and count == len(pieces)
            and all(isinstance(piece, bytes) for piece in pieces)):
        raise ValueError("a message whose parts are not ours")
    return Letter(ticket, b"".join(pieces), error)  # type: ignore[arg-type]
