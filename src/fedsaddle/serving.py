"""A settings file across real sites: what the server runs, and how a site reads what it is sent."""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import tomli_w
import torch
from torch import Tensor

from fedsaddle.assemble import (
    Dealt,
    Job,
    algorithm_of,
    assemble,
    begun,
    deal,
    objective_weights,
    participation,
    placed_rows,
    pose,
)
from fedsaddle.config import Run, Settings, method, settle, tables_of
from fedsaddle.contracts import Problem, Rows, SettingError
from fedsaddle.data.clients import Clients
from fedsaddle.data.clients import Run as ClientRows
from fedsaddle.data.sites import SitesData, load_site
from fedsaddle.engine.evaluation import of_all_clients
from fedsaddle.engine.federation import EngineFederation
from fedsaddle.participation import Participation
from fedsaddle.participation.selection import Cyclic, Population
from fedsaddle.report.folder import RunFolder, replace_file
from fedsaddle.runs import Result, carry_out
from fedsaddle.sites import roster
from fedsaddle.sites.asking import Identity
from fedsaddle.sites.coordinator import Coordinator, Say
from fedsaddle.sites.gathering import NOBODY, gathered
from fedsaddle.sites.roster import Member, Shape
from fedsaddle.sites.site import Posed
from fedsaddle.sites.wire import Wire

NODES, RUN = "nodes.json", "sites.json"
BINS = 64  # of histograms, where the server has no rows of its own to measure on


def posed(tables: dict[str, Any], label: str, classes: int, constants: dict[str, float], clients: Clients) -> Posed:
    """A site's view of a run, from the settings that it is sent. Sections about data and participation are not read:
    what they name is none of the site's business."""
    sections = {name: value for name, value in tables.items()
                if name in ("run", "problem", "model", "algorithm", "algorithms")}
    count = tables.get("data", {}).get("clients", 10**9)
    settings = settle({**sections, "data": {"name": "digits", "clients": count}})
    algorithm = algorithm_of(settings.algorithms[label])
    problem = pose(settings, Dealt(clients, None, classes))
    if constants and hasattr(problem, "with_constants"):
        problem = problem.with_constants(constants)
    run = settings.run
    return Posed(algorithm, problem, run.batch_size, getattr(torch, run.dtype), run.execution, run.rounds)


def members_of(
    folder: RunFolder, settings: Settings, wire: Wire, say: Say, owners: Mapping[str, str] = NOBODY,
) -> list[Member]:
    """The nodes of a run, each with its number: as they were, or as they come."""
    if (folder.path / NODES).exists():
        return roster.load(folder.path / NODES)
    patience = settings.sites
    wanted = clients_of(settings)
    if patience.nodes and wanted and len(patience.nodes) != wanted:
        raise SettingError(f"sites.nodes: {len(patience.nodes)} names, but data.clients = {wanted}; name every node")
    need = len(patience.nodes) or wanted
    if not need:
        raise SettingError("data.clients: is missing; say how many nodes take part, or name them in sites.nodes")
    came = gathered(wire, need, patience.nodes, patience.start_seconds, say, owners)
    found = roster.numbered(came, patience.nodes)
    if len(found) < need:
        raise SettingError(f"sites: {len(found)} of {need} nodes came within {patience.start_seconds:g} s "
                           f"({', '.join(member.name for member in found)}); start the others, or wait longer with "
                           "sites.start_seconds")
    roster.save(folder.path / NODES, found[:need])
    return found[:need]


def clients_of(settings: Settings) -> int:
    return settings.dealing.clients or 0


def run_name(folder: RunFolder) -> str:
    """By which sites tell runs apart; it stays when the server starts again."""
    path = folder.path / RUN
    if not path.exists():
        replace_file(path, (json.dumps({"run": secrets.token_hex(8)}) + "\n").encode())
    name: str = json.loads(path.read_text())["run"]
    return name


