"""The gate, a site's rules and its disk under attack: over a wire in memory that spoils, loses and repeats answers."""

from __future__ import annotations

import json
import logging
import random
import struct
import sys
import tracemalloc
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from torch import Tensor, nn

from fedsaddle import serving, testing
from fedsaddle.assemble import assemble
from fedsaddle.config import Run
from fedsaddle.contracts import CountOf, Draw, Feasible, Mixture, Point, SettingError, ShareOf
from fedsaddle.data.clients import clients_from_list
from fedsaddle.engine.training import rounds
from fedsaddle.maths.trees import named_leaves
from fedsaddle.participation import Participation
from fedsaddle.problems import AUC, Agnostic, Pairwise
from fedsaddle.report.folder import RunFolder
from fedsaddle.runs import carry_out
from fedsaddle.sites import parcels
from fedsaddle.sites.admission import Admission
from fedsaddle.sites.coordinator import SitesFailed
from fedsaddle.sites.local import LocalWire, arrives
from fedsaddle.sites.policy import Policy, read_policy
from fedsaddle.sites.roster import Patience
from fedsaddle.sites.site import Site
from fedsaddle.sites.store import Token
from fedsaddle.sites.wire import Delivery
from sites import BATCH, SEED, across, single

LIMIT = 1 << 24
SHORT, STRIKES = 3, 2  # rounds, and bad replies in a row
ODD = "n1"  # the node that misbehaves; it calls itself "site 1"
SIZES = (6, 9, 12, 8)


@cache
def small_clients(sizes=SIZES, pure=()):
    """Few rows of three features, both classes at each client but the pure ones."""
    numbers = np.random.Generator(np.random.Philox(3))
    parts = []
    for i, n in enumerate(sizes):
        targets = np.ones(n, int) if i in pure else np.arange(n) % 2
        parts.append((numbers.normal(size=(n, 3)) + 0.7 * targets[:, None], targets))
    return clients_from_list(parts)


def linear(outputs=1):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Linear(3, outputs)


def auc(**more):
    """Its share of positives is known, so nobody is asked before the first round."""
    return AUC(linear(), **{"p": 0.5, **more}), small_clients()


class Told(NamedTuple):
    z: Feasible
    lean: Mixture
    share: ShareOf
    rows: CountOf
    whole: CountOf  # the same as an integer


class Heard(NamedTuple):
    z: Point
    lean: Tensor
    round: int


@dataclass(frozen=True)
class Telling:
    """A method whose clients send weights on the simplex, a share and counts."""

    eta: float = 0.05

    def first(self, z, federation):
        return Heard(z, torch.ones(3, dtype=z.x.dtype) / 3, 0)

    def round(self, server, federation):
        got = federation.average(self.tell, server.z, federation.everyone(), Draw(1, full=True), collect=("whole",))
        return Heard(got.mean.z, got.mean.lean, server.round + 1)

    def tell(self, oracle, z: Point, client, data) -> tuple[Told, tuple[()]]:
        z = oracle.project(z.step(oracle.gradient(z, data.minibatches[0]), self.eta, self.eta))
        real = data.full.weight > 0
        share = (data.full.weight * (data.full.targets > 0)).sum()
        return Told(z, torch.softmax(z.x[:3], 0), share, real.sum().to(z.x), real.sum()), client

    def solution(self, server):
        return server.z


METHODS = {"cdma-ada": lambda: testing.trial("cdma-ada", asked=None, steps=1), "telling": Telling,
           "cdma-nc": lambda: testing.trial("cdma-nc", asked=None, steps=1)}


def finished(job):
    return list(rounds(job.algorithm, job.federation, job.progress, job.plan, job.evaluate))


def header_of(content):
    return parcels.unpacked(content, LIMIT).header


def spoiling(change, node=ODD, after=0):
    """Answers of a node, taken apart, changed and put together again; from a round on."""

    def fate(parcel, answer):
        if parcel.node != node or header_of(parcel.content)["round"] < after:
            return arrives(parcel, answer)
        header, leaves = parcels.unpacked(answer, LIMIT)
        assert header["kind"] == "reply", header
        changed = change(header, leaves)
        return arrives(parcel, changed if isinstance(changed, bytes) else parcels.packed(header, leaves))

    return fate


def refusals(got):
    return [(record["round"], one) for _, record in got for ask in record["asks"] for one in ask["refused"]]


def asked_of(got, client=1):
    """For every ask of a run whether the client was among those asked."""
    return [client in ask["asked_clients"] for _, record in got for ask in record["asks"]]


class Leaving(LocalWire):
    """A node loses so many answers, and then is not there any more."""

    def __init__(self, count):
        super().__init__({}, self.lost)
        self.count = count

    def lost(self, parcel, answer):
        if parcel.node != ODD:
            return arrives(parcel, answer)
        self.count -= 1
        return None

    def nodes(self):
        return [node for node in self.sites if node != ODD or self.count > 0]


@cache
def without_it(method, strikes=STRIKES, more=()):
    """The server's end where the odd site's answers are lost, and it goes away after so many of them."""
    wire = Leaving(strikes)
    with TemporaryDirectory() as folder:
        return finished(hung(wire, METHODS[method](), auc(**dict(more)), Path(folder)))[-1][0].server


