"""The commands for real sites: `server` and `node`, the `worker` that a node starts, and `deal` to try it out."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedsaddle import recipes, serving
from fedsaddle.assemble import device_of
from fedsaddle.config import Run, Settings, read, settle, tables_of, validated
from fedsaddle.contracts import SettingError
from fedsaddle.engine.training import Record
from fedsaddle.report.folder import RunFolder
from fedsaddle.report.sites import nodes_table
from fedsaddle.report.tables import last_measures
from fedsaddle.runs import carry_out, threads
from fedsaddle.sites.coordinator import Coordinator
from fedsaddle.sites.engines import Options, engine_of, keep_alive
from fedsaddle.sites.frames import socket_folder
from fedsaddle.sites.wire import Wire, WireLost

out, err = Console(), Console(stderr=True)
AGREE = 1e-4  # of solutions in single precision
Keys = Annotated[Path | None, typer.Option("--keys", help="folder of `fedsaddle keys`, or the node's part of it")]
Engine = Annotated[str, typer.Option("--engine", help="transport: flower or nvflare")]
Kit = Annotated[Path | None, typer.Option("--kit", help="folder of `fedsaddle provision`, for --engine nvflare")]
Insecure = Annotated[bool, typer.Option("--insecure", help="no TLS and no keys: for trials on one machine only")]


def add_to(app: typer.Typer, show_end: Callable[[Settings, dict[str, RunFolder]], None]) -> None:
    """Add the commands. show_end: prints the table of a finished run."""

    @app.command()
    def server(
        what: Annotated[str, typer.Argument(metavar="FILE", help="a settings file or a recipe")],
        keys: Keys = None,
        engine: Engine = "flower",
        kit: Kit = None,
        host: Annotated[str | None, typer.Option(help="address to listen at; 0.0.0.0 if not given")] = None,
        port: Annotated[int | None, typer.Option(help="port to listen at; 9092 if not given")] = None,
        join: Annotated[str | None, typer.Option(help="HOST:PORT of a SuperLink that runs on this machine")] = None,
        set_: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, over the file")] = None,
        folder: Annotated[Path | None, typer.Option("--out", help="run folder; begun or gone on with")] = None,
        insecure: Insecure = False,
    ) -> None:
        """Run a settings file across real sites, from the start or from where it stopped."""
        options = Options(keys=keys, kit=kit, host=host, port=port, join=join, insecure=insecure)
        chosen = engine_of(engine, options)
        path = recipes.path(what) or Path(what)
        settings = settle(read(path), set_ or ())
        target = RunFolder(folder or Path("runs") / f"{path.stem}-sites")
        begin(target, settings)
        _warn(insecure)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # the same as Ctrl-C: what was started is ended
        try:
            with chosen.serve(target.path, options, say) as transport:
                conduct(settings, target, transport.wire, transport.again, transport.owners)
        except KeyboardInterrupt:
            say("stopped; the same command goes on after the last round")
            raise typer.Exit(130) from None
        show_end(settings, folders_of(settings, target))

    for command in (node, replay, deal):
        app.command()(command)
    app.command(hidden=True)(worker)


def node(
    data: Annotated[Path, typer.Option("--data", help="the site's rows: npz, CSV or Parquet")],
    name: Annotated[str, typer.Option("--name", help="the node's name; names of keys and of the run's list")],
    server: Annotated[str | None, typer.Option("--server", help="HOST:PORT of the server")] = None,
    keys: Keys = None,
    engine: Engine = "flower",
    kit: Kit = None,
    state: Annotated[Path | None, typer.Option("--state", help="folder of states and logs")] = None,
    policy: Annotated[Path | None, typer.Option("--policy", help="TOML file with the site's own rules")] = None,
    label: Annotated[str | None, typer.Option("--label", help="column of the label, in a table")] = None,
    group: Annotated[int | None, typer.Option("--group", help="its group, for cyclic runs")] = None,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda")] = "cpu",
    insecure: Insecure = False,
) -> None:
    """Take part in runs of a server, with the rows of this site, until it is stopped."""
    from fedsaddle.data.sites import load_site  # noqa: PLC0415
    from fedsaddle.sites.policy import read_policy  # noqa: PLC0415

    options = Options(keys=keys, kit=kit, server=server, insecure=insecure)
    chosen = engine_of(engine, options)
    read_policy(policy), load_site(data, label)  # errors end here, not in a process that is started for ever
    device = device_of(Run(**validated(Run, {"device": device}, "node"))).type
    home = state or Path(f"site-{name}")
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    _warn(insecure)
    line = [sys.executable, "-m", "fedsaddle", "worker", "--data", str(data), "--name", name, "--state", str(home)]
    for option, value in (("--policy", policy), ("--label", label), ("--group", group), ("--device", device)):
        line += [option, str(value)] if value is not None else []
    with ended_by_signals() as ended, chosen.join(home, name, options, socket_of(home)) as transport:
        keep_alive(line, home / "worker.log", socket_of(home), transport, ended, say)


def worker(
    data: Annotated[Path, typer.Option("--data")],
    name: Annotated[str, typer.Option("--name")],
    state: Annotated[Path, typer.Option("--state")],
    policy: Annotated[Path | None, typer.Option("--policy")] = None,
    label: Annotated[str | None, typer.Option("--label")] = None,
    group: Annotated[int | None, typer.Option("--group")] = None,
    device: Annotated[str, typer.Option("--device")] = "cpu",
) -> None:
    """The process that computes, which `node` starts and keeps."""
    from fedsaddle.data.sites import load_site  # noqa: PLC0415
    from fedsaddle.sites import worker as resident  # noqa: PLC0415
    from fedsaddle.sites.policy import read_policy  # noqa: PLC0415
    from fedsaddle.sites.site import LIMIT, Site  # noqa: PLC0415

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    site = Site(name, load_site(data, label), state / "worker", serving.posed, read_policy(policy), group, device)
    listening = resident.listen(socket_of(state))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    logging.getLogger(__name__).info("%s is ready with %d rows", name, len(site.clients.targets))
    with threads(1):
        resident.serve(site, listening, LIMIT)


def replay(folder: Annotated[Path, typer.Argument(help="a run folder that `server` wrote")]) -> None:
    """Do a run across sites again as a simulation, with the same replies, and compare: both must agree."""
    if not (folder / "run.toml").exists() or not (folder / serving.NODES).exists():
        raise SettingError(f"replay {str(folder)!r}: holds no run across sites; give a folder of `server`")
    settings = settle(read(folder / "run.toml"))
    table, worst = Table("method", "sites", "simulation", "solutions differ by"), 0.0
    for label, one in folders_of(settings, RunFolder(folder)).items():
        result, off = serving.replayed(one, settings, label)
        theirs = last_measures(one.records())
        table.add_row(label or settings.algorithms[label].name, _measured(theirs), _measured(result.measures),
                      f"{off:.1e}")
        worst = max(worst, off)
    out.print(table)
    if worst > AGREE:
        err.print(f"[red]they do not agree: more than {AGREE:g} apart[/red]")
        raise typer.Exit(1)


def deal(
    what: Annotated[str, typer.Argument(metavar="FILE", help="a settings file or a recipe")],
    folder: Annotated[Path, typer.Option("--out", help="folder for the files")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, over the file")] = None,
) -> None:
    """Write every client's rows into a file of its own, to try a run across sites."""
    files = serving.deal_out(settle(read(recipes.path(what) or Path(what)), set_ or ()), folder)
    out.print(f"{len(files)} files: {files[0]} to {files[-1].name}", soft_wrap=True)