def site_job(
    settings: Settings, label: str, wire: Wire, members: Sequence[Member], run_id: str,
    checkpoints: Path | None = None, say: Say = lambda text: None,
) -> tuple[Job, Coordinator, Run]:
    """The job of a run whose clients are sites, its coordinator, and how it is carried out."""
    settings, label = method(settings, label), ""
    test, classes = held_out(settings)
    sample = sample_of(members[0].shape)
    run = dataclasses.replace(settings.run, device="cpu", workers=1, checkpoint_every=1)
    dtype = getattr(torch, run.dtype)
    problem = pose(settings, Dealt(sample, None, classes))
    strata = getattr(problem, "strata", ())
    shown = (sample.stratified(strata) if strata else sample).to("cpu", dtype)
    algorithm, who = algorithm_of(settings.algorithms[label]), in_groups(participation(settings), members)
    coordinator = Coordinator(
        wire, members, Identity(run_id, label, tomli_w.dumps(tables_of(settings)), classes), algorithm, problem, shown,
        run.batch_size, dtype, who.respond, settings.sites, settings.admission, say)
    sizes = torch.tensor([member.rows for member in members])
    everyone = Clients(torch.zeros(0), torch.zeros(0), ClientRows(sizes.cumsum(0) - sizes, sizes))
    population = Population(len(members), sizes, objective_weights(everyone, run.weights))
    federation = EngineFederation(coordinator, who, population, run.seed, coordinator)
    if run.per_client:
        raise SettingError("run.per_client = true: the rows of single clients stay at their sites; leave it out")
    sets = {"test": placed_rows(test, torch.device("cpu"), dtype)} if test else {}
    bins = run.histogram_bins or (0 if sets or getattr(problem, "headline", "") != "auc" else BINS)

    def measures(ready: Problem) -> list[Any]:
        return [("clients", of_all_clients(ready, federation, bins))] if bins else []

    return begun(algorithm, problem, federation, run, sets, measures, checkpoints), coordinator, run


def held_out(settings: Settings) -> tuple[Rows | None, int]:
    """The rows on which the server measures, and how many classes there are."""
    if settings.data.name == "sites":
        source = SitesData(**settings.data.settings)
        rows = load_site(Path(source.test), source.label).rows if source.test else None
        return rows, source.classes
    dealt = deal(settings)
    return dealt.test, dealt.classes


def sample_of(shape: Shape) -> Clients:
    """A client with two rows of this shape, one of each class, which say nothing."""
    targets = torch.zeros((2, *shape.targets), dtype=shape.target_dtype)
    targets[1] = 1
    return Clients(torch.zeros((2, *shape.inputs), dtype=shape.dtype), targets,
                   ClientRows(torch.tensor([0]), torch.tensor([2])))


def in_groups(who: Participation, members: Sequence[Member]) -> Participation:
    """Cyclic groups as the nodes say to which they belong."""
    groups = [member.group for member in members]
    if not isinstance(who.select, Cyclic) or all(group is None for group in groups):
        return who
    if any(group is None for group in groups):
        silent = [member.name for member in members if member.group is None]
        raise SettingError(f"node --group: {', '.join(silent)} did not say a group; give every node one, or none")
    return dataclasses.replace(who, select=Cyclic(who.select.groups, tuple(int(group or 0) for group in groups)))


def replayed(folder: RunFolder, settings: Settings, label: str) -> tuple[Result, float]:
    """A run across sites once more as a simulation in which the same clients answer, on the data that were dealt out.

    The result, and how far its solution lies from the sites', as a share of its largest number.
    """
    members = roster.load(folder.path / NODES if (folder.path / NODES).exists() else folder.path.parent / NODES)
    settings, label = method(settings, label), ""
    dealt = deal(settings)
    records = folder.records()
    run = dataclasses.replace(settings.run, engine="simulation", workers=1, device="cpu", execution="eager")
    job = assemble(algorithm_of(settings.algorithms[label]), pose(settings, dealt), dealt.clients, dealt.test,
                   in_groups(participation(settings), members), run, records=records)
    result = carry_out(job, run)
    theirs = safetensors.torch.load_file(folder.path / "model.safetensors")
    off = 0.0
    for name, values in result.named().items():
        if values.numel():
            difference = (values - theirs[name]).abs().max() / theirs[name].abs().max().clamp(min=1.0)
            off = max(off, float(difference))
    return result, off


def deal_out(settings: Settings, folder: Path) -> list[Path]:
    """Every client of a settings file as a site's file, to try a run across sites before there are any."""
    if settings.data.name == "sites":
        raise SettingError("data.name = 'sites': the rows are at the sites already; choose a data set to deal out")
    clients = deal(settings).clients
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for client in range(clients.count):
        start, size = int(clients.run.start[client]), int(clients.run.size[client])
        rows: list[Tensor] = [part[start : start + size] for part in clients.rows]
        files.append(folder / f"site-{client}.npz")
        np.savez_compressed(files[-1], inputs=rows[0].numpy(), targets=rows[1].numpy())
    return files

