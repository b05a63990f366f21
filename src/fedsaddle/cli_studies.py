"""The command `reproduce`: a paper's experiment over seeds, its table, its claims and its page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    track,
)
from rich.table import Table

from fedsaddle.report import page
from fedsaddle.report.folder import replace_file
from fedsaddle.studies import errands, reproduce, study
from fedsaddle.studies.claims import FAILS, HOLDS
from fedsaddle.studies.errands import COMPLETE, DIVERGED, FAILED, STOPPED, Errand, News
from fedsaddle.studies.judge import with_judge
from fedsaddle.studies.text import markdown

out, err = Console(), Console(stderr=True)
COLOURS = {HOLDS: "green", FAILS: "red"}


def add_to(app: typer.Typer) -> None:
    @app.command("reproduce")
    def reproduce_(
        name: Annotated[str, typer.Argument(help="a recipe (`fedsaddle list recipes`), or a settings file")],
        seeds: Annotated[int | None, typer.Option(min=1, help="runs of every method; 3 if not given")] = None,
        quick: Annotated[bool, typer.Option("--quick", help="a miniature of minutes, labelled as such")] = False,
        only: Annotated[list[str] | None, typer.Option("--only", help="label of a method; all if not given")] = None,
        set_: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, over the file")] = None,
        jobs: Annotated[int | None, typer.Option(min=1, help="runs at once; as the machine has cores")] = None,
        target: Annotated[Path | None, typer.Option("--out", help="folder; results/NAME if not given")] = None,
        no_run: Annotated[bool, typer.Option("--no-run", help="run nothing: the numbers and the page of what the "
                                             "folder holds, unfinished runs as far as they are")] = False,
    ) -> None:
        """Run an experiment of a paper over seeds, and put its numbers and claims beside the paper's.

        What is done is skipped, what was stopped goes on: call it again after Ctrl-C or a crash. While it is running,
        --no-run in another window shows how it stands.
        """
        plan = reproduce.planned(study.load(name), seeds, quick, only or (), set_ or ())
        folder = target or Path("results") / (f"{plan.study.name}-quick" if quick else plan.study.name)
        plan = with_judge(plan, folder, _judging, train=not no_run)
        if no_run:  # on any machine: the runs may have come from one with another device
            errands.see_to(reproduce.errands(plan, folder, alone=False))
        else:
            at_once = jobs or errands.usual_jobs(plan.settings)
            _complain(carry_out(reproduce.errands(plan, folder, alone=at_once == 1), at_once).values())
        got = reproduce.results(plan, folder, unfinished=no_run)
        reproduce.write(plan, folder, got)
        _show(plan, got)
        written = page.write([folder], folder / "report.html", title=plan.study.about, plots=folder / "plots")
        replace_file(folder / "README.md", markdown(plan, got, folder).encode())
        out.print(f"page: {written}\nfolder: {folder}", soft_wrap=True)


def carry_out(whole: Sequence[Errand], jobs: int) -> dict[Path, News]:
    """With a bar over all rounds of all runs."""
    with bar(sum(errand.settings.run.rounds for errand in whole)) as tell:
        found = errands.carry_out(whole, jobs, tell)
    if any(news.state == STOPPED for news in found.values()) or len(found) < len(whole):
        err.print("stopped with checkpoints; the same command goes on")
        raise typer.Exit(130)
    return found


@contextmanager
def bar(rounds: int) -> Iterator[Callable[[News], None]]:
    done: dict[Path, int] = {}
    columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(),
                          TimeRemainingColumn()]
    with Progress(*columns, console=err) as progress:
        task = progress.add_task("rounds", total=rounds)

        def tell(news: News) -> None:
            done[news.folder] = max(done.get(news.folder, 0), news.round)
            progress.update(task, completed=sum(done.values()),
                            description="/".join(news.folder.parts[-2:]) + (f" {news.state}" if news.state else ""))

        yield tell


def _judging(steps: Sequence[Any], description: str) -> Iterable[Any]:
    return track(steps, f"judge of the images: {description}", console=err)


def _complain(found: Any) -> None:
    runs: dict[tuple[str, str], list[str]] = {}  # what all lack, such as their data, is told once
    for news in found:
        if news.state in (FAILED, DIVERGED):
            runs.setdefault((news.state, news.why), []).append("/".join(news.folder.parts[-2:]))
    for (state, why), names in runs.items():
        told = names[0] if len(names) == 1 else f"{len(names)} runs ({', '.join(names)})"
        err.print(f"[yellow]{escape(told)}: {state}: {escape(why)}[/yellow]", soft_wrap=True)
    if found and not any(news.state in (COMPLETE, DIVERGED) for news in found):
        raise typer.Exit(1)


def _show(plan: reproduce.Plan, got: reproduce.Results) -> None:
    (method, _, *others), *rows = reproduce.table(plan, got)
    paper = plan.study.paper
    title = plan.study.about + (" (miniature: --quick)" if plan.quick else "") + f"\n{paper.measure}"
    shown = Table(title=title, caption=f"published: {paper.table}" if paper.table else None, box=SIMPLE,
                  show_edge=False, padding=(0, 1, 0, 0))
    shown.add_column(method, overflow="fold")
    for name in (paper.value, *others):
        shown.add_column(name.replace("at equal ", "at equal\n"), justify="right", overflow="fold")
    for label, *cells in rows:  # a mean above its spread: fits into a narrow terminal
        shown.add_row(label, *(cell.replace(" ±", "\n±") for cell in cells))
    out.print(shown)
    for line in got.lines:
        for death in line.died:
            out.print(f"[yellow]{escape(f'{line.label}, {death}')}[/yellow]", soft_wrap=True)
        for how_far in line.unfinished:
            out.print(f"[yellow]{line.label}, {how_far}: unfinished, counted as far as it is[/yellow]", soft_wrap=True)
    for verdict in got.verdicts:
        colour = COLOURS.get(verdict.verdict, "yellow")
        out.print(f"[{colour}]{verdict.verdict}[/{colour}]: {verdict.text}\n    {verdict.detail}", soft_wrap=True)