def hung(wire, algorithm, case, folder, **more):
    """A job over this wire, with sites of the usual kind."""
    first = across(algorithm, case, folder, rounds=SHORT)
    wire.sites = first.federation.engine.wire.sites
    return across(algorithm, case, folder, rounds=SHORT, sites=wire.sites, wire=wire, **more)


# What a spoilt answer is and a word of the reason for which it is refused.

def put(name, value):
    def change(header, leaves):
        leaves[name] = value(leaves[name]) if callable(value) else value
    return change


def at_first(value):
    def change(header, leaves):
        leaves["x"][0] = value
    return change


def said(name, value):
    def change(header, leaves):
        header[name] = value(header[name]) if callable(value) else value
    return change


def gone(name):
    def change(header, leaves):
        del leaves[name]
    return change


def as_bytes(function):
    return lambda header, leaves: function(parcels.packed(header, leaves))


BAD = {
    "nan": (at_first(float("nan")), "field 'x' is not finite"),
    "inf": (at_first(float("inf")), "field 'x' is not finite"),
    "minus inf": (at_first(float("-inf")), "field 'x' is not finite"),
    "1e30": (at_first(1e30), "field 'x' has a number above 1e+16"),
    "long": (put("x", lambda x: x.repeat(2)), "field 'x' has shape (12,), not (6,)"),
    "turned": (put("x", lambda x: x[None]), "field 'x' has shape (1, 6)"),
    "one number": (put("x", lambda x: x[:1]), "field 'x' has shape (1,)"),
    "no dimension": (put("x", lambda x: x[0]), "field 'x' has shape ()"),
    "empty": (put("y", lambda y: y[:0]), "field 'y' has shape (0,)"),
    "flat and vast": (put("y", lambda y: y.reshape([1] * 5000)), "field 'y' has shape (1, 1,"),
    "float32": (put("x", lambda x: x.float()), "field 'x' is torch.float32, not torch.float64"),
    "integers": (put("x", lambda x: x.long()), "field 'x' is torch.int64"),
    "missing": (gone("y"), "field 'y' is missing"),
    "nothing": (lambda header, leaves: leaves.clear(), "field 'x' is missing"),
    "further": (put("more", torch.ones(1)), "field 'more' is not one of the reply's"),
    "minus rows": (said("rows", lambda rows: -rows), "claims -9 rows, where the node has 9"),
    "no rows": (said("rows", 0), "claims 0 rows"),
    "many rows": (said("rows", 10**12), "claims 1000000000000 rows"),
    "rows in words": (said("rows", "9"), "rows"),
    "true rows": (said("rows", True), "claims True rows"),
    "oversize": (put("more", torch.zeros(1 << 18, dtype=torch.float64)), "more than the 1048576 allowed"),
    "round": (said("round", lambda n: n + 1), "another round"),
    "run": (said("run", "other"), "another run"),
    "client": (said("client", 0), "another client"),
    "session": (said("session", "abc"), "another session"),
    "number": (said("number", lambda n: n - 1), "another number"),
    "ask": (said("ask", lambda n: n + 1), "another ask"),
    "kind": (said("kind", "hello"), "no reply"),
    "garbage": (as_bytes(lambda content: random.Random(0).randbytes(len(content))), "cannot be read"),
    "no bytes": (as_bytes(lambda content: b""), "cannot be read"),
    "cut": (as_bytes(lambda content: content[:-3]), "cannot be read"),
    "header alone": (as_bytes(lambda content: content[: content.index(b"}") + 1]), "cannot be read"),
}
BAD_TOLD = {
    "off the simplex": (put("lean", lambda lean: lean * 1.5), "field 'lean' does not sum to one"),
    "negative weight": (put("lean", lambda lean: lean.new_tensor([-0.5, 0.75, 0.75])), "field 'lean' is outside 0 to"),
    "share": (put("share", lambda share: share + 1), "field 'share' is outside 0 to 1"),
    "minus counts": (put("rows", lambda rows: -rows), "field 'rows' is outside 0 to 9"),
    "many counts": (put("rows", lambda rows: rows + 1), "field 'rows' is outside 0 to 9"),
    "minus integers": (put("whole", lambda rows: -rows), "field 'whole' is outside 0 to 9"),
    "vast integers": (put("whole", lambda rows: rows + 2**62), "field 'whole' has a number above"),
}


@pytest.mark.parametrize(("method", "kind"), [*(("cdma-nc", kind) for kind in BAD),
                                              *(("telling", kind) for kind in BAD_TOLD)])
def test_a_bad_reply_is_as_if_it_were_lost(method, kind, tmp_path):
    change, words = {**BAD, **BAD_TOLD}[kind]
    talk = []
    got = finished(across(METHODS[method](), auc(), tmp_path, fate=spoiling(change), rounds=SHORT,
                          admission=Admission(mib=1, strikes=STRIKES), say=talk.append))
    refused = refusals(got)
    assert [one["node"] for _, one in refused] == ["site 1"] * STRIKES
    assert all(words in one["reason"] and len(one["reason"]) < 200 for _, one in refused), refused
    assert talk == [*(f"round {round}: site 1: {one['reason']}" for round, one in refused),
                    f"site 1 is set aside after {STRIKES} bad replies in a row"]
    assert asked_of(got) == [True] * STRIKES + [False] * (SHORT - STRIKES)
    assert not any(record["skipped"] for _, record in got)
    testing.compare(got[-1][0].server, without_it(method), f"{kind} against a lost answer", 1e-9)


