"""The notes of Flower's courier are those of every courier."""

from __future__ import annotations

from fedsaddle.sites.notes import receive_note, send_note

__all__ = ["receive_note", "send_note"]
