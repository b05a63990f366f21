"""The nodes of a run, as a table to look at while it goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

COLOURS = {"free": "green", "asked": "cyan", "slow": "yellow", "away": "red", "set aside": "red"}


def nodes_table(watched: Sequence[Any], record: Mapping[str, Any], rounds: int) -> Table:
    """State, last seen, latency, bytes and what was refused, node by node."""
    table = Table(title=f"round {record.get('round', 0)} of {rounds}: {record.get('answered', 0)} of "
                        f"{record.get('asked', 0)} answered, {record.get('late', 0)} late")
    for name in ("node", "state", "seen", "latency", "sent", "received", "answered", "late", "refused", "last reason"):
        table.add_column(name, justify="left" if name in ("node", "state", "last reason") else "right")
    now = time.time()
    for node in watched:
        table.add_row(
            escape(node.name), f"[{COLOURS.get(node.state, 'white')}]{node.state}[/]",
            f"{now - node.seen:.0f} s ago" if node.seen else "never", f"{node.latency:.1f} s" if node.seen else "",
            bytes_told(node.bytes_down), bytes_told(node.bytes_up), str(node.answered), str(node.late),
            str(node.refused), escape(node.last_reason[:60]))
    return table


def bytes_told(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