def test_lost_answers_and_honest_errors_are_no_strikes(tmp_path):
    error = parcels.packed({"kind": "error", "reason": "the disk is full"}, {})
    for name, fate in (("lost", lambda parcel, answer: None if parcel.node == ODD else arrives(parcel, answer)),
                       ("error", spoiling(lambda header, leaves: error))):
        got = finished(across(METHODS["cdma-nc"](), auc(), tmp_path / name, fate=fate, rounds=SHORT,
                              admission=Admission(strikes=1)))
        assert asked_of(got) == [True] * SHORT
        assert len(refusals(got)) == SHORT
    assert {one["reason"] for _, one in refusals(got)} == {"the disk is full"}


def test_a_good_reply_wipes_strikes_out(tmp_path):
    bad = spoiling(at_first(float("nan")))

    def fate(parcel, answer):
        return arrives(parcel, answer) if header_of(parcel.content)["round"] == 2 else bad(parcel, answer)

    got = finished(across(METHODS["cdma-nc"](), auc(), tmp_path, fate=fate, rounds=6, admission=Admission(strikes=3)))
    assert asked_of(got) == [True] * 6
    assert [round for round, _ in refusals(got)] == [1, 2, 4, 5, 6]


def test_a_dual_outside_the_domain_is_refused(tmp_path):
    got = finished(across(METHODS["cdma-nc"](), auc(form="margin"), tmp_path, rounds=SHORT,
                          fate=spoiling(put("y", lambda y: y - 2)), admission=Admission(strikes=STRIKES)))
    assert {one["reason"] for _, one in refusals(got)} == {"the reply is not in the problem's domain"}
    testing.compare(got[-1][0].server, without_it("cdma-nc", more=(("form", "margin"),)), "as if lost", 1e-9)


def test_a_negative_loss_is_refused(tmp_path):
    def change(header, leaves):
        if "value" in leaves:
            leaves["value"] = -leaves["value"]

    case = Agnostic(linear(2)), small_clients()
    got = finished(across(testing.trial("drfa", asked=4, steps=1), case, tmp_path, fate=spoiling(change), name="drfa",
                          rounds=SHORT, admission=Admission(strikes=99)))
    found = refusals(got)
    assert {(one["node"], one["reason"][:23]) for _, one in found} == {("site 1", "field 'value' is outsid")}
    assert len(found) == SHORT  # of the second ask of every round, in which all four are asked for their loss
    assert bool(torch.isfinite(got[-1][0].server.mixture).all())


def test_scores_outside_their_range_are_refused_and_missing_rows_are_not(tmp_path):
    case = Pairwise(linear(), shares=(1.0, 0.75)), small_clients(pure=(2,))
    missing = []

    def fate(parcel, answer):
        leaves = parcels.unpacked(answer, LIMIT).leaves
        if parcel.node == "n2":
            missing.append(bool(leaves["negatives"].isnan().all()))
        return spoilt(parcel, answer)

    spoilt = spoiling(put("positives", lambda scores: scores + 1))
    got = finished(across(testing.trial("cycp-pairwise", asked=None, steps=1), case, tmp_path, fate=fate, rounds=SHORT,
                          name="cycp-pairwise", policy=Policy(raw_scores=True)))
    assert missing == [True] * SHORT
    assert {(one["node"], one["reason"]) for _, one in refusals(got)} == \
        {("site 1", "field 'positives' is outside 0 to 1, as a scores must not be")}
    assert [ask["clients"] for _, record in got for ask in record["asks"]] == [[0, 2, 3]] * SHORT


def test_a_share_above_one_before_the_first_round_ends_the_run_in_words(tmp_path):
    with pytest.raises(SitesFailed, match=r"site 1 did not answer before the first round \(field 'positive' is outs"):
        across(METHODS["cdma-nc"](), auc(p=None), tmp_path, fate=spoiling(put("positive", lambda s: s + 1), after=-1))


def test_an_answer_that_comes_twice_counts_once(tmp_path):
    class Twice(LocalWire):
        def receive(self, seconds):
            found = super().receive(seconds)
            return [*found, *found]

    plain = finished(across(METHODS["cdma-ada"](), auc(), tmp_path / "plain", rounds=SHORT))
    twice = finished(hung(Twice({}), METHODS["cdma-ada"](), auc(), tmp_path / "twice"))
    testing.compare(twice[-1][0].server, plain[-1][0].server, "answers twice", 0.0)
    assert [record["asks"][0]["clients"] for _, record in twice] == [[0, 1, 2, 3]] * SHORT
    assert not refusals(twice)


def test_an_answer_from_another_node_is_refused(tmp_path):
    def fate(parcel, answer):
        return Delivery("n0" if parcel.node == ODD else parcel.node, parcel.ticket, answer)

    got = finished(across(METHODS["cdma-nc"](), auc(), tmp_path, fate=fate, rounds=SHORT,
                          admission=Admission(strikes=STRIKES), patience=Patience(deadline=0.3)))
    assert {one["reason"] for _, one in refusals(got)} == {"it answered what another node was asked"}
    testing.compare(got[-1][0].server, without_it("cdma-nc"), "as if lost", 1e-9)


