"""What is counted, what clients keep between rounds, and how a cohort is cut: the same on every engine."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsaddle.contracts import ALL, NobodyAnswered, Point
from fedsaddle.data.clients import Clients, Run, clients_from_list
from fedsaddle.engine.federation import EngineFederation
from fedsaddle.engine.ledger import Size, Traffic, size_of
from fedsaddle.engine.reference import Reference
from fedsaddle.engine.simulation import Simulation
from fedsaddle.engine.states import ClientStates
from fedsaddle.participation import as_participation
from fedsaddle.participation.responses import Deadline, DropOuts, FirstResponders, Latencies
from fedsaddle.participation.selection import Cyclic, Population

torch.set_num_threads(1)
ENGINES = ["reference", "simulation", "chunks of 2"]


class Line:
    """f(x, y) = mean over rows of inputs . x + target * y."""

    def first(self):
        return Point(torch.zeros(2), torch.zeros(1))

    def loss(self, x, y, batch):
        return (batch.weight * (batch.inputs @ x + batch.targets * y[0])).sum()


class Message(NamedTuple):
    z: Point
    own: Any  # personal: four numbers for every client
    eta: Any
    tag: Any


class Reply(NamedTuple):
    z: Point
    own: Tensor
    visits: Tensor


class Client(NamedTuple):
    visits: Tensor
    z: Point


def work(oracle, message, client, data):
    """One step; the client remembers how often it was asked and where it went."""
    z = message.z.step(oracle.gradient(message.z, data.full or data.minibatches[0]), message.eta, message.eta)
    visits = client.visits + message.tag
    return Reply(z, message.own.sum(), visits), Client(visits, client.z + z)


def few(count=5, dtype=torch.float32):
    """Clients of one to four rows."""
    random = np.random.default_rng(0)
    parts = [(random.normal(size=(1 + i % 4, 2)), random.normal(size=1 + i % 4)) for i in range(count)]
    return clients_from_list(parts).to("cpu", dtype)


def federation(kind, *parts, clients=None, dtype=torch.float32, seed=0):
    clients = clients or few(dtype=dtype)
    if kind == "reference":
        engine = Reference(Line(), clients, 2, dtype)
    else:
        engine = Simulation(Line(), clients, 2, dtype, chunk=2 if kind == "chunks of 2" else None)
    first = Line().first()
    engine.open(Client(torch.tensor(0), Point(first.x.to(dtype), first.y.to(dtype))))
    weights = torch.full((clients.count,), 1 / clients.count, dtype=torch.float64)
    population = Population(clients.count, clients.run.size, weights)
    return EngineFederation(engine, as_participation(*parts), population, seed)


def ask(federation, cohort=None, batches=1, tag=1, **fields):
    cohort = cohort or federation.everyone()
    dtype = federation.engine.dtype
    own = cohort.ids[:, None].to(dtype).expand(-1, 4)
    message = Message(Point(torch.ones(2, dtype=dtype), torch.ones(1, dtype=dtype)), own, 0.1, tag)
    return federation.average(work, message, cohort, batches, personal=("own",), **fields)


# The ledger.

# Down: z 3 + own 4 + eta 1 floats of 4 bytes, tag 8 bytes. Up: z 3 + own 1 floats of 4 bytes, visits 8 bytes.
DOWN, UP = Size(8, 40), Size(4, 24)


@pytest.mark.parametrize("kind", ENGINES)
def test_traffic_of_an_ask_by_hand(kind):
    fed = federation(kind)
    ask(fed)
    assert fed.traffic == Traffic(asked=5, answered=5, late=0, floats_down=40, floats_up=20, floats_late=0,
                                  bytes_down=200, bytes_up=120, bytes_late=0, virtual_seconds=0.0)


@pytest.mark.parametrize("kind", ENGINES)
def test_late_replies_are_counted_apart(kind):
    fed = federation(kind, FirstResponders(0.5, 0.5))
    ask(fed)
    assert fed.traffic == Traffic(asked=5, answered=3, late=2, floats_down=40, floats_up=12, floats_late=8,
                                  bytes_down=200, bytes_up=72, bytes_late=48, virtual_seconds=0.0)


@pytest.mark.parametrize("kind", ENGINES)
def test_drop_outs_cost_the_message_and_send_nothing(kind):
    fed = federation(kind, DropOuts(0.5))
    answered = ask(fed).answered
    assert 0 < answered < 5
    assert fed.traffic == Traffic(5, answered, 0, 40, 4 * answered, 0, 200, 24 * answered, 0)
    fed = federation(kind, DropOuts(1.0))
    with pytest.raises(NobodyAnswered):
        ask(fed)
    assert fed.traffic == Traffic(asked=5, floats_down=40, bytes_down=200)


@pytest.mark.parametrize("kind", ENGINES)
def test_an_ask_with_only_late_replies_is_counted_and_leaves_nothing(kind):
    fed = federation(kind, Latencies(), Deadline(1e-6))
    with pytest.raises(NobodyAnswered):
        ask(fed)
    assert fed.traffic == Traffic(5, 0, 5, 40, 0, 20, 200, 0, 120, virtual_seconds=1e-6)
    fed.begin(1)
    fed.commit()
    assert fed.engine.dump() == {}


@pytest.mark.parametrize("kind", ENGINES)
def test_a_round_adds_its_asks_and_the_next_starts_from_nothing(kind):
    fed = federation(kind)
    ask(fed)
    ask(fed, fed.cohort(2))
    assert fed.traffic == Traffic(7, 7, 0, 7 * DOWN.floats, 7 * UP.floats, 0, 7 * DOWN.bytes, 7 * UP.bytes, 0)
    fed.begin(1)
    assert fed.traffic == Traffic()


def test_bytes_follow_the_precision_and_the_clock_follows_the_arrivals():
    fed = federation("simulation", Latencies(), dtype=torch.float64)
    ask(fed)
    ask(fed)
    once = [ask.traffic for ask in fed.asks]
    assert once[0].bytes_down == 5 * (8 * 8 + 8) and once[0].bytes_up == 5 * (4 * 8 + 8)
    assert once[0].virtual_seconds > 0
    assert fed.traffic.virtual_seconds == once[0].virtual_seconds + once[1].virtual_seconds


def test_personal_fields_count_one_row():
    z = Point(torch.zeros(7, 2), torch.zeros(7, 3))
    message = Message(z, torch.zeros(6), torch.tensor(0.5), torch.tensor(True))
    assert size_of(message, ("z",)) == Size(2 + 3 + 6 + 1, 4 * 12 + 1)
    assert size_of(message) == Size(35 + 6 + 1, 4 * 42 + 1)
    assert size_of(()) == Size(0, 0)


def test_traffic_adds_field_by_field():
    assert Traffic(1, 2, 3, 4, 5, 6, 7, 8, 9, 0.5) + Traffic(*range(10, 101, 10)) == \
        Traffic(11, 22, 33, 44, 55, 66, 77, 88, 99, 100.5)


# Client states.


class Silent:
    """Nobody answers the second ask of round 1."""

    decides = False

    def respond(self, arrivals, ids, moment):
        silent = (moment.round, moment.ask) == (1, 1)
        return arrivals._replace(accepted=arrivals.accepted & (not silent))


def visits(federation, **options):
    return ask(federation, collect=("visits",), **options).each.visits.tolist()


def dumped(engine):
    """The kept states by client."""
    tensors = engine.dump()
    order = torch.argsort(tensors["ids"])
    return {name: values[order].clone() for name, values in tensors.items()}


def assert_same(one, other):
    assert list(one) == list(other)
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ENGINES)
def test_a_later_ask_of_a_round_sees_the_states_of_the_earlier(kind):
    fed = federation(kind)
    assert visits(fed) == [1] * 5
    assert visits(fed) == [2] * 5
    fed.begin(1)  # not committed
    assert visits(fed) == [1] * 5
    fed.commit()
    fed.begin(2)
    assert visits(fed) == [2] * 5


@pytest.mark.parametrize("kind", ENGINES)
def test_a_round_that_fails_leaves_nothing(kind):
    fed = federation(kind, Silent())
    visits(fed, cohort=fed.cohort(3))
    fed.commit()
    before = dumped(fed.engine)
    assert len(before["ids"]) == 3
    fed.begin(1)
    ask(fed)
    with pytest.raises(NobodyAnswered):
        ask(fed)
    fed.begin(2)
    assert_same(dumped(fed.engine), before)
    assert visits(fed) == [2 if i in before["ids"].tolist() else 1 for i in range(5)]


@pytest.mark.parametrize("kind", ENGINES)
def test_a_reply_that_was_not_used_does_not_advance_its_client(kind):
    fed = federation(kind, FirstResponders(0.5, 0.5))
    got = ask(fed)
    fed.commit()
    assert dumped(fed.engine)["ids"].tolist() == got.ids.tolist()


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("other", ENGINES)
def test_states_go_from_engine_to_engine_through_a_dump(kind, other):
    """Four rounds in one engine are two in one and two in another."""
    def rounds(fed, numbers):
        for number in numbers:
            fed.begin(number)
            ask(fed, fed.cohort(2), tag=10**number)
            fed.commit()
        return fed

    whole = rounds(federation("reference", dtype=torch.float64), range(4))
    first = rounds(federation(kind, dtype=torch.float64), range(2))
    second = federation(other, dtype=torch.float64)
    second.engine.load(first.engine.dump())
    assert_same(dumped(second.engine), dumped(first.engine))
    assert_same(dumped(rounds(second, range(2, 4)).engine), dumped(whole.engine))
    assert sorted(dumped(whole.engine)) == ["ids", "visits", "z.x", "z.y"]


@pytest.mark.parametrize("kind", ENGINES)
def test_a_million_clients_cost_what_was_visited(kind):
    size = torch.ones(1_000_000, dtype=torch.int64)
    table = Clients(torch.ones(1, 2), torch.ones(1), Run(torch.zeros_like(size), size))
    fed = federation(kind, clients=table)
    assert fed.engine.dump() == {}
    got = ask(fed, fed.cohort(3))
    fed.commit()
    states = fed.engine.dump()
    assert sorted(states["ids"].tolist()) == got.ids.tolist() and len(got.ids) == 3
    assert all(tensor.untyped_storage().nbytes() < 1000 for tensor in states.values())


def test_states_behave_as_a_dictionary_does():
    first = Client(torch.tensor(0), Point(torch.zeros(2), torch.zeros(1)))
    states, random = ClientStates(first, 40, torch.device("cpu")), np.random.default_rng(3)
    kept: dict[int, float] = {}
    pending: dict[int, float] = {}
    for step in range(300):
        ids = random.permutation(40)[: random.integers(1, 9)]
        now = states.read(torch.tensor(ids)).z.x[:, 1].tolist()
        assert now == [pending.get(i, kept.get(i, 0.0)) for i in ids]
        value = torch.full((len(ids),), float(step + 1))
        states.write(torch.tensor(ids), Client(value.long(), Point(value[:, None].expand(-1, 2), value[:, None])))
        pending.update(dict.fromkeys(ids, float(step + 1)))
        end = random.choice(["commit", "rollback", "go on"])
        if end == "commit":
            states.commit()
            kept.update(pending)
        if end == "rollback":
            states.rollback()
        if end != "go on":
            pending = {}
    assert dict(zip(states.dump()["ids"].tolist(), states.dump()["visits"].tolist(), strict=True)) == kept


# Cohorts in chunks.


@pytest.mark.parametrize("batches", [2, ALL])
def test_a_large_cohort_gives_the_same_in_any_chunks(batches):
    table = few(150, torch.float64)
    outcomes = []
    for kind in ENGINES:
        fed = federation(kind, DropOuts(0.2), clients=table, dtype=torch.float64)
        got = ask(fed, fed.cohort(140), batches, collect=("own", "visits"))
        fed.commit()
        assert got.each.own.tolist() == (4 * got.ids).tolist()  # each client got its own row, and replies keep order
        outcomes.append({"x": got.mean.z.x, "y": got.mean.z.y, "answered": got.ids, **dumped(fed.engine)})
    assert 90 < len(outcomes[0]["answered"]) < 130
    for outcome in outcomes[1:]:
        assert_same(outcome, outcomes[0])


@pytest.mark.parametrize(("chunk", "calls"), [(None, 3), (7, 22), (150, 1)])
def test_a_large_cohort_is_cut(chunk, calls, monkeypatch):
    seen = []
    monkeypatch.setattr("fedsaddle.engine.simulation.CHUNK_CLIENTS", 64)

    def counted(*arguments):
        seen.append(1)
        return work(*arguments)

    engine = Simulation(Line(), few(150), 2, torch.float32, chunk)
    engine.open(Client(torch.tensor(0), Line().first()))
    fed = EngineFederation(engine, as_participation(), federation("reference", clients=few(150)).population, 0)
    message = Message(Line().first(), torch.zeros(150, 4), 0.1, 1)
    assert fed.average(counted, message, fed.everyone(), 1, personal=("own",)).answered == 150
    assert len(seen) == calls  # unless told: as many as memory and the limit allow


# The clock and the dice.


def test_the_last_round_of_a_cycle_is_known():
    fed = federation("reference", Cyclic(groups=3))
    ends = []
    for number in range(7):
        fed.begin(number)
        ends.append(fed.epoch_ends)
    assert fed.cycle == 3 and ends == [False, False, True, False, False, True, False]


def test_the_servers_dice_depend_on_the_round_and_nothing_else():
    def throws(fed, round):
        fed.begin(round)
        return [fed.uniform() for _ in range(4)] + [fed.randint(0, 10**6)]

    one, other = federation("reference"), federation("simulation", DropOuts(0.1))
    ask(one)
    assert throws(one, 3) == throws(other, 3) != throws(one, 4)
    assert len(set(throws(one, 3))) == 5
    assert throws(federation("reference", seed=1), 3) != throws(one, 3)


def test_personal_rows_must_match_the_cohort():
    fed = federation("reference")
    message = Message(Line().first(), torch.zeros(9, 4), 0.1, 1)
    with pytest.raises(ValueError, match="9 rows for a cohort of 5"):
        fed.average(work, message, fed.everyone(), 1, personal=("own",))
