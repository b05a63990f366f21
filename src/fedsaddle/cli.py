"""The command line: thin, over `runs` and the registries."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from fedsaddle import (
    cli_data,
    cli_images,
    cli_keys,
    cli_provision,
    cli_report,
    cli_sites,
    cli_studies,
    cli_sweep,
    cli_table,
    recipes,
)
from fedsaddle.assemble import deal, job_from_settings
from fedsaddle.catalogue import CATALOGUES, entries
from fedsaddle.config import Settings, method, read, settle, tables_of
from fedsaddle.config.validation import nearest
from fedsaddle.contracts import SettingError
from fedsaddle.engine.ranks import PartnerLost
from fedsaddle.engine.training import Diverged, Record
from fedsaddle.report.folder import RunFolder
from fedsaddle.report.results import usual_measure
from fedsaddle.report.tables import calibrated, comparison, last_measures, listing, number
from fedsaddle.runs import carry_out, interruptible
from fedsaddle.sites.asking import SitesFailed
from fedsaddle.sites.wire import TransportFailed, WireLost

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  help="Federated minimax optimisation: simulations, the papers' experiments, and real sites.")
out, err = Console(), Console(stderr=True)
HELP = {  # headings of `fedsaddle --help`, in this order, and the commands below each
    "Runs": ("run", "resume", "list", "report", "compare"),
    "Experiments": ("reproduce", "sweep", "classifier", "images"),
    "Your own table": ("fit", "score"),
    "Real sites": ("keys", "provision", "doctor", "server", "node", "replay", "deal"),
}


@app.command()
def run(
    what: Annotated[str, typer.Argument(metavar="[FILE or NAME]", help="a settings file or a recipe")] = "digits-auc",
    set_: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, over the file")] = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="label of a method; all if not given")] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="run folder; runs/NAME if not given")] = None,
) -> None:
    """Run a settings file or a recipe, and write a run folder."""
    path = recipes.path(what) or Path(what)
    if not path.exists() and not what.endswith(".toml"):
        raise SettingError(f"run {what!r}: is neither a file nor a recipe{nearest(what, recipes.names())}; "
                           f"recipes: {', '.join(recipes.names())}")
    settings = _chosen(settle(read(path), set_ or ()), only or ())
    target = RunFolder(folder or _free(Path("runs") / path.stem))
    dealt = deal(settings)
    jobs = {label: job_from_settings(settings, label, dealt=dealt) for label in settings.algorithms}  # errors end here
    if _first():
        target.create(tables_of(settings))
    _carry_out_all(settings, target, jobs)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="the run folder")],
    rounds: Annotated[int | None, typer.Option(min=1, help="as many in all, more than it was to have")] = None,
) -> None:
    """Go on with a run that was stopped or killed, as if nothing had happened; with --rounds, with a complete one."""
    if not (folder / "run.toml").exists():
        raise SettingError(f"resume {str(folder)!r}: holds no run.toml; give a folder that `fedsaddle run` wrote")
    settings, target = settle(read(folder / "run.toml")), RunFolder(folder)
    if rounds is not None:
        settings = _longer(settings, target, rounds)
    _carry_out_all(settings, target, {})
    cli_table.conclude(settings, target)


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(metavar="|".join(CATALOGUES))],
    as_json: Annotated[bool, typer.Option("--json", help="as JSON, with everything known")] = False,
) -> None:
    """What there is to choose from."""
    if what not in CATALOGUES:
        raise SettingError(f"list {what!r}: is not a catalogue{nearest(what, CATALOGUES)}; "
                           f"choose one of {', '.join(CATALOGUES)}")
    rows = entries(what)
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
    else:
        out.print(listing(what, rows))


def _longer(settings: Settings, target: RunFolder, rounds: int) -> Settings:
    """The settings with more rounds, in all folders of the run. Of several processes the first one writes them."""
    longer = replace(settings, run=replace(settings.run, rounds=rounds))
    if not _first():
        return longer
    if rounds <= settings.run.rounds:
        raise SettingError(f"--rounds {rounds}: the run has {settings.run.rounds} already, and rounds can only be "
                           "added; give more, or leave it out")
    for label in filter(None, longer.algorithms):
        folder, own = RunFolder(target.path / label), method(longer, label)
        if own.run.rounds == rounds and (folder.path / "run.toml").exists():  # others have rounds of their own
            folder.lengthen(tables_of(own))
    cli_table.reopen(target)
    target.lengthen(tables_of(longer))  # last: until then the same call can be made again
    return longer


def _carry_out_all(settings: Settings, target: RunFolder, jobs: dict[str, Any]) -> None:
    """Every method of the settings in its folder, one after the other, then the table."""
    headline = _headline(settings)
    folders = {label: RunFolder(target.path / label) if label else target for label in settings.algorithms}
    with interruptible() as interrupted, _bars() as bars:
        for label, folder in folders.items():
            if folder.complete:
                continue
            own = method(settings, label)
            job = jobs.get(label) or job_from_settings(settings, label, folder.checkpoints)
            for complaint in job.complaints:
                err.print(f"[yellow]{complaint}[/yellow]")
            if _first() and label and not (folder.path / "run.toml").exists():
                folder.create(tables_of(own))
            name = label or settings.algorithms[label].name
            bar = bars.add_task(name, total=own.run.rounds, completed=job.progress.round, shown="")

            def watch(record: Record, bar: Any = bar, name: str = name) -> None:
                bars.update(bar, completed=record["round"])
                if "measures" in record:
                    bars.update(bar, shown=_shown(record, headline))
                    for alarm in record["alarms"]:
                        bars.console.print(f"[yellow]{name}, round {record['round']}: {alarm}[/yellow]")

            result = carry_out(job, own.run, folder, watch, interrupted)
            for line in calibrated(folder.calibration() if _first() else {}):
                bars.console.print(f"[dim]{name}: {line}[/dim]", highlight=False)
            if not result.complete:
                err.print(f"stopped with a checkpoint; go on with: fedsaddle resume {target.path}", soft_wrap=True)
                raise typer.Exit(130)
    if _first():
        _show_end(settings, folders)
        out.print(f"run folder: {target.path}", soft_wrap=True)


def _headline(settings: Settings) -> str:
    return usual_measure(settings.problem.name, settings.run.headline, settings.run.image_samples)


def _show_end(settings: Settings, folders: dict[str, RunFolder]) -> None:
    """The table of finished runs."""
    out.print(comparison({label or settings.algorithms[label].name: folder.records()
                          for label, folder in folders.items()}, _headline(settings)))


def _first() -> bool:
    """Whether this process is the one that writes, of those that `torchrun` may have started."""
    return os.environ.get("RANK", "0") == "0"


def _chosen(settings: Settings, labels: Sequence[str]) -> Settings:
    """The settings with these methods only."""
    for label in labels:
        if settings.single or label not in settings.algorithms:
            known = [name for name in settings.algorithms if name]
            raise SettingError(f"--only {label!r}: is no method of these settings{nearest(label, known)}; "
                               + (f"choose one of {', '.join(known)}" if known else "there is only one, leave it out"))
    kept = {label: entry for label, entry in settings.algorithms.items() if label in labels or not labels}
    return replace(settings, algorithms=kept,
                   overrides={label: changes for label, changes in settings.overrides.items() if label in kept})


def _shown(record: Record, headline: str) -> str:
    return ", ".join(f"{name} {headline} {number(values.get(headline))}"
                     for name, values in last_measures([record]).items() if headline in values)


def _free(path: Path) -> Path:
    """The path, or with a number behind it where that is taken."""
    taken = [path, *(path.with_name(f"{path.name}-{n}") for n in range(2, 10_000))]
    return next(candidate for candidate in taken if not candidate.exists())


def _bars() -> Progress:
    return Progress(TextColumn("{task.description:>14}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                    TextColumn("{task.fields[shown]}"), console=err, disable=not _first())


def _arrange(app: typer.Typer) -> None:
    """Every command below its heading."""
    commands = {info.name or getattr(info.callback, "__name__", ""): info for info in app.registered_commands}
    for heading, names in HELP.items():
        for name in names:
            commands[name].rich_help_panel = heading
    order = [name for names in HELP.values() for name in names]
    app.registered_commands = [commands.pop(name) for name in order] + list(commands.values())


cli_table.add_to(app, _carry_out_all, _free)
cli_report.add_to(app)
cli_studies.add_to(app)
cli_sweep.add_to(app)
cli_images.add_to(app)
cli_keys.add_to(app)
cli_provision.add_to(app)
cli_sites.add_to(app, _show_end)
_arrange(app)
app.add_typer(cli_data.app, name="data", rich_help_panel="Data")


def main() -> None:
    """Entry point: errors of the user's making are one clear text, without a traceback."""
    try:
        app()
    except (SettingError, PermissionError) as error:
        err.print(Text.assemble(("error: ", "red"), str(error)), soft_wrap=True)
        raise SystemExit(2) from None
    except (Diverged, PartnerLost, SitesFailed, TransportFailed, WireLost) as error:
        err.print(Text.assemble(("error: ", "red"), str(error)), soft_wrap=True)
        raise SystemExit(1) from None