@pytest.mark.parametrize("factor", [0.0, 5.0])
def test_the_bound_on_norms(factor, tmp_path):
    got = finished(across(METHODS["cdma-nc"](), auc(), tmp_path, rounds=SHORT, admission=Admission(norm_factor=factor),
                          fate=spoiling(put("x", lambda x: 1000 * x), after=2)))
    clients = [record["asks"][0]["clients"] for _, record in got]
    everyone, others = [0, 1, 2, 3], [0, 2, 3]
    assert clients == [everyone, everyone, others if factor else everyone]
    assert all("5 times the median of earlier replies" in one["reason"] for _, one in refusals(got))


# Reading what came.

def parcel_of(table, data=b"", header=b"{}"):
    """A parcel with this table of tensors, as bytes or as it goes into JSON."""
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return parcels.MAGIC + parcels.LENGTH.pack(len(header)) + header + struct.pack("<Q", len(text)) + text + data


def entry(shape, start=0, end=0, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def read_or_refused(content):
    """Whether it can be read; nothing else may come of it, and no tensor larger than the bytes."""
    try:
        header, leaves = parcels.unpacked(content, LIMIT)
    except parcels.Unreadable as error:
        assert len(str(error)) < 100
        return False
    assert isinstance(header, dict)
    assert sum(leaf.numel() * leaf.element_size() for leaf in leaves.values()) <= len(content)
    return True


SOUND = parcels.packed({"kind": "reply", "rows": 9, "deep": [[1], {"a": None}]},
                       {"x": torch.arange(5.0), "y": torch.zeros(2, 2, dtype=torch.int64), "none": torch.zeros(0)})
JUNK = [
    parcel_of({"a": entry([10**12], 0, 4 * 10**12)}), parcel_of({"a": entry([10**12])}),
    parcel_of({"a": entry([0, 10**12])}), parcel_of({"a": entry([0, 2**63 - 1, 2**63 - 1])}),
    parcel_of({"a": entry([2**40, 2**40])}), parcel_of({"a": entry([0, 2**64])}), parcel_of({"a": entry([-1])}),
    parcel_of({"a": entry([1] * 10_000, 0, 4)}, b"1234"), parcel_of({"a": entry([1], 4, 0)}, b"1234"),
    parcel_of({"a": entry([1], 0, 4), "b": entry([1], 2, 6)}, b"123456"), parcel_of({"a": entry([2], 0, 4)}, b"1234"),
    *(parcel_of({"a": entry([1], 0, size, kind)}, b"\xff" * size)
      for kind, size in (("F4", 1), ("F8_E8M0", 1), ("C64", 8), ("U64", 8), ("BOOL", 1), ("X9", 4))),
    parcel_of({f"a{i}": entry([0]) for i in range(15_000)}), parcel_of(b"[" * 500_000), parcel_of(b'{"a":' * 100_000),
    parcel_of(b'{"\\ud800":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'), parcel_of({"__metadata__": 3}),
    parcel_of({}, header=b"[" * 100_000), parcel_of({}, header=b'{"a":' * 10_000 + b"1" + b"}" * 10_000),
    parcel_of({}, header=b'{"a":"' + b"]" * 9000 + b'","b":' + b"[" * 9000 + b"]" * 9000 + b"}"),
    parcel_of({}, header=b'{"a":[' + b"1.5," * 250_000 + b"1]}"),
    parcel_of({}, header=b'{"a":' + b"9" * 900_000 + b"}"),
    parcel_of({}, header=b"{" + b",".join(b'"%d":""' % i for i in range(90_000)) + b"}"),
    parcel_of({}, header=b'{"a": NaN}'), parcel_of({}, header=b"[]"), parcel_of({}, header=b"\xff\xfe\x00"),
    parcels.MAGIC + b"\xff" * 40, parcels.MAGIC + parcels.LENGTH.pack(2) + b"{}" + b"\xff" * 8 + b"{}",
]


@pytest.mark.parametrize("number", range(len(JUNK)))
def test_junk_costs_no_more_memory_than_its_size_lets_expect(number):
    content = JUNK[number]
    parcels.unpacked(SOUND, LIMIT)
    tracemalloc.start()
    try:
        read_or_refused(content)
        assert tracemalloc.get_traced_memory()[1] < 64 * len(content) + (1 << 16)
    finally:
        tracemalloc.stop()


@settings(deadline=None)
@given(some.binary(max_size=300), some.booleans())
def test_any_bytes_are_read_or_refused(content, magic):
    read_or_refused((parcels.MAGIC if magic else b"") + content)


@settings(deadline=None)
@given(some.lists(some.tuples(some.integers(0, len(SOUND) - 1), some.binary(max_size=8)), max_size=4),
       some.integers(0, len(SOUND)), some.sampled_from([None, 0, 1, 2**31, 2**32 - 1]),
       some.sampled_from([None, 0, 7, 10**6, 2**40, 2**64 - 1]))
def test_a_spoilt_parcel_is_read_or_refused(patches, end, header, table):
    content = bytearray(SOUND)
    start = len(parcels.MAGIC) + parcels.LENGTH.size
    if table is not None:
        at = start + parcels.LENGTH.unpack(SOUND[len(parcels.MAGIC) : start])[0]
        content[at : at + 8] = struct.pack("<Q", table)
    if header is not None:
        content[len(parcels.MAGIC) : start] = parcels.LENGTH.pack(header)
    for at, patch in patches:
        content[at : at + len(patch)] = patch
    read_or_refused(bytes(content[: end or None]))


SIZE = some.one_of(some.integers(-2, 9), some.sampled_from([2**31, 2**62, 2**63, 10**12, 10**30]))
TABLES = some.dictionaries(some.text(max_size=4), some.fixed_dictionaries({
    "dtype": some.sampled_from(["F64", "F32", "BF16", "I64", "U8", "BOOL", "F4", "C64", "", 3]),
    "shape": some.lists(SIZE, max_size=5), "data_offsets": some.lists(SIZE, min_size=1, max_size=3)}), max_size=4)


@settings(deadline=None)
@given(TABLES, some.binary(max_size=40))
def test_any_table_of_tensors_is_read_or_refused(table, data):
    read_or_refused(parcel_of(table, data))


# A site that is asked by itself.

def captured(folder, algorithm=None, case=None, **more):
    """The asks of the first round at the odd site, as bytes, and a site like it that has answered none."""
    asks = []

    def fate(parcel, answer):
        if parcel.node == ODD:
            asks.append(parcel.content)
        return arrives(parcel, answer)

    job = across(algorithm or METHODS["cdma-nc"](), case or auc(), folder / "run", fate=fate, rounds=1, **more)
    finished(job)
    old = job.federation.engine.wire.sites[ODD]
    return asks, Site(old.name, old.clients, folder / "new", old.pose)


FIELDS = ("kind", "run", "label", "settings", "classes", "constants", "session", "number", "client", "round", "ask",
          "address", "work", "form", "state", "stands", "keep", "new", "nonsense")
VALUES = some.recursive(some.one_of(some.none(), some.booleans(), some.integers(), some.floats(allow_nan=False),
                                    some.text(max_size=20), some.sampled_from(
                                        ["hello", "../../x", "a" * 70, "é" * 300_000, "problem.positive_share",
                                         "algorithm.first", "algorithm.__init__", "\ud800", "[algorithm]"])),
                        lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=3), inner,
                                                                                       max_size=2), max_leaves=4)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None, max_examples=120)
