"""Commands about data: what there is and where it lies, fetch it, check it, and see how it would be dealt out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from fedsaddle import recipes
from fedsaddle.assemble import hand_of
from fedsaddle.config import Settings, lookup, named, read, settle
from fedsaddle.config.files import with_assignments
from fedsaddle.contracts import SettingError
from fedsaddle.data import store
from fedsaddle.data.dataset import DataSet
from fedsaddle.data.dealing import Hand
from fedsaddle.data.fetching import fetch as fetch_files
from fedsaddle.data.sources import SOURCES
from fedsaddle.report.dealing import LEGEND, Deal, heat, picture, summary

app = typer.Typer(no_args_is_help=True, help="Data sets: list, fetch, check, show how they are dealt out.")
out, err = Console(), Console(stderr=True)
Name = Annotated[str, typer.Argument(help="a data set of `fedsaddle data list`")]
Where = Annotated[str, typer.Option("--folder", help="folder with the files; FEDSADDLE_DATA if not given")]


@app.command("list")
def list_() -> None:
    """Every data set, and where its files are."""
    table = Table(show_lines=True)
    for title in ("name", "what it is", "where it is"):
        table.add_column(title, overflow="fold")
    for name, source in SOURCES.items():
        table.add_row(name, (source.__doc__ or "").split("\n\n")[0], store.whereabouts(source))
    out.print(table)


@app.command()
def fetch(name: Name) -> None:
    """Fetch the public original into the cache, with its checksum."""
    shelf = _shelf(name)
    form = store.fetchable(shelf)
    if form is None:
        raise SettingError(f"data {name!r}: cannot be fetched by a program; {store.remedy(shelf)}")
    for path in fetch_files(shelf, form, lambda text: out.print(text, soft_wrap=True)):
        out.print(str(path), soft_wrap=True)


@app.command()
def check(name: Name, folder: Where = "") -> None:
    """Compare the files with their checksums, then read them; nothing is fetched."""
    source = lookup(SOURCES, name, "data")
    if hasattr(source, "shelf"):
        found = store.find(source.shelf, folder)
        if found is None:
            raise SettingError(f"data {name!r}: is not at hand; {store.remedy(source.shelf)}")
        for path in found.paths:
            digest = store.check(path)
            out.print(f"{path}: {f'sha256 {digest}, as recorded' if digest else 'no digest is recorded'}",
                      soft_wrap=True)
    settings = {"name": name, **({"folder": folder} if folder else {})}
    loaded = source(**named(SOURCES, settings, "data").settings)
    if hasattr(loaded, "deal"):
        out.print(f"{name}: is made up, there is nothing to check")
        return
    data = loaded.load(0)
    shape = "x".join(map(str, data.train.inputs.shape[1:]))
    out.print(f"{name}: {len(data.train.targets):,} rows for training, {len(data.test.targets):,} for the test, of "
              f"{shape} numbers, {data.classes} classes", soft_wrap=True)
    for title, attribute in data.attributes.items():
        out.print(f"attribute {title}: {len(attribute.names)} values", soft_wrap=True)


@app.command()
def show(
    what: Annotated[str, typer.Argument(help="a data set, a recipe or a settings file")],
    partition: Annotated[str, typer.Option(help="of `fedsaddle list partitions`")] = "",
    clients: Annotated[int | None, typer.Option(min=1, help="number of clients")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="data.key=value, data.partition.key=value")] = None,
    target: Annotated[Path | None, typer.Option("--out", help="also as a picture: .png, .svg or .pdf")] = None,
) -> None:
    """Draw clients x classes: how a data set would be dealt out."""
    settings = _settings(what, partition, clients, set_ or ())
    deal = _deal(settings)
    out.print(heat(deal))
    if deal.counts.shape[1] > 1:
        out.print(LEGEND, soft_wrap=True)
    out.print(summary(deal), soft_wrap=True)
    if target:
        picture(deal, target)
        out.print(f"picture: {target}", soft_wrap=True)


def _settings(what: str, partition: str, clients: int | None, assignments: Sequence[str]) -> Settings:
    path = recipes.path(what) or (Path(what) if what.endswith(".toml") else None)
    data = read(path).get("data", {}) if path else {"name": what}
    tables = with_assignments({"data": data}, [*([f"data.partition.name={partition}"] if partition else []),
                                               *([f"data.clients={clients}"] if clients else []), *assignments])
    if tables.keys() != {"data"}:
        raise SettingError(f"--set {next(key for key in tables if key != 'data')}: only the settings of data change "
                           "how it is dealt out; write data.key=value")
    return settle({**tables, "algorithm": "local-sgda"})  # a file needs a method; none is run


def _deal(settings: Settings) -> Deal:
    data, hand = hand_of(settings)
    name, dealing = settings.data.name, settings.dealing
    number = int(hand.owner.max()) + 1
    title = f"{name}, {settings.partition.name}, seed {dealing.seed}"
    names = _client_names(settings, data, hand)
    if data.train.targets.dim() != 1:  # rows without a class
        return Deal(title, torch.bincount(hand.owner, minlength=number)[:, None], (), None, names)
    kind = data.train.targets[hand.rows]
    counts = torch.bincount(hand.owner * data.classes + kind, minlength=number * data.classes)
    two = dealing.positive is not None or data.classes == 2
    positives = torch.bincount(hand.owner[hand.targets > 0], minlength=number) if two else None
    return Deal(title, counts.reshape(number, data.classes), data.names, positives, names)


def _client_names(settings: Settings, data: DataSet, hand: Hand) -> tuple[str, ...]:
    """What each client is, where rows are dealt by an attribute."""
    if settings.partition.name != "by-attribute":
        return ()
    attribute = data.attributes[settings.partition.settings["attribute"] or next(iter(data.attributes))]
    value = torch.zeros(int(hand.owner.max()) + 1, dtype=torch.int64)
    value[hand.owner] = attribute.train[hand.rows]  # all rows of a client have the same
    return tuple(attribute.names[number] for number in value.tolist())


def _shelf(name: str) -> store.Shelf:
    source = lookup(SOURCES, name, "data")
    if not hasattr(source, "shelf"):
        raise SettingError(f"data {name!r}: has no files to fetch; it comes with the package, or is your own")
    shelf: store.Shelf = source.shelf
    return shelf
