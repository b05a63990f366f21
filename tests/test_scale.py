"""A million clients: what is stored, what is drawn, and what is dealt, against small cases and plain loops."""

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedsaddle import train
from fedsaddle.algorithms import make
from fedsaddle.contracts import Point, SettingError
from fedsaddle.data.clients import Clients, Run, checked, clients_from_arrays
from fedsaddle.data.deck import OUT, Deck, rank_within
from fedsaddle.data.groups import ByAttribute, ClassGroups
from fedsaddle.data.partitions import Dirichlet
from fedsaddle.engine import states as states_module
from fedsaddle.engine.states import ClientStates
from fedsaddle.maths.trees import leaves, map_leaves
from fedsaddle.participation.selection import Cyclic, Population, Uniform, Weighted, draw
from fedsaddle.problems import AUC, Agnostic, Pairwise

torch.set_num_threads(1)
MILLION = 1_000_000
CPU = torch.device("cpu")


def many(count=MILLION, rows=5, table=400, features=3):
    """So many clients of five rows each out of a small table."""
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(table, features, generator=random)
    start = torch.arange(count) * 7 % (table - rows)
    return Clients(inputs, (inputs[:, 0] > 0).long(), Run(start, torch.full((count,), rows)))


def linear(outputs=2):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Linear(3, outputs)


@pytest.fixture(scope="module")
def million():
    return many()


@pytest.fixture
def opened(monkeypatch, tmp_path):
    """Every ClientStates of a run, made with the limit in `limits`."""
    made, limits, plain = [], [None], ClientStates.__init__

    def init(self, first, clients, device, *rest):
        plain(self, first, clients, device, limits[0], tmp_path)
        made.append(self)

    monkeypatch.setattr(ClientStates, "__init__", init)
    return made, limits


# Runs.


@pytest.mark.parametrize("name", ["fedavg", "cdma-one", "drfa"])
def test_a_few_rounds_with_a_million_clients_store_no_states(name, million, opened):
    made, _ = opened
    done = train(make(name, asked=8, steps=2), Agnostic(linear()), million, rounds=3)
    assert done.complete and done.traffic.asked <= 3 * 2 * 8
    assert done.measures["train"]["accuracy"] > 0.5
    assert made[-1].stateless and made[-1].held == made[-1].on_disk == 0
    if name == "drfa":
        assert len(done.server.mixture) == MILLION
        assert float(done.server.mixture.double().sum()) == pytest.approx(1, abs=1e-4)


def test_states_are_stored_for_those_visited_alone_in_memory_or_on_disk(million, opened):
    made, limits = opened
    ends = []
    for limits[0] in (None, 1000):
        done = train(make("codasca", asked=16, steps=2), Agnostic(linear()), million, rounds=8)
        ends.append((done.point.x, made[-1].dump(), made[-1]))
    (x, kept, inside), (same_x, same_kept, outside) = ends
    width = 8 * 4 + 0 + 8  # c.x and c.y as the parameters, tag
    visited = len(kept["ids"])
    assert 100 < visited <= 8 * 16 and len(kept["ids"].unique()) == visited
    assert visited * width <= inside.held <= 3 * visited * width and inside.on_disk == 0
    assert outside.held <= 1000 and outside.on_disk >= visited * width
    assert torch.equal(x, same_x) and list(kept) == list(same_kept)
    assert all(torch.equal(kept[part], same_kept[part]) for part in kept)


def test_clients_that_share_rows_share_them_in_strata_too(million):
    strata = million.stratified()
    assert strata.count == MILLION and len(strata.inputs) <= 395 * 5  # not five million
    for client in (0, 1, 999_999):
        rows = slice(int(million.run.start[client]), int(million.run.start[client]) + 5)
        own = million.targets[rows]
        for run, wanted in zip(strata.strata, (own > 0, own <= 0), strict=True):
            first, size = int(run.start[client]), int(run.size[client])
            assert torch.equal(strata.inputs[first : first + size], million.inputs[rows][wanted])
    done = train(make("parallel-sgda", asked=4), Pairwise(linear(1), shares=(1.0, 1.0)), million, rounds=2)
    assert done.complete and math.isfinite(done.measures["train"]["objective"])