@given(change=some.dictionaries(some.sampled_from(FIELDS), VALUES, max_size=3), drop=some.sampled_from([None, *FIELDS]),
       junk=some.binary(max_size=60))
def test_a_site_always_answers_with_a_parcel(change, drop, junk, one_site):
    site, header, leaves, _ = one_site
    header = {**header, "number": site.store.sessions.get(header["session"], 0) + 1, **change}
    header.pop(drop, None)
    text = json.dumps(header, ensure_ascii=False).encode("utf-8", "surrogatepass")  # as large as it may be on its way
    whole = parcels.packed({}, leaves)
    sent = parcels.MAGIC + parcels.LENGTH.pack(len(text)) + text + whole[len(parcels.MAGIC) + 6 :]
    for content in (sent, junk, parcels.MAGIC + junk):
        answer = header_of(site.answer(content))
        assert answer["kind"] in ("reply", "error", "refused", "hello")


@pytest.fixture(scope="module")
def one_site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    (ask,), site = captured(folder)
    return (site, *parcels.unpacked(ask, LIMIT), folder)


def test_the_unspoilt_ask_of_the_fuzzer_is_answered(one_site):
    site, header, leaves, folder = one_site
    fresh = Site(site.name, site.clients, folder / "fresh", site.pose)
    assert header_of(fresh.answer(parcels.packed(header, leaves)))["kind"] == "reply"


@pytest.mark.parametrize("field", ["run", "session", "number"])
def test_an_answer_does_not_repeat_what_is_too_long_for_it(field, one_site):
    site, header, *_ = one_site
    text = json.dumps({**header, field: "é" * 300_000}, ensure_ascii=False).encode()  # six bytes each in an answer
    assert header_of(site.answer(parcel_of({}, header=text)))["kind"] in ("error", "refused")
    text = json.dumps({"kind": "hello", field: "é" * 300_000}, ensure_ascii=False).encode()
    assert header_of(site.answer(parcel_of({}, header=text)))["kind"] in ("hello", "error")


@pytest.mark.parametrize("client", [-1, 10**12])
def test_a_client_that_cannot_be_costs_no_memory(client, one_site):
    site, header, leaves, folder = one_site
    fresh = Site(site.name, site.clients, folder / str(client), site.pose)
    answer = header_of(fresh.answer(parcels.packed({**header, "client": client}, leaves)))
    assert (answer["kind"], answer["reason"]) == ("refused", "the ask names a client that there cannot be")


# The site's own rules.

RULES = {
    "algorithm": (Policy(algorithms=("fedavg",)), "does not allow algorithm 'cdma-nc'"),
    "problem": (Policy(problems=("quadratic",)), "does not allow problem 'auc'"),
    "max_rounds": (Policy(max_rounds=2), "ends a run after 2 rounds"),
    "min_per_class": (Policy(min_per_class=5), "fewer than 5 rows of a class"),
    "min_noise": (Policy(min_noise=0.5), "wants noise of at least 0.5, and the run adds none"),
}


def ruled(algorithm, case, folder, policy, name):
    """A run in which the odd site has rules of its own."""
    job = across(algorithm, case, folder, rounds=3, name=name, policy=Policy(raw_scores=True))
    job.federation.engine.wire.sites[ODD].policy = policy
    return finished(job)