def say(text: str) -> None:
    """A line as it is: what a site says may look like markup."""
    err.print(Text(text), soft_wrap=True)


def begin(target: RunFolder, settings: Settings) -> None:
    """A new run folder, or the one of these very settings."""
    tables = tables_of(settings)
    if not target.path.exists():
        target.create(tables)
    elif not (target.path / "run.toml").exists() or tables_of(settle(read(target.path / "run.toml"))) != tables:
        raise SettingError(f"--out {str(target.path)!r}: holds another run; give another folder, or the settings that "
                           "it was begun with")


def folders_of(settings: Settings, target: RunFolder) -> dict[str, RunFolder]:
    return {label: RunFolder(target.path / label) if label else target for label in settings.algorithms}


def conduct(
    settings: Settings, target: RunFolder, wire: Wire, again: Callable[[], Wire], owners: dict[str, str],
) -> None:
    """Every method of the settings, one after the other; with a new wire where the old one is lost."""
    members = None
    while members is None:
        try:
            members = serving.members_of(target, settings, wire, say, owners)
        except WireLost as lost:
            wire = once_more(lost, again)
    for label, folder in folders_of(settings, target).items():
        folder.path.mkdir(parents=True, exist_ok=True)
        while not folder.complete:
            try:
                one_method(settings, label, folder, members, wire)
            except WireLost as lost:
                wire = once_more(lost, again)


def once_more(lost: WireLost, again: Callable[[], Wire]) -> Wire:
    say(f"{lost}; starting it again, and going on from the last round")
    return again()


def one_method(settings: Settings, label: str, folder: RunFolder, members: Any, wire: Wire) -> None:
    job, coordinator, run = serving.site_job(settings, label, wire, members, serving.run_name(folder),
                                             folder.checkpoints, say)
    for complaint in job.complaints:
        err.print(f"[yellow]{complaint}[/yellow]")
    with _live(coordinator, settings.run.rounds) as watch:
        carry_out(job, run, folder, watch)
    if not err.is_terminal:  # else it stands there already
        err.print(nodes_table(coordinator.watched, folder.records()[-1], settings.run.rounds))


@contextmanager
def _live(coordinator: Coordinator, rounds: int) -> Iterator[Callable[[Record], None]]:
    """A table of the nodes that changes in place; where nobody looks, a line now and then."""
    last: dict[str, Any] = {"round": 0}
    if not err.is_terminal:
        def told(record: Record) -> None:
            if "measures" in record or record["round"] % 10 == 0:
                err.print(f"round {record['round']} of {rounds}: {record['answered']} of {record['asked']} answered, "
                          f"{record['late']} late", highlight=False)
        yield told
        return
    with Live(get_renderable=lambda: nodes_table(coordinator.watched, last, rounds), console=err, refresh_per_second=2):
        yield last.update


def _measured(measures: dict[str, dict[str, float]]) -> str:
    found = measures.get("test") or next(iter(measures.values()), {})
    name = "auc" if "auc" in found else next(iter(found), "")
    return f"{name} {found[name]:.6f}" if name else "not measured"


def _warn(insecure: bool) -> None:
    if insecure:
        err.print("[bold red]--insecure: nothing is encrypted and anybody may join. Use it on one machine, with data "
                  "that are no secret.[/bold red]")


def socket_of(state: Path) -> Path:
    """The worker's socket."""
    return socket_folder(state / "run") / "worker.sock"


@contextmanager
def ended_by_signals() -> Iterator[Callable[[], bool]]:
    """Whether the process was asked to end."""
    asked: list[int] = []
    before = {number: signal.signal(number, lambda got, frame: asked.append(got))
              for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_with_parent() -> None:
    """The pipe from the node ends when the node does, however it ends: two workers must not share a disk."""
    sys.stdin.buffer.read()
    os._exit(0)