def test_every_clients_loss_of_a_million(million):
    done = train(make("fedavg", asked=4, steps=1), AUC(linear(1), p=0.5), million, rounds=1, per_client=True)
    got, x, alpha = done.measures["clients"], done.point.x.double(), float(done.point.y)
    h = torch.sigmoid(million.inputs.double() @ x[:3] + x[3])
    sign = torch.where(million.targets > 0, -1.0, 1.0)  # with p = 1/2 both classes weigh the same
    mean = torch.where(million.targets > 0, x[4], x[5])
    losses = 0.5 * (h - mean) ** 2 + (1 + alpha) * sign * h - 0.25 * alpha**2
    starts, often = million.run.start.unique(return_counts=True)
    by_run = torch.tensor([float(losses[start : start + 5].mean()) for start in starts.tolist()], dtype=torch.float64)
    assert got["loss_worst"] == pytest.approx(float(by_run.max()), rel=1e-5)
    assert got["loss_mean"] == pytest.approx(float((by_run * often).sum() / MILLION), rel=1e-5)
    spread = math.sqrt(float((often * (by_run - float((by_run * often).sum() / MILLION)) ** 2).sum() / MILLION))
    assert got["loss_spread"] == pytest.approx(spread, rel=1e-4)


# States on disk.


class Client(NamedTuple):
    """As in CODASCA."""

    c: Point
    tag: Tensor


FIRST = Client(Point(torch.zeros(6), torch.zeros(2)), torch.tensor(0))
WIDTH = 4 * 8 + 8


def rows(values):
    value = torch.as_tensor(values, dtype=torch.float32)
    return Client(Point(value[:, None].expand(-1, 6), -value[:, None].expand(-1, 2)), value.long())


def alike(one, other, ids):
    """The states of both are the same, and where their client functions run."""
    for a, b in zip(leaves(one.read(ids)), leaves(other.read(ids)), strict=True):
        assert b.device.type == other.first.tag.device.type and torch.equal(a, b.cpu())


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA"))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("limit", [0, 10 * WIDTH, 60 * WIDTH])
def test_states_on_disk_are_those_in_memory(limit, device, tmp_path, monkeypatch):
    monkeypatch.setattr(states_module, "PART", 3 * WIDTH)  # commit and load go in parts of three rows
    place, first = torch.device(device), map_leaves(lambda leaf: leaf.to(device), FIRST)

    def fresh():
        return ClientStates(FIRST, 200, CPU), ClientStates(first, 200, place, limit, tmp_path)

    plain, disk = fresh()
    random = np.random.default_rng(0)
    for step in range(200):
        ids = torch.from_numpy(random.permutation(200)[: random.integers(1, 30)])
        for states, there in ((plain, CPU), (disk, place)):
            new = rows(np.arange(len(ids)) + 100 * step)
            states.write(ids, map_leaves(lambda leaf, there=there: leaf.to(there), new))
        alike(plain, disk, torch.arange(200))
        end = random.choice(["commit", "rollback", "go on", "dump"])
        for states in (plain, disk):
            if end in ("commit", "rollback"):
                getattr(states, end)()
        assert disk.held <= limit and plain.on_disk == 0
        if end == "dump" and plain.dump():
            one, other = plain.dump(), disk.dump()
            assert list(one) == list(other) == ["ids", "c.x", "c.y", "tag"]
            assert all(torch.equal(one[name], other[name].cpu()) for name in one)
            plain, disk = fresh()
            plain.load(other)  # either can take what the other gave
            disk.load(one)
            alike(plain, disk, torch.arange(200))
    assert disk.on_disk > 0
    assert not list(tmp_path.iterdir())  # files without a name


def test_memory_is_bounded_however_many_clients_are_visited(tmp_path):
    states = ClientStates(FIRST, MILLION, CPU, 1 << 16, tmp_path)
    most = 0
    for first in range(0, 100_000, 10_000):
        states.write(torch.arange(first, first + 10_000), rows(torch.arange(first, first + 10_000)))
        most = max(most, states.held)
        states.commit()
    assert most <= 1 << 16 and states.on_disk >= 100_000 * WIDTH
    some = torch.tensor([0, 77_777, 99_999, 100_000])
    assert states.read(some).tag.tolist() == [0, 77_777, 99_999, 0]
    assert states.read(some).c.y[:, 1].tolist() == [0, -77_777, -99_999, 0]


def test_a_state_of_empty_tensors_or_none_needs_no_file(tmp_path):
    states = ClientStates(Point(torch.zeros(0), torch.zeros(0)), 10, CPU, 0, tmp_path)
    states.write(torch.tensor([1, 2]), Point(torch.zeros(2, 0), torch.zeros(2, 0)))
    states.commit()
    assert states.read(torch.tensor([1, 5])).x.shape == (2, 0) and states.on_disk == 0
    assert ClientStates((), 10, CPU, 0, tmp_path).read(torch.tensor([1])) == ()