def check_rule(got, words, free=0):
    assert [(round, one["node"]) for round, one in refusals(got)] == [(n, "site 1") for n in range(free + 1, 4)]
    assert all(words in one["reason"] for _, one in refusals(got)), refusals(got)
    assert not any(record["skipped"] for _, record in got)
    assert all(asked_of(got))  # no strike


@pytest.mark.parametrize("rule", RULES)
def test_a_site_keeps_its_rules_and_the_others_go_on(rule, tmp_path):
    policy, words = RULES[rule]
    check_rule(ruled(METHODS["cdma-nc"](), auc(), tmp_path, policy, "cdma-nc"), words, 2 if rule == "max_rounds" else 0)


def test_scores_and_losses_stay_where_the_rules_say_so(tmp_path):
    pairs = Pairwise(linear(), shares=(1.0, 1.0)), small_clients()
    got = ruled(testing.trial("cycp-pairwise", asked=None, steps=1), pairs, tmp_path / "a", Policy(), "cycp-pairwise")
    check_rule(got, "keeps scores of single rows at the site, which cycp-pairwise needs")
    drfa = testing.trial("drfa", everyone=True, steps=1)
    got = ruled(drfa, (Agnostic(linear(2)), small_clients()), tmp_path / "b", Policy(client_losses=False), "drfa")
    assert {one["reason"] for _, one in refusals(got)} == {"the site's policy keeps its losses at the site, which drfa "
                                                           "needs"}
    assert not any(record["skipped"] for _, record in got)


@pytest.mark.parametrize(("text", "words"), [
    ("max_rounds = 0", ("policy.max_rounds = 0", "at least 1")),
    ("min_noise = -1.0", ("policy.min_noise = -1.0", "at least 0")),
    ("raw_scores = 'yes'", ("policy.raw_scores = 'yes'", "bool")),
    ("max_round = 3", ("policy.max_round = 3", "did you mean 'max_rounds'?")),
    ("a = = 3", ("cannot be read", "TOML")),
])
def test_wrong_rules_are_explained(text, words, tmp_path):
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises(SettingError) as error:
        read_policy(tmp_path / "policy.toml")
    assert all(word in str(error.value) for word in words)


def test_rules_that_are_not_there_are_an_error_and_none_are_the_usual_ones(tmp_path):
    with pytest.raises(SettingError, match=r"none\.toml.*give a TOML file"):
        read_policy(tmp_path / "none.toml")
    assert read_policy(None) == Policy()


OWN = {
    "algorithm": '[algorithm]\nname = "{own}"\n[model]\nname = "linear"\n',
    "problem": '[algorithm]\nname = "fedavg"\n[model]\nname = "linear"\n[problem]\nname = "{own}"\n',
    "model": '[algorithm]\nname = "fedavg"\n[model]\nname = "{own}"\n',
}


