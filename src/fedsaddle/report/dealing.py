"""Pictures of how rows are dealt out: clients x classes, for the terminal and as a file."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from rich.table import Table
from rich.text import Text
from torch import Tensor

from fedsaddle.contracts import SettingError

SHADES = " ░▒▓█"  # seen without colours too
COLOURS = ("", "grey42", "dodger_blue3", "orange3", "bright_white")
LINES = 40  # more clients than that are shown in groups of neighbours
WIDEST = 100  # more classes than that are shown in groups as well


class Deal(NamedTuple):
    """Rows of every client and class."""

    title: str
    counts: Tensor  # [clients, classes]
    names: tuple[str, ...]  # of the classes
    positives: Tensor | None = None  # rows of every client that are positives as the problem sees them
    clients: tuple[str, ...] = ()  # what each client is, where it has a name


LEGEND = "a shade is a class's share of a client's rows: ░ over 0, ▒ over 10 %, ▓ over 30 %, █ over 60 %"


def summary(deal: Deal) -> str:
    """In words: how unequal the clients are."""
    size, held = deal.counts.sum(1), (deal.counts > 0).sum(1)
    text = (f"{len(size):,} clients, {int(size.sum()):,} rows: {int(size.min()):,} to {int(size.max()):,} a client, "
            f"median {int(size.median()):,}")
    if deal.counts.shape[1] > 1:
        text += f"; {int(held.min())} to {int(held.max())} of {deal.counts.shape[1]} classes a client"
    if deal.positives is not None:
        none = int((deal.positives == 0).sum())
        text += (f"; positives {int(deal.positives.sum()):,} ({float(deal.positives.sum() / size.sum()):.2%}), "
                 f"clients without: {none}")
    return text


def heat(deal: Deal) -> Table:
    """One line a client, or a group of neighbours: the share of each class in its rows, as a shade."""
    clients, classes = deal.counts.shape
    table = Table(title=deal.title, padding=(0, 1), show_edge=False, title_justify="left")
    group = -(-clients // LINES)
    most = int(deal.counts.sum(1).max())
    table.add_column("clients" if group > 1 else "client", justify="right", no_wrap=True)
    table.add_column("rows", justify="right", no_wrap=True)
    if deal.positives is not None:
        table.add_column("positives", justify="right", no_wrap=True)
    wide = max(1, min(4, 60 // min(classes, WIDEST)))
    table.add_column(_heads(deal, wide), no_wrap=True)
    for first in range(0, clients, group):
        rows = deal.counts[first : first + group].sum(0)
        last = min(first + group, clients) - 1
        who = f" {deal.clients[first]}" if deal.clients and group == 1 else ""
        cells = [f"{first}{who}" if group == 1 else f"{first}-{last}", f"{int(rows.sum()):,}"]
        if deal.positives is not None:
            cells.append(f"{int(deal.positives[first : first + group].sum()):,}")
        size = int(rows.sum())
        table.add_row(*cells, _line(_narrowed(rows), wide) if classes > 1 else "█" * -(-40 * size // (most * group)))
    return table


def _heads(deal: Deal, wide: int) -> str:
    classes = deal.counts.shape[1]
    if classes == 1:
        return ""
    if classes > WIDEST or wide < 2:
        return f"classes 0 to {classes - 1}"
    return "".join(str(number).rjust(wide) for number in range(classes))


def _narrowed(rows: Tensor) -> Tensor:
    """Neighbouring classes added up where there are too many to show."""
    group = -(-len(rows) // WIDEST)
    return torch.stack([part.sum() for part in rows.split(group)])


def _line(rows: Tensor, wide: int) -> Text:
    text = Text()
    for share in (rows / rows.sum().clamp(min=1)).tolist():
        level = (share > 0) + (share > 0.1) + (share > 0.3) + (share > 0.6)
        text.append(SHADES[level] * wide, COLOURS[level])
    return text


def picture(deal: Deal, path: Path) -> None:
    """The counts as an image file, PNG or SVG by its ending."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise SettingError(f"--out {str(path)!r}: must end in .png, .svg or .pdf")
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise SettingError("--out: matplotlib is not installed, which draws pictures; install the extra `plots`: "
                           "pip install 'fedsaddle[plots]'") from error
    clients, classes = deal.counts.shape
    figure = Figure(figsize=(min(4 + 0.35 * classes, 14), min(2.5 + 0.12 * clients, 12)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(deal.counts.numpy(), aspect="auto", interpolation="nearest", cmap="magma_r")
    figure.colorbar(image, ax=axes, label="rows")
    axes.set(title=deal.title, xlabel="class", ylabel="client")
    if classes <= 25:
        axes.set_xticks(range(classes), deal.names or [str(number) for number in range(classes)],
                        rotation=45 if deal.names else 0, ha="right" if deal.names else "center")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
