"""The commands that look at run folders: `report` writes a page, `compare` shows a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedsaddle.contracts import SettingError
from fedsaddle.report import page, plots
from fedsaddle.report.page.markup import ended_text, listed
from fedsaddle.report.results import budget, chosen, higher, results, winners
from fedsaddle.report.series import COMPLETE, Series, gather, settings, study_of

out, err = Console(), Console(stderr=True)
Folders = Annotated[list[Path], typer.Argument(metavar="DIR...", help="run folders, or folders above run folders")]


def add_to(app: typer.Typer) -> None:
    """Add both commands."""

    @app.command()
    def report(
        folders: Folders,
        target: Annotated[Path | None, typer.Option("--out", help="the page; report.html in the first folder if not "
                                                                  "given")] = None,
        pictures: Annotated[Path | None, typer.Option("--plots", help="folder for CSV, PNG and SVG files; plots beside "
                                                                      "the page if not given")] = None,
        title: Annotated[str, typer.Option(help="of the page")] = "",
    ) -> None:
        """Write one HTML page about some runs, which needs no network, and the plots as files."""
        target = target or folders[0] / "report.html"
        if target.suffix.lower() not in (".html", ".htm") or target.is_dir():
            raise SettingError(f"--out {str(target)!r}: must be a file that ends in .html")
        written = page.write(folders, target, title, pictures)
        out.print(f"report: {written}", soft_wrap=True, highlight=False)
        out.print(f"plots: {pictures or target.parent / 'plots'}", soft_wrap=True, highlight=False)
        if not plots.available():
            err.print(f"[yellow]{escape(plots.MISSING)}[/yellow]", soft_wrap=True)

    @app.command()
    def compare(
        folders: Folders,
        measure: Annotated[str | None, typer.Option(help="such as test.auc; the problem's own if not given")] = None,
    ) -> None:
        """Compare runs in a table: mean and standard deviation over seeds, and the settings that differ."""
        series = gather(folders)
        study = study_of(folders)
        name = chosen(series, measure, study)
        out.print(_comparison(series, name, int(study.get("smooth", 1)) if name == study.get("measure") else 1))
        for told in _cut_short(series):
            out.print(told, style="red", markup=False, highlight=False)
        if len(series) > 1:
            out.print(_differences(series))


def _comparison(series: list[Series], measure: str, smooth: int) -> Table:
    """A line per series; a mean above its standard deviation, so that it fits into a narrow terminal."""
    lines, floats = results(series, measure, smooth), budget(series)
    columns = {"final": "at the\nend", "best": "best"} | ({"equal": "at equal\nfloats"} if floats is not None else {})
    title = f"{measure}, mean ± standard deviation over seeds"
    title += f"; each value the mean of {smooth} evaluations" if smooth > 1 else ""
    table = Table(box=SIMPLE, show_edge=False, padding=(0, 1, 0, 0),
                  title=title if floats is None else f"{title}; equal floats: {floats:,}")
    table.add_column("method", overflow="fold")
    for head in ("seeds", "rounds", *columns.values(), "floats\nreceived", "died"):
        table.add_column(head, justify="right", no_wrap=True)
    best = {column: winners(lines, column, higher(measure)) for column in columns}
    for at, line in enumerate(lines):
        texts = {column: getattr(line, column).text.replace(" ±", "\n±") for column in columns}
        table.add_row(escape(line.label), str(len(line.seeds)), line.rounds_text,
                      *(f"[bold]{text}[/bold]" if at in best[column] else text for column, text in texts.items()),
                      "-" if line.floats_up.mean is None else f"{line.floats_up.mean:,.0f}",
                      f"[red]{line.died}[/red]" if line.died else "0")
    return table


def _cut_short(series: list[Series]) -> list[str]:
    """A line for every run that is not complete."""
    return [ended_text({"label": one.label, "seed": run.seed, "how": run.state,
                        "round": run.records[-1]["round"] if run.records else 0, **run.ended})
            for one in series for run in one.runs if run.state != COMPLETE]


def _differences(series: list[Series]) -> Table:
    different = settings(series)[1]
    table = Table(title="settings that differ" if different else "no setting differs")
    for name in ("setting", *(one.label for one in series)):
        table.add_column(escape(name), overflow="fold")
    for name, values in different.items():
        table.add_row(escape(name), *(escape(listed(value)) for value in values))
    return table
