"""Across sites, over a wire in memory: the same numbers as in simulation, bad replies kept out, states that stand."""

from __future__ import annotations

import dataclasses
import io
import time
import tomllib

import pytest
import torch
from rich.console import Console

from fedsaddle import testing
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.assemble import assemble, deal, job_from_settings
from fedsaddle.config import Run, settle
from fedsaddle.contracts import NobodyAnswered, Rows, SettingError
from fedsaddle.engine.training import rounds
from fedsaddle.participation import Participation
from fedsaddle.participation.responses import DropOuts, FirstResponders
from fedsaddle.participation.selection import Cyclic, Population
from fedsaddle.report.folder import RunFolder
from fedsaddle.report.sites import nodes_table
from fedsaddle.runs import carry_out
from fedsaddle.serving import members_of, posed, replayed, site_job
from fedsaddle.sites import roster
from fedsaddle.sites.admission import Admission
from fedsaddle.sites.asking import SitesFailed, waiting
from fedsaddle.sites.frames import socket_folder
from fedsaddle.sites.gathering import gathered
from fedsaddle.sites.local import LocalWire, arrives
from fedsaddle.sites.parcels import unpacked
from fedsaddle.sites.policy import Policy
from fedsaddle.sites.roster import Patience, Watched
from fedsaddle.sites.site import Site
from fedsaddle.sites.wire import Delivery
from sites import across, single


def header_of(parcel):
    return unpacked(parcel.content, 1 << 24).header


def finished(job):
    return list(rounds(job.algorithm, job.federation, job.progress, job.plan, job.evaluate))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_sites_give_what_the_simulation_gives(name, tmp_path):
    for case in ALGORITHMS[name].cases:
        expected = testing.final_state(testing.trial(name), testing.CASES[case](), Participation())
        job = across(testing.trial(name), testing.CASES[case](), tmp_path / case, name=name,
                     policy=Policy(raw_scores=True))
        got = finished(job)
        assert not [one["refused"] for _, record in got for one in record["asks"] if one["refused"]]
        testing.compare((got[-1][0].server, got[-1][0].traffic._replace(virtual_seconds=0.0)),
                        (expected.server, expected.traffic), f"{case} across sites", 1e-9)


def test_the_gate_stands_in_the_simulation_too(tmp_path):
    """A client whose numbers are not finite is refused round after round, then no longer asked; the others go on."""
    problem, clients = testing.auc_case()
    clients = clients.to("cpu", torch.float64)
    start, size = int(clients.run.start[4]), int(clients.run.size[4])
    test = Rows(clients.inputs[:10].clone(), clients.targets[:10].clone())
    clients.inputs[start : start + size] = torch.nan
    method = testing.trial("codasca")
    run = Run(rounds=8, batch_size=4, weights="size", dtype="float64", seed=5, evaluate_every=8, workers=1)
    for engine in ("simulation", "reference"):
        how = dataclasses.replace(run, engine=engine)
        gated = assemble(method, problem, clients, test, Participation(), how, admission=Admission(simulated=True))
        result = carry_out(gated, how)
        refused = [one for record in result.records for ask in record["asks"] for one in ask["refused"]]
        assert {one["node"] for one in refused} == {"client 4"} and 1 <= len(refused) <= Admission().strikes
        assert all("not finite" in one["reason"] for one in refused)
        assert bool(torch.isfinite(result.point.x).all())
        state = gated.federation.engine.dump()
        row = state["ids"].tolist().index(4) if 4 in state["ids"].tolist() else None
        assert row is None or not state["c.x"][row].any(), "a refused reply advances no state"


def test_a_gate_that_refuses_nothing_changes_nothing():
    for name in ("cdma-ada", "codasca", "drfa"):
        case = testing.auc_case()
        expected = testing.final_state(testing.trial(name), case)
        run = Run(rounds=testing.ROUNDS, batch_size=4, weights="size", dtype="float64", seed=5, evaluate_every=1)
        job = assemble(testing.trial(name), *case, None, testing.FLAKY, run, admission=Admission(simulated=True))
        got = finished(job)[-1][0]
        testing.compare(got.server, expected.server, f"{name} behind a gate", 1e-9)