def test_a_disk_without_room_is_an_error_in_words(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(states_module.os, "posix_fallocate", full, raising=False)
    states = ClientStates(FIRST, 10, CPU, 0, tmp_path)
    with pytest.raises(SettingError, match=r"client states: .*No space left.*raise the limit"):
        states.write(torch.tensor([3]), rows([1.0]))


# Draws.


@pytest.mark.parametrize("selection", [Uniform(), Cyclic(groups=4), Weighted(replace=True)])
def test_a_draw_reads_no_more_of_a_population_than_its_cohort(selection):
    """Once the selection's own weights are summed, no tensor longer than the cohort's numbers is made."""
    population = Population(MILLION, torch.arange(1, MILLION + 1), torch.full((MILLION,), 1 / MILLION).double())
    draw(selection, population, 0, 0, 0, 16, None, False)
    longest = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            made = function(*arguments, **(options or {}))
            longest.append(max((t.numel() for t in tree_leaves(made) if isinstance(t, Tensor)),
                               default=0))
            return made

    with Watch():
        got = draw(selection, population, 0, 1, 0, 16, None, False)
    assert int(got.times.sum()) == 16 and 0 < max(longest) < 200


def test_equal_weights_that_are_not_written_out_are_a_uniform_draw():
    population = Population(6, torch.ones(6), torch.full((6,), 1 / 6))
    one = torch.ones(1).expand(6)
    drawn = [draw(Weighted(by=(1.0, 0, 0, 0, 0, 0)), population, 0, r, 0, 2, one, False) for r in range(600)]
    counts = np.bincount(torch.cat([cohort.ids for cohort in drawn]), minlength=6)
    assert counts.sum() == 1200 and ((counts - 200) ** 2 / 200).sum() < 25
    assert all(cohort.weight.tolist() == [1, 1] for cohort in drawn)


# Data.


def test_a_client_column_in_any_order_of_any_kind():
    owner = np.array([7, -2, 7, 300, -2, 7])
    inputs, targets = np.arange(6.0)[:, None], np.arange(6)
    for names in (owner, owner.astype(float), [f"c{i + 5:03d}" for i in owner], owner.astype(object)):
        made = clients_from_arrays(inputs, targets, names)
        assert made.run.start.tolist() == [0, 2, 5] and made.run.size.tolist() == [2, 3, 1]
        assert made.targets.tolist() == [1, 4, 0, 2, 5, 3]
    nameless = clients_from_arrays(inputs, targets, np.array([1.0, math.nan, 1.0, math.nan, 2.0, math.nan]))
    assert nameless.run.size.tolist() == [2, 1, 3]


def test_strata_by_a_plain_loop():
    random = np.random.default_rng(1)
    owner, targets = random.integers(0, 60, 500), random.integers(-1, 2, 500)
    clients = clients_from_arrays(np.arange(500.0)[:, None], targets, owner)
    strata = clients.stratified()
    for i, (start, size) in enumerate(zip(*clients.run, strict=True)):
        rows = range(int(start), int(start + size))
        for run, sign in zip(strata.strata, (True, False), strict=True):
            mine = [float(clients.inputs[r]) for r in rows if (int(clients.targets[r]) > 0) == sign]
            first = int(run.start[i])
            assert strata.inputs[first : first + int(run.size[i])].flatten().tolist() == mine


def test_sums_that_overflow_are_no_broken_rows():
    large = Clients(torch.full((4, 2), 3e38), torch.zeros(4), Run(torch.arange(4), torch.ones(4, dtype=torch.int64)))
    assert checked(large) is large
    large.inputs[2, 1] = math.inf
    with pytest.raises(SettingError, match=r"1 rows, first in row 2 of the table \(client 2\)"):
        checked(large)


def test_ranks_within_groups():
    assert rank_within(torch.tensor([5, -1, 5, 5, -1, 0])).tolist() == [0, 0, 1, 2, 1, 0]
    assert rank_within(torch.zeros(0, dtype=torch.int64)).tolist() == []


def test_a_hundred_thousand_clients_are_dealt_without_a_loop_over_them():
    """Each of these would take minutes if it looked at all rows for every client."""
    random, clients = np.random.default_rng(0), 100_000
    targets = torch.from_numpy(random.integers(0, 10, 4 * clients))
    person = torch.from_numpy(random.permutation(np.arange(4 * clients) % clients))
    by_person = ByAttribute().deal(Deck(targets, None, {"person": person}), clients, 0)
    assert torch.equal(by_person, person)
    groups = ClassGroups(imratio=0.5).deal(Deck(targets, targets < 3), clients, 0)
    size = torch.bincount(groups[groups != OUT], minlength=clients)
    positive = torch.bincount(groups[(groups != OUT) & (targets < 3)], minlength=clients)
    assert bool((size > 0).all()) and bool((2 * positive <= size + 1).all())
    skewed = Dirichlet(0.02).deal(Deck(targets), clients, 0)
    assert bool((torch.bincount(skewed, minlength=clients) > 0).all())
