"""The command `sweep`: a search over settings, its table, and the settings of the best."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fedsaddle import recipes
from fedsaddle.contracts import SettingError
from fedsaddle.report.folder import replace_file
from fedsaddle.report.tables import number
from fedsaddle.studies import points, study, sweep, trials
from fedsaddle.studies.errands import PRUNED
from fedsaddle.studies.trials import Outcome, Sweep

out, err = Console(), Console(stderr=True)
SHOWN = 25  # trials of a method in the table


def add_to(app: typer.Typer) -> None:
    @app.command("sweep")
    def sweep_(
        what: Annotated[str, typer.Argument(metavar="FILE or NAME", help="a settings file or a recipe")],
        only: Annotated[list[str] | None, typer.Option("--only", help="label of a method; all if not given")] = None,
        grid: Annotated[list[str] | None, typer.Option("--grid", help="section.key=v1,v2,v3: values to try")] = None,
        paper_grid: Annotated[bool, typer.Option("--paper-grid", help="the values that the paper tried: the recipe's "
                                                                      "[grid]")] = False,
        search: Annotated[list[str] | None, typer.Option(
            "--search", help="section.key=low:high, with :log or :int behind: a range that Optuna searches")] = None,
        n_trials: Annotated[int | None, typer.Option("--trials", min=1, help="points of every method with --search; "
                                                                             f"{sweep.TRIALS} if not given")] = None,
        seeds: Annotated[int, typer.Option(min=1, help="runs of every point")] = 3,
        measure: Annotated[str, typer.Option(help="what is compared, such as test.auc; of the paper, or the first of "
                                                  "the problem, if not given")] = "",
        lower: Annotated[bool | None, typer.Option("--lower/--higher", help="which is better; known for our own "
                                                                            "measures")] = None,
        value: Annotated[str, typer.Option(help="of a curve: end, or best")] = "",
        jobs: Annotated[int | None, typer.Option(min=1, help="runs at once; as the machine has cores")] = None,
        set_: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, over the file")] = None,
        prune: Annotated[bool, typer.Option(help="give up a point whose first seed is worse than the median")] = True,
        target: Annotated[Path | None, typer.Option("--out", help="folder; runs/sweep-NAME if not given")] = None,
        best: Annotated[Path | None, typer.Option(help="file for the best settings; OUT/best.toml")] = None,
    ) -> None:
        """Try many settings, each with several seeds, and write the best as a settings file.

        What is done is skipped, what was stopped goes on: call it again after Ctrl-C or a crash.
        """
        if value not in ("", "end", "best"):
            raise SettingError(f"--value {value!r}: must be end or best")
        loaded = study.load(what)
        if paper_grid and not loaded.grid:
            raise SettingError(f"--paper-grid: {what} has no [grid]; give values with --grid")
        axes = {**points.from_table(loaded.grid if paper_grid else {}), **points.choices(grid or ()),
                **points.ranges(search or ())}
        asked = sweep.Asked(axes, tuple(only or ()), seeds, n_trials, measure, None if lower is None else not lower,
                            value, jobs, prune)
        folder = target or Path("runs") / f"sweep-{Path(what).stem}"
        file = best or folder / "best.toml"
        _refuse_to_overwrite(file, recipes.path(what) or Path(what))
        plan = sweep.planned(loaded, set_ or (), asked, folder)
        _conclude(plan, _carried_out(plan), file)


def _refuse_to_overwrite(file: Path, source: Path) -> None:
    if file.exists() and (file.resolve() == source.resolve()
                          or not file.read_text(encoding="utf-8").startswith(trials.HEAD)):
        raise SettingError(f"--best {str(file)!r}: is there already and was not written by a sweep; give another name")


def _carried_out(plan: Sweep) -> list[Outcome]:
    try:
        with _bar(plan) as watch:
            return sweep.carry_out(plan, watch)
    except sweep.Interrupted:
        err.print(f"stopped with checkpoints in {plan.out}; the same command goes on", soft_wrap=True)
        raise typer.Exit(130) from None


@contextmanager
def _bar(plan: Sweep) -> Iterator[sweep.Watch]:
    """Over all runs, with the best so far."""
    columns: list[Any] = [TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                          TimeRemainingColumn(), TextColumn("{task.description}")]
    with Progress(*columns, console=err) as progress:
        task = progress.add_task("", total=None)

        def watch(done: float, total: int, outcomes: Sequence[Outcome]) -> None:
            found = [number(one.score.mean) for one in trials.best(plan, outcomes).values()]
            shown = f"best {', '.join(found)}"[:24] if found else ""
            progress.update(task, completed=done, total=total, description=shown)

        yield watch


def _conclude(plan: Sweep, outcomes: Sequence[Outcome], file: Path) -> None:
    for label in plan.axes:
        out.print(table(plan, label, [one for one in outcomes if one.trial.label == label]))
    for why in dict.fromkeys(why for one in outcomes for why in one.died.values()):
        count = sum(why in one.died.values() for one in outcomes)
        err.print(f"[yellow]died in {count} trial{'s' if count > 1 else ''}: {escape(why)}[/yellow]", soft_wrap=True)
    text = trials.best_file(plan, outcomes, shlex.join(["fedsaddle", *sys.argv[1:]]))
    out.print(f"all numbers: {plan.out / 'sweep.json'}", soft_wrap=True)
    if not text:
        raise SettingError("sweep: a seed died in every trial, so there is no best; try smaller step sizes")
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, text.encode())
    out.print(f"the best settings: fedsaddle run {file}", soft_wrap=True)


def table(plan: Sweep, label: str, outcomes: Sequence[Outcome]) -> Table:
    """The trials of a method, the best first."""
    goal, pruned = plan.goal, sum(one.state == PRUNED for one in outcomes)
    shown = Table(title=f"{plan.name(label)}: {len(outcomes)} trials, {pruned} pruned; {goal.measure}, {goal.value}, "
                        f"{'higher' if goal.higher else 'lower'} is better",
                  caption=f"and {len(outcomes) - SHOWN} more in sweep.json" if len(outcomes) > SHOWN else None)
    cells: dict[str, Callable[[Outcome], str]] = {"trial": lambda one: str(one.trial.number)}
    cells |= {key.removeprefix("algorithm."): lambda one, key=key: trials.shown(one.trial.values[key])  # type: ignore[misc]
              for key in plan.axes[label]}
    cells |= {
        f"mean of {plan.seeds}" if plan.seeds > 1 else "value": lambda one: trials.score_text(one.score),
        "died": lambda one: f"{len(one.died)} of {plan.seeds}" if one.died else "",
        "pruned": lambda one: f"round {one.pruned_at}" if one.pruned_at else "",
    }
    for name in cells:
        shown.add_column(name, justify="right")
    for one in outcomes[:SHOWN]:
        shown.add_row(*(escape(cell(one)) for cell in cells.values()))
    return shown