def test_groups_are_those_that_the_nodes_name(tmp_path):
    groups = (2, 0, 1, 1, 0, 2, 0, 1, 2, 0)
    select = Cyclic(3, groups)
    job = across(testing.trial("cycp-minimax"), testing.auc_case(), tmp_path, Participation(select),
                 name="cycp-minimax", rounds=6)
    for round, (_, record) in enumerate(finished(job)):
        for ask in record["asks"]:
            assert {groups[client] for client in ask["asked_clients"]} == {round % 3}
    with pytest.raises(SettingError, match=r"participation\.select\.of"):
        Cyclic(3, (0, 0, 1)).pool(0, Population(3, torch.ones(3), torch.ones(3) / 3))


def test_responses_of_simulations_are_refused_on_real_nodes():
    with pytest.raises(SettingError, match="DropOuts: belongs to simulations"):
        waiting((DropOuts(0.1),), Patience())


def test_the_first_enough_replies_are_used_and_slow_nodes_are_left_alone(tmp_path):
    """Node 0 never answers within its ask: later asks go to the others, its replies are counted as late."""
    held = []

    def fate(parcel, answer):
        if parcel.node == "n0" and header_of(parcel)["round"] >= 0:
            held.append(Delivery(parcel.node, parcel.ticket, answer))
            return None
        return arrives(parcel, answer)

    class Slow(LocalWire):
        def send(self, parcels):
            before = [held.pop() for _ in list(held)]  # what is late comes when the next ask is on its way
            super().send(parcels)
            self.queue = [*before, *(one for one in self.queue if not one.error)]

    problem, clients = testing.auc_case()
    first = across(testing.trial("fedavg", asked=10), (problem, clients), tmp_path, rounds=6)
    sites = first.federation.engine.wire.sites
    job = across(testing.trial("fedavg", asked=10), (problem, clients), tmp_path, rounds=6, sites=sites,
                 wire=Slow(sites, fate), participation=Participation(respond=(FirstResponders(0.9, 0.9),)))
    records = [record for _, record in finished(job)]
    assert all(0 not in ask["clients"] for record in records for ask in record["asks"])
    assert all(len(ask["clients"]) >= 8 for record in records for ask in record["asks"])
    away = [ask for record in records for ask in record["asks"] if ask["present"]]
    assert away and all(0 not in ids for ask in away for ids in ask["present"].values())
    assert {client for record in records for ask in record["asks"] for client in ask["late_clients"]} == {0}
    assert job.federation.engine.watched[0].late >= 2 and sum(record["late"] for record in records) >= 2


def test_a_recorded_run_is_repeated_by_a_simulation(tmp_path):
    """Whatever was lost on the way, a simulation with the same replies ends with the same weights."""
    for name in ("cdma-ada", "codasca", "drfa"):
        lost = []

        def fate(parcel, answer, lost=lost):
            header = header_of(parcel)
            if header["round"] >= 0 and (header["round"] * 7 + header["client"] * 3 + header["ask"]) % 4 == 0:
                lost.append(parcel)
                return None
            return arrives(parcel, answer)

        case, method = testing.auc_case(), testing.trial(name)
        got = finished(across(method, case, tmp_path / name, fate=fate, name=name))
        run = Run(rounds=testing.ROUNDS, batch_size=4, weights="size", dtype="float64", seed=5, evaluate_every=1)
        again = assemble(method, *case, None, Participation(), run, records=[record for _, record in got])
        testing.compare(finished(again)[-1][0].server, got[-1][0].server, f"{name} replayed", 1e-9)
        assert lost


def test_settings_travel_and_are_read_at_the_site(tmp_path):
    """A whole settings file over a wire in memory: the site makes problem, model and method from what it is sent."""
    settings = settle(tomllib.loads(FILE))
    dealt = deal(settings)
    sites = {f"n{i}": Site(f"s{i}", single(dealt.clients, i), tmp_path / str(i), posed) for i in range(3)}
    folder = RunFolder(tmp_path / "run")
    folder.create({})
    wire = LocalWire(sites)
    members = members_of(folder, settings, wire, lambda text: None)
    assert [member.name for member in members] == ["s0", "s1", "s2"]
    assert roster.load(folder.path / "nodes.json") == members
    job, _, run = site_job(settings, "", wire, members, "run", folder.checkpoints)
    result = carry_out(job, run, folder)
    expected = carry_out(job_from_settings(settings, ""), dataclasses.replace(settings.run, workers=1))
    testing.compare(result.point, expected.point, "across sites", 1e-5)
    assert result.measures["test"]["auc"] == pytest.approx(expected.measures["test"]["auc"], abs=1e-6)
    again, off = replayed(folder, settings, "")
    assert off < 1e-5 and again.complete