@pytest.mark.parametrize("section", [*OWN, "another method"])
def test_a_class_by_its_path_is_not_even_imported_unless_the_rules_name_it(section, tmp_path, monkeypatch):
    module = f"trace_{section.replace(' ', '_')}"
    (tmp_path / f"{module}.py").write_text(
        f"open({str(tmp_path / 'trace')!r}, 'w').close()\n\ndef thing(**more):\n    raise OSError\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    own, label = f"{module}:thing", "" if section in OWN else "plain"
    text = OWN[section].format(own=own) if section in OWN else \
        f'[algorithms.plain]\nname = "fedavg"\n[algorithms.other]\nname = "{own}"\n[model]\nname = "linear"\n'
    header = {"kind": "ask", "run": "run", "label": label, "settings": text, "classes": 2, "constants": {"p": 0.5},
              "session": "1", "number": 1, "client": 0, "round": 0, "ask": 0, "address": [0, 0, 0], "work": "x",
              "form": 0, "draw": [1, False, True], "state": [-1] * 3, "stands": [-1] * 3, "keep": [-1] * 3,
              "new": [0, 0, 1]}
    site = Site("one", single(small_clients(), 0), tmp_path / "site", serving.posed)
    answer = header_of(site.answer(parcels.packed(header, {})))
    reason = f"the site's policy does not allow {section} {own!r}" if section in OWN else "the run has no such work"
    assert (answer["kind"], answer["reason"]) == ("refused", reason)
    assert module not in sys.modules
    assert not (tmp_path / "trace").exists()
    if section in OWN:  # and named there, it is
        site.policy = Policy(**{f"{section}s": (own,)})
        site.answer(parcels.packed({**header, "number": 2}, {}))
        assert (tmp_path / "trace").exists()


# What leaves a site.

SECRET = 31337.125


@dataclass(frozen=True)
class Quoting:
    """A problem that quotes a row of its client when it fails."""

    row: tuple[float, ...]
    plain: AUC

    def first(self):
        return self.plain.first()

    def loss(self, x, y, batch):
        raise ValueError(f"cannot digest {self.row}")


def test_nothing_of_a_row_leaves_with_an_error(tmp_path, caplog):
    answers = []

    def fate(parcel, answer):
        if parcel.node == ODD:
            answers.append(answer)
        return arrives(parcel, answer)

    job = across(METHODS["cdma-nc"](), auc(), tmp_path, fate=fate, rounds=2, say=answers.append)
    site = job.federation.engine.wire.sites[ODD]
    site.clients.inputs[0, 0] = SECRET
    plain = site.pose

    def pose(tables, label, classes, constants, own):
        posed = plain(tables, label, classes, constants, own)
        return posed._replace(problem=Quoting(tuple(own.inputs[0].tolist()), posed.problem))

    site.pose = pose
    with caplog.at_level(logging.WARNING):
        got = finished(job)
        answers.append(site.answer(parcels.packed({"kind": "hello", "number": 1}, {})))
    kinds = [header_of(answer)["kind"] for answer in answers if isinstance(answer, bytes)]
    assert kinds == ["error", "error", "hello"]
    assert {one["reason"] for _, one in refusals(got)} == {"the site failed with ValueError; its own log says more"}
    sent = b"".join(answer if isinstance(answer, bytes) else answer.encode() for answer in answers)
    for trace in (b"31337", struct.pack("<d", SECRET), struct.pack("<f", SECRET), b"digest", b"Traceback", b".py"):
        assert trace not in sent
    assert "31337.125" in caplog.text
    assert "Traceback" in caplog.text


# Drop-outs.

@cache
def apart():
    """Six clients of sixty rows whose classes can be told apart, and what fifty rounds in simulation make of them."""
    case = AUC(linear(), p=0.5), small_clients((60,) * 6)
    algorithm = testing.trial("cdma-ada", asked=3, steps=1, eta=0.5, gamma=0.5)
    run = Run(rounds=50, batch_size=BATCH, weights="size", dtype="float64", seed=SEED, evaluate_every=50)
    job = assemble(algorithm, *case, None, Participation(), run)
    return case, algorithm, finished(job)[-1][1]["measures"]["train"]["auc"]


@pytest.mark.parametrize("rate", [0.3, 0.5])
def test_answers_lost_on_the_way_cost_little(rate, tmp_path):
    case, algorithm, whole = apart()

    def fate(parcel, answer):
        header = header_of(parcel.content)
        dice = random.Random(f"{header['round']} {header['ask']} {parcel.node}").random()
        return None if dice < rate else arrives(parcel, answer)

    got = finished(across(algorithm, case, tmp_path, fate=fate, rounds=50))
    lost = len(refusals(got)) / sum(len(ask["asked_clients"]) for _, record in got for ask in record["asks"])
    assert len(got) == 50
    assert abs(lost - rate) < 0.1
    assert whole > 0.7
    if rate < 0.5:
        assert abs(got[-1][1]["measures"]["train"]["auc"] - whole) < 0.01


# Which states stand.

CODASCA = {"asked": 3, "steps": 1}


def states_of(job):
    """The states that the server says stand, from the sites' disks."""
    coordinator = job.federation.engine
    return {client: coordinator.wire.sites[f"n{client}"].store.read("run", token)
            for client, token in sorted(coordinator.standing.tokens.items())}


def flaky(parcel, answer):
    """Some answers are lost and some spoilt, the same ones in every run."""
    header = header_of(parcel.content)
    dice = random.Random(f"{header['round']} {parcel.node}").random()
    bad = spoiling(put("z.x", lambda x: x * float("nan")), parcel.node)
    if header["round"] < 0:  # everyone must answer then
        return arrives(parcel, answer)
    return None if dice < 0.2 else bad(parcel, answer) if dice < 0.4 else arrives(parcel, answer)


def replayed(algorithm, case, got, count):
    """A simulation in which exactly the same clients answered: its server, and states by client."""
    run = Run(rounds=count, batch_size=BATCH, weights="size", dtype="float64", seed=SEED, evaluate_every=1)
    job = assemble(algorithm, *case, None, Participation(), run, records=[record for _, record in got])
    end = finished(job)[-1][0].server
    states = job.federation.engine.dump()
    ids = states.pop("ids").tolist()
    return end, {client: {name: leaf[at] for name, leaf in states.items()} for at, client in enumerate(ids)}


def same_states(ours, theirs, what):
    assert ours.keys() == theirs.keys()
    for client, state in ours.items():
        assert state.keys() == theirs[client].keys()
        for name, leaf in state.items():
            assert torch.allclose(leaf, theirs[client][name].to(leaf), rtol=0, atol=1e-9), f"{what}: {client} {name}"


def test_a_reply_that_was_not_used_does_not_advance_a_state(tmp_path):
    algorithm, case, count = testing.trial("codasca", **CODASCA), auc(), 10
    job = across(algorithm, case, tmp_path, fate=flaky, name="codasca", rounds=count, admission=Admission(strikes=99))
    got = finished(job)
    reasons = {one["reason"] for _, one in refusals(got)}
    assert reasons == {"the answer was lost", "field 'z.x' is not finite"}
    server, states = replayed(algorithm, case, got, count)
    testing.compare(got[-1][0].server, server, "codasca with losses", 1e-9)
    same_states(states_of(job), states, "codasca with losses")


def test_a_worker_started_anew_before_every_round_gives_the_same(tmp_path):
    def ended(folder, anew):
        job = across(testing.trial("codasca", **CODASCA), auc(), folder, name="codasca", rounds=6)
        sites = job.federation.engine.wire.sites
        ends = []
        for progress, _ in rounds(job.algorithm, job.federation, job.progress, job.plan, job.evaluate):
            ends.append(progress.server)
            for node, old in list(sites.items()) if anew else ():
                sites[node] = Site(old.name, old.clients, old.store.folder, old.pose)
        return ends[-1], states_of(job)

    plain, anew = ended(tmp_path / "a", False), ended(tmp_path / "b", True)
    testing.compare(anew[0], plain[0], "workers anew", 0.0)
    same_states(anew[1], plain[1], "workers anew")


@dataclass(frozen=True)
class Asking:
    """AUC that asks its clients before the first round of every start, and has no constants to remember."""

    plain: AUC

    def __getattr__(self, name):
        if name in ("constants", "with_constants", "plain"):
            raise AttributeError(name)
        return getattr(self.plain, name)

    def prepare(self, federation):
        AUC(self.plain.net).prepare(federation)
        return self


@pytest.mark.parametrize("asks_again", [False, True])
def test_a_server_started_again_from_its_checkpoint_ends_bit_equal(asks_again, tmp_path):
    algorithm, count = testing.trial("codasca", **CODASCA), 8
    problem, clients = auc(**({} if asks_again else {"p": None}))
    case = (Asking(problem) if asks_again else problem), clients
    run = Run(rounds=count, checkpoint_every=4, evaluate_every=1, workers=1)
    plain = carry_out(across(algorithm, case, tmp_path / "a", name="codasca", rounds=count, fate=flaky,
                             admission=Admission(strikes=99)), run)
    folder = RunFolder(tmp_path / "run")
    folder.create({})
    started = across(algorithm, case, tmp_path / "b", name="codasca", rounds=count, fate=flaky,
                     admission=Admission(strikes=99))

    class Killed(Exception):
        pass

    def watch(record):
        if record["round"] == 7:  # some rounds after a checkpoint
            raise Killed

    with pytest.raises(Killed):
        carry_out(started, run, folder, watch)
    again = across(algorithm, case, tmp_path / "b", name="codasca", rounds=count, fate=flaky,
                   admission=Admission(strikes=99), checkpoints=folder.checkpoints)
    assert again.progress.round == 4
    got = carry_out(again, run, folder)
    testing.compare(got.server, plain.server, "a server started again", 0.0)
    assert [r["asks"][0]["clients"] for r in got.records] == [r["asks"][0]["clients"] for r in plain.records]


def test_a_replayed_ask_is_refused_by_a_new_worker_too(tmp_path):
    (ask,), site = captured(tmp_path, testing.trial("codasca", steps=1, asked=None), name="codasca")
    assert header_of(site.answer(ask))["kind"] == "reply"
    for _ in range(2):
        answer = header_of(site.answer(ask))
        assert (answer["kind"], answer["reason"]) == ("refused", "the ask was answered before: it is a replay")
        site = Site(site.name, site.clients, site.store.folder, site.pose)


def test_a_lost_state_is_told_and_the_others_go_on(tmp_path):
    job = across(testing.trial("codasca", steps=1, asked=None), auc(), tmp_path, name="codasca", rounds=3)
    loop = rounds(job.algorithm, job.federation, job.progress, job.plan, job.evaluate)
    got = [next(loop)]
    for path in (tmp_path / "1").rglob("*.safetensors"):
        path.unlink()
    got += loop
    assert refusals(got) == [(n, {"node": "site 1", "reason": "the site has lost the state that the ask starts from"})
                             for n in (2, 3)]
    assert [record["asks"][0]["clients"] for _, record in got] == [[0, 1, 2, 3], [0, 2, 3], [0, 2, 3]]


class Tally(NamedTuple):
    asks: Tensor


class Totals(NamedTuple):
    z: Point
    seen: Tensor  # tallies of the clients, summed over rounds
    round: int


@dataclass(frozen=True)
class TwoAsks:
    """Clients count their asks; a round has two of them."""

    def first(self, z, federation):
        return Totals(z, torch.zeros((), dtype=z.x.dtype), 0)

    def first_client(self, z):
        return Tally(torch.zeros((), dtype=z.x.dtype))

    def round(self, server, federation):
        federation.average(self.count, server.z, federation.everyone(), batches=1)
        got = federation.average(self.count, server.z, federation.everyone(), batches=1).mean
        return Totals(server.z, server.seen + got.asks, server.round + 1)

    def count(self, oracle, z: Point, client, data):
        return Tally(client.asks + 1), Tally(client.asks + 1)

    def solution(self, server):
        return server.z


def test_a_round_that_does_not_count_leaves_states_as_they_were(tmp_path):
    def fate(parcel, answer):
        header = header_of(parcel.content)
        return None if (header["round"], header["ask"]) == (1, 1) else arrives(parcel, answer)

    job = across(TwoAsks(), auc(), tmp_path, fate=fate, rounds=3)
    got = finished(job)
    assert [record["skipped"] for _, record in got] == [False, True, False]
    assert float(got[-1][0].server.seen) == 2 + 4
    assert {float(state["asks"]) for state in states_of(job).values()} == {4.0}


def test_a_site_keeps_few_states(tmp_path):
    job = across(testing.trial("codasca", steps=1, asked=None), auc(), tmp_path, name="codasca", rounds=5)
    finished(job)
    for client in range(4):
        names = {path.name for path in (tmp_path / str(client) / "states" / "run").iterdir()}
        token = job.federation.engine.standing.tokens[client]
        assert f"{'.'.join(str(part) for part in token)}.safetensors" in names
        assert len(names) <= 3
    assert token == Token(4, 0, job.federation.engine.session)
    assert dict(named_leaves(token))["round"] == 4
