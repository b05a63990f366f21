"""The commands for a table of one's own: `fit` trains on it, `score` applies the model to another."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from math import isnan
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from fedsaddle import fitting
from fedsaddle.assemble import deal, job_from_settings
from fedsaddle.config import Settings, tables_of
from fedsaddle.contracts import SettingError
from fedsaddle.data.table_source import CLIENT, Prepared
from fedsaddle.fitting import Report
from fedsaddle.metrics import auc, average_precision
from fedsaddle.report.folder import RunFolder, plain
from fedsaddle.report.tables import number
from fedsaddle.runs import threads

out, err = Console(), Console(stderr=True)
Show = Callable[[Settings, RunFolder, dict[str, Any]], None]
SHOWN = 6  # names in a line
REPORT, SCORES = "report.json", "test_scores.csv"


def add_to(app: typer.Typer, carry_out_all: Show, free: Callable[[Path], Path]) -> None:
    """Add both commands. `carry_out_all` runs jobs with a bar; `free` finds a folder that is not taken."""

    @app.command()
    def fit(
        file: Annotated[Path, typer.Argument(help="a CSV, Parquet or npz file")],
        label: Annotated[str, typer.Option(help="column of the label")],
        client: Annotated[str, typer.Option(help="column that names the client of each row")],
        split: Annotated[str | None, typer.Option(help="column that says train or test; a quarter of every client's "
                                                       "rows is held out if not given")] = None,
        positive: Annotated[str | None, typer.Option(help="label of the positives, against all others")] = None,
        ignore: Annotated[list[str] | None, typer.Option(help="column that is no feature; may be repeated")] = None,
        algorithm: Annotated[str, typer.Option(help="of `fedsaddle list algorithms`")] = fitting.ALGORITHM,
        model: Annotated[str, typer.Option(help="of `fedsaddle list models`")] = fitting.MODEL,
        rounds: Annotated[int, typer.Option(min=1)] = fitting.ROUNDS,
        seed: Annotated[int, typer.Option(help="of the held-out rows, the first weights and all draws")] = 0,
        set_: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, any other setting")] = None,
        folder: Annotated[Path | None, typer.Option("--out", help="run folder; runs/NAME if not given")] = None,
    ) -> None:
        """Train on a table of your own, and report the AUC over the held-out rows of all clients."""
        data = {"file": str(file), "label": label, "client": client, "ignore": list(ignore or ())}
        data |= {"split": split} if split else {}
        data |= {"positive_label": positive} if positive is not None else {}
        settings, prepared = fitting.settings_for(data, algorithm, model, rounds, seed, set_ or ())
        target = RunFolder(folder or free(Path("runs") / file.name.split(".")[0]))
        job = job_from_settings(settings, "", dealt=deal(settings))
        target.create(tables_of(settings))
        out.print(_described(prepared), soft_wrap=True)
        carry_out_all(settings, target, {"": job})
        _conclude(prepared, target, settings)

    @app.command()
    def score(
        folder: Annotated[Path, typer.Argument(help="a run folder that `fit` wrote")],
        file: Annotated[Path, typer.Argument(help="a CSV, Parquet or npz file with the same columns; no label needed")],
        target: Annotated[Path, typer.Option("--out", help="CSV file for the rows with their scores")],
    ) -> None:
        """Score the rows of a file with a trained model."""
        if target.exists():
            raise SettingError(f"--out {str(target)!r}: is there already; give a new name")
        scored = fitting.score_table(fitting.load(folder), file)
        _write(target, file, scored.scores)
        out.print(f"{len(scored.scores):,} rows scored: {target}", soft_wrap=True)
        if scored.targets is not None:
            out.print(_ranked(scored), soft_wrap=True)


def _described(prepared: Prepared) -> str:
    """What the file holds and what becomes of its columns."""
    data, learnt = prepared.data, prepared.preparation
    owner = data.attributes[CLIENT]
    rows, positives = len(data.train.targets), int(data.train.targets.sum())
    dropped = [f"{name} ({why})" for name, why in learnt.dropped.items()]
    more = f" and {len(dropped) - SHOWN} more" if len(dropped) > SHOWN else ""
    return "\n".join([
        f"training: {rows:,} rows of {len(owner.train.unique()):,} clients, {positives:,} positive "
        f"({positives / rows:.2%}); held out: {len(data.test.targets):,} rows, {int(data.test.targets.sum()):,} "
        "positive",
        f"{len(learnt.columns)} columns give {len(learnt.features)} features"
        + (f"; left out: {', '.join(dropped[:SHOWN])}{more}" if dropped else ""),
    ])


def reopen(target: RunFolder) -> None:
    """What `fit` found at its end is no longer true of a run that goes on."""
    for name in (REPORT, SCORES):
        (target.path / name).unlink(missing_ok=True)


def conclude(settings: Settings, target: RunFolder) -> None:
    """What `fit` does at its end, for a run that was stopped and has gone on."""
    prepared = None if (target.path / REPORT).exists() else fitting.rows_of(settings)
    if prepared is not None:
        _conclude(prepared, target, settings)


def _conclude(prepared: Prepared, target: RunFolder, settings: Settings) -> None:
    """Score the held-out rows, show how well that went, and keep both."""
    clients = prepared.data.attributes[CLIENT]
    with threads(settings.run.threads):
        scores = fitting.load(target.path).score(prepared.data.test.inputs)
    found = fitting.report(scores, prepared.data.test.targets, clients.test, clients.names)
    target.keep({SCORES: fitting.test_scores(prepared, scores),
                 REPORT: json.dumps(plain(found._asdict()), indent=1) + "\n"})
    out.print(_table(found))
    out.print(f"score other rows with: fedsaddle score {target.path} FILE --out SCORES.csv", soft_wrap=True)


def _table(found: Report) -> Table:
    table = Table(title="held-out rows", show_header=False)
    table.add_row("AUC over all clients", number(found.auc), f"{found.rows:,} rows, {found.positives:,} positive, of "
                  f"{found.clients:,} clients")
    table.add_row("average precision", number(found.average_precision), f"{found.positives / found.rows:.4f} by chance")
    if found.measured:
        table.add_row("AUC within the worst client", number(found.worst_auc),
                      f"{found.worst}: {found.worst_rows:,} rows, {found.worst_positives:,} positive; "
                      f"{found.measured:,} clients have both classes")
    return table


def _ranked(scored: fitting.Scored) -> str:
    targets = torch.from_numpy(scored.targets)
    scores, positive = scored.scores[targets >= 0], targets[targets >= 0] > 0
    value = auc(scores, positive) if len(scores) else float("nan")
    if isnan(value):
        return "no AUC: the labels in this file are of one class, or missing"
    return (f"AUC {number(value)}, average precision {number(average_precision(scores, positive))} over the "
            f"{len(scores):,} rows with a label, {int(positive.sum()):,} positive; rows that the model was trained on "
            "flatter it")


def _write(target: Path, file: Path, scores: torch.Tensor) -> None:
    """The file with its scores, whole or not at all."""
    unfinished = target.with_name(f".{target.name}.unfinished")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with unfinished.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream, lineterminator="\n").writerows(fitting.with_scores(file, scores))
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