FILE = """
[run]
rounds = 3
evaluate_every = 3
[data]
name = "breast-cancer"
clients = 3
partition = "iid"
[problem]
name = "auc"
form = "margin"
[model]
name = "mlp"
hidden = [5]
[algorithm]
name = "codasca"
steps = 2
"""


def test_the_table_of_nodes_shows_what_an_operator_looks_for():
    nodes = [Watched("clinic-a", "free", time.time() - 3, 4.25, 0.1, 12_345_678, 999, 10),
             Watched("clinic-b", "set aside", refused=3, last_reason="field 'z.x' is [/not] finite")]
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(nodes_table(nodes, {"round": 12, "answered": 3, "asked": 4, "late": 1}, 100))
    text = console.export_text()
    for word in ("round 12 of 100", "3 of 4 answered, 1 late", "clinic-a", "3 s ago", "4.2 s", "12.3 MB", "999 B",
                 "set aside", "never", "field 'z.x' is [/not] finite"):
        assert word in text, word


def test_a_site_counts_rounds_for_itself(tmp_path):
    """A server that calls every round the first one is not asked for ever."""
    job = across(testing.trial("fedavg", asked=10), testing.auc_case(), tmp_path, policy=Policy(max_rounds=3), rounds=6)
    federation, server, answered = job.federation, job.progress.server, []
    for _ in range(6):
        federation.begin(0)
        try:
            server = job.algorithm.round(server, federation)
            answered.append(federation.asks[-1].traffic.answered)
        except NobodyAnswered:
            answered.append(0)
    assert answered == [10, 10, 10, 0, 0, 0]
    honest = finished(across(testing.trial("cdma-one", asked=10), testing.auc_case(), tmp_path / "honest",
                             policy=Policy(max_rounds=3), rounds=5))
    assert [record["answered"] for _, record in honest] == [20, 20, 20, 0, 0], "two asks of a round are one round"


def test_a_run_without_a_node_to_ask_ends_in_words(tmp_path):
    def fate(parcel, answer):
        return arrives(parcel, answer if header_of(parcel)["round"] < 0 else b"junk")

    job = across(testing.trial("fedavg"), testing.auc_case(), tmp_path, fate=fate, admission=Admission(strikes=1))
    with pytest.raises(SitesFailed, match="every node has been set aside"):
        finished(job)


def test_a_node_may_not_take_the_name_of_another_key(tmp_path):
    problem, clients = testing.auc_case()
    first = across(testing.trial("fedavg"), (problem, clients), tmp_path)
    sites = dict(list(first.federation.engine.wire.sites.items())[:3])
    said = []
    owners = {"n0": "site 0", "n1": "site 7", "n2": "site 2"}
    found = gathered(LocalWire(sites), 3, (), 0.5, said.append, owners)
    assert {member.name for member in found} == {"site 0", "site 2"}
    assert any("calls itself 'site 1', but its key is that of 'site 7'" in line for line in said)
    assert len(gathered(LocalWire(sites), 3, (), 5.0, said.append)) == 3


def test_a_folder_for_sockets_is_this_users_alone(tmp_path):
    assert socket_folder(tmp_path / "short") == tmp_path / "short"
    far = tmp_path / ("long" * 30)
    elsewhere = socket_folder(far)
    try:
        assert elsewhere == socket_folder(far) and len(str(elsewhere)) < 80
        assert elsewhere.stat().st_mode & 0o777 == 0o700
        elsewhere.chmod(0o777)
        with pytest.raises(PermissionError, match="others may write there"):
            socket_folder(far)
    finally:
        elsewhere.rmdir()
