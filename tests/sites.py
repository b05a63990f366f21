"""Sites in memory for tests: a case of the contract battery across a LocalWire."""

from __future__ import annotations

import torch

from fedsaddle import testing
from fedsaddle.assemble import begun, objective_weights
from fedsaddle.config import Run
from fedsaddle.data.clients import Clients
from fedsaddle.data.clients import Run as Rows
from fedsaddle.engine.federation import EngineFederation
from fedsaddle.participation import Participation
from fedsaddle.participation.selection import Population
from fedsaddle.sites.asking import Identity
from fedsaddle.sites.coordinator import Coordinator
from fedsaddle.sites.local import LocalWire, arrives
from fedsaddle.sites.roster import Member, Shape
from fedsaddle.sites.site import Posed, Site

ROUNDS, SEED, BATCH = testing.ROUNDS, 5, 4


def single(clients, number):
    """One client's rows by themselves."""
    start, size = int(clients.run.start[number]), int(clients.run.size[number])
    rows = [part[start : start + size] for part in clients.rows]
    return Clients(*rows, Rows(torch.tensor([0]), torch.tensor([size])))


def settings(name="cdma-ada", problem="auc"):
    return f'[algorithm]\nname = "{name}"\n[problem]\nname = "{problem}"\n'


def sites_of(clients, posed, folder, policy=None, groups=None):
    found = {}
    for number in range(clients.count):
        group = groups[number] if groups else None
        own, home = single(clients, number), folder / str(number)
        found[f"n{number}"] = Site(f"site {number}", own, home, posed, policy, group)
    return found


def members_of(sites):
    found = []
    for node, site in sites.items():
        inputs, targets = site.clients.rows
        shape = Shape(tuple(inputs.shape[1:]), inputs.dtype, tuple(targets.shape[1:]), targets.dtype)
        found.append(Member(site.name, node, len(targets), shape, site.group))
    return found


def across(algorithm, case, folder, participation=None, fate=arrives, name="cdma-ada", policy=None, sites=None,
           checkpoints=None, rounds=ROUNDS, wire=None, **more):
    """A job of the battery whose clients are sites in memory."""
    problem, clients = case

    def posed(tables, label, classes, constants, own):
        ready = problem.with_constants(constants) if constants and hasattr(problem, "with_constants") else problem
        return Posed(algorithm, ready, BATCH, torch.float64, "eager", rounds)

    sites = sites or sites_of(clients, posed, folder, policy)
    wire = wire or LocalWire(sites, fate)
    sample = single(clients, 0)
    strata = getattr(problem, "strata", ())
    sample = (sample.stratified(strata) if strata else sample).to("cpu", torch.float64)
    participation = participation or Participation()
    coordinator = Coordinator(
        wire, members_of(sites), Identity("run", "", settings(name), 2), algorithm, problem, sample, BATCH,
        torch.float64, participation.respond, **more)
    sizes = clients.run.size
    population = Population(clients.count, sizes, objective_weights(clients, "size"))
    federation = EngineFederation(coordinator, participation, population, SEED, coordinator)
    run = Run(rounds=rounds, batch_size=BATCH, weights="size", dtype="float64", seed=SEED, evaluate_every=1)
    rows = {"train": clients.to("cpu", torch.float64).rows}
    return begun(algorithm, problem, federation, run, rows, lambda ready: [], checkpoints)
