"""Who can be asked, who is drawn, who answers, and when the server goes on."""

from itertools import combinations
from math import ceil, inf

import numpy as np
import pytest
import torch

from fedsaddle.contracts import NobodyAnswered, SettingError
from fedsaddle.participation import RESPONSES, SELECTIONS, Participation, as_participation
from fedsaddle.participation.responses import (
    Deadline,
    DropOuts,
    Everyone,
    FirstResponders,
    Latencies,
    Moment,
    arrivals,
)
from fedsaddle.participation.selection import Cyclic, Population, Trace, Uniform, Weighted, draw

torch.set_num_threads(1)
SIZES = [1, 2, 3, 6, 8, 20]
OBJECTIVE = torch.tensor([0.3, 0.1, 0.2, 0.1, 0.25, 0.05], dtype=torch.float64)
SIX = Population(6, torch.tensor(SIZES), OBJECTIVE)
LOSSES = torch.tensor([3.0, -1.0, 4.0, 1.0, -5.0, 9.0], dtype=torch.float64)
MEAN = float(OBJECTIVE @ LOSSES)


def clients(count):
    return Population(count, torch.ones(count, dtype=torch.int64), torch.full((count,), 1 / count))


def cohort(selection, population, size, round=0, weights=None, replace=False, seed=0, number=0):
    return draw(selection, population, seed, round, number, size, weights, replace)


def chi2(observed, expected):
    observed, expected = np.asarray(observed, float), np.asarray(expected, float)
    return float(((observed - expected) ** 2 / expected).sum())


# Selections.


def test_uniform_draws_every_pair_equally_often():
    drawn = [tuple(cohort(Uniform(), clients(6), 2, round).ids.tolist()) for round in range(3000)]
    counts = [drawn.count(pair) for pair in combinations(range(6), 2)]
    assert sum(counts) == 3000 and chi2(counts, [200] * 15) < 50  # 14 degrees of freedom


def test_uniform_weighs_by_the_objective():
    got = cohort(Uniform(), SIX, 3)
    assert got.times.tolist() == [1, 1, 1] and got.ids.tolist() == sorted(set(got.ids.tolist()))
    assert torch.equal(got.weight, OBJECTIVE[got.ids])


def test_no_size_means_everyone_once():
    for selection in (Uniform(), Weighted(), Weighted(replace=True)):
        got = cohort(selection, SIX, None)
        assert got.ids.tolist() == list(range(6)) and got.times.tolist() == [1] * 6
        assert torch.equal(got.weight, OBJECTIVE)


@pytest.mark.parametrize(("by", "expected"), [((), SIZES), ((5.0, 0.0, 1.0, 1.0, 2.0, 1.0), [5, 0, 1, 1, 2, 1])])
def test_weighted_with_replacement_draws_in_proportion(by, expected):
    counts = np.zeros(6)
    for round in range(400):
        got = cohort(Weighted(by=by, replace=True), SIX, 10, round)
        assert int(got.times.sum()) == 10 and len(got.ids.unique()) == len(got.ids)
        counts[got.ids.numpy()] += got.times.numpy()
    expected = np.array(expected) / sum(expected)
    assert not counts[expected == 0].any()
    assert chi2(counts[expected > 0], 4000 * expected[expected > 0]) < 25


def test_weighted_without_replacement_draws_the_first_in_proportion():
    drawn = [int(cohort(Weighted(), SIX, 1, round).ids) for round in range(2000)]
    assert chi2(np.bincount(drawn, minlength=6), 2000 * np.array(SIZES) / 40) < 25
    got = cohort(Weighted(), SIX, 4)
    assert len(got.ids.unique()) == 4 and got.times.tolist() == [1] * 4


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("size", [2, 4])
def test_weighted_cohorts_are_corrected_towards_the_objective(replace, size):
    """E[sum of weight_i (f_i - f)] = 0, f the objective: then the self-normalised mean tends to f as cohorts grow."""
    cohorts = [cohort(Weighted(replace=replace), SIX, size, round) for round in range(2000)]
    off = np.array([float(got.weight @ (LOSSES[got.ids] - MEAN)) for got in cohorts])
    assert abs(off.mean()) < 4 * off.std() / np.sqrt(2000)


def test_a_large_weighted_cohort_gives_the_mean_of_the_objective():
    def mean(selection, population, size):
        got = cohort(selection, population, size)
        return float(got.weight @ LOSSES[got.ids % 6] / got.weight.sum())

    many = Population(6000, torch.tensor(SIZES * 1000), OBJECTIVE.repeat(1000) / 1000)
    assert mean(Weighted(), SIX, 6) == pytest.approx(MEAN, abs=1e-12)  # everyone
    assert mean(Weighted(), many, 4000) == pytest.approx(MEAN, abs=0.15)
    assert mean(Weighted(replace=True), SIX, 30_000) == pytest.approx(MEAN, abs=0.15)


def test_an_algorithms_own_weights_go_first_and_count_plainly():
    mixture = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0, 0.0])
    got = cohort(Weighted(), SIX, 50, weights=mixture, replace=True)
    assert got.ids.tolist() == [1, 3] and int(got.times.sum()) == 50
    assert got.weight.tolist() == got.times.tolist()
    got = cohort(Weighted(), SIX, 5, weights=mixture)  # without replacement: at most the two that can be drawn
    assert got.ids.tolist() == [1, 3] and got.weight.tolist() == [1, 1]


def test_weights_that_do_not_fit_are_refused():
    for by in ((1.0, 2.0), (1.0, 1.0, 1.0, 1.0, 1.0, -1.0), (0.0,) * 6):
        with pytest.raises(SettingError, match=r"select\.by"):
            cohort(Weighted(by=by), SIX, 2)
    with pytest.raises(NobodyAnswered):
        cohort(Uniform(), SIX, 2, weights=torch.zeros(6))


@pytest.mark.parametrize("selection", [Uniform(), Weighted(), Cyclic(groups=2)])
def test_asking_more_than_there_are_is_refused(selection):
    with pytest.raises(SettingError, match="asked = 7, but the federation has 6 clients"):
        cohort(selection, SIX, 7)


def test_draws_with_replacement_may_outnumber_the_clients():
    assert int(cohort(Weighted(replace=True), SIX, 20).times.sum()) == 20
    assert int(cohort(Uniform(), SIX, 20, weights=torch.ones(6), replace=True).times.sum()) == 20


@pytest.mark.parametrize(("count", "groups"), [(10, 5), (10, 3), (7, 7), (6, 1), (103, 10)])
def test_cyclic_groups_partition_the_clients_in_a_fixed_order(count, groups):
    selection, population = Cyclic(groups=groups), clients(count)
    pools = [list(selection.pool(round, population)) for round in range(groups)]
    assert [i for pool in pools for i in pool] == list(range(count))
    assert all(i * groups // count == group for group, pool in enumerate(pools) for i in pool)
    assert [list(selection.pool(round + 3 * groups, population)) for round in range(groups)] == pools
    assert selection.cycle == groups


def test_cyclic_draws_only_from_the_active_group():
    counts = np.zeros(12)
    for round in range(1200):
        got = cohort(Cyclic(groups=3), clients(12), 2, round)
        assert got.ids.tolist() == [i for i in got.ids.tolist() if i // 4 == round % 3]
        counts[got.ids.numpy()] += 1
    assert counts.sum() == 2400 and chi2(counts, [200] * 12) < 35
    assert cohort(Cyclic(groups=3), clients(12), 5, round=1).ids.tolist() == [4, 5, 6, 7]  # a group has four
    assert cohort(Cyclic(groups=3), clients(12), None, round=2).ids.tolist() == [8, 9, 10, 11]


def test_cyclic_draws_by_an_algorithms_weights_stay_in_the_group():
    mixture = torch.tensor([0.0, 0.0, 1.0, 1.0, 9.0, 0.0])
    assert set(cohort(Cyclic(groups=2), SIX, 40, 0, mixture, replace=True).ids.tolist()) == {2}
    assert set(cohort(Cyclic(groups=2), SIX, 40, 1, mixture, replace=True).ids.tolist()) == {3, 4}


def test_more_groups_than_clients_are_refused():
    with pytest.raises(SettingError, match=r"groups = 7 for 6 clients"):
        cohort(Cyclic(groups=7), SIX, 1)


# Availability traces.


def trace(folder, text, **settings):
    file = folder / "trace.csv"
    file.write_text(text, encoding="utf-8")
    return Trace(file=str(file), **settings)


INTERVALS = "client,from,until\n0,0,2\n2,1,3\n0,5,6\n1,0,1\n2,2,4\n"


def pools(selection, rounds, population=SIX):
    return [selection.pool(round, population).tolist() for round in rounds]


def test_trace_says_who_can_be_asked(tmp_path):
    selection = trace(tmp_path, INTERVALS)
    assert pools(selection, range(7)) == [[0, 1], [0, 2], [2], [2], [], [0], []]
    got = cohort(selection, SIX, 5, round=1)
    assert got.ids.tolist() == [0, 2] and torch.equal(got.weight, OBJECTIVE[[0, 2]])


def test_trace_draws_uniformly_among_the_available(tmp_path):
    selection = trace(tmp_path, "client,from,until\n1,0,9999\n3,0,9999\n4,0,9999\n")
    drawn = [int(cohort(selection, SIX, 1, round).ids) for round in range(900)]
    assert chi2(np.bincount(drawn, minlength=6)[[1, 3, 4]], [300] * 3) < 20


def test_trace_repeats_after_its_period(tmp_path):
    assert pools(trace(tmp_path, INTERVALS, period=4.0), range(8)) == [[0, 1], [0, 2], [2], [2]] * 2


def test_trace_counts_time_in_ticks(tmp_path):
    assert pools(trace(tmp_path, INTERVALS, tick=0.5), range(4)) == [[0, 1], [0, 1], [0, 2], [0, 2]]
    assert pools(trace(tmp_path, INTERVALS, tick=2.5, period=5.0), range(4)) == [[0, 1], [2], [0, 1], [2]]


def test_trace_tells_large_times_apart(tmp_path):
    selection = trace(tmp_path, "client,from,until\n0,1700000000,1700000060\n1,1700000060,1700000120\n", tick=60.0)
    first = 1_700_000_040 // 60
    assert pools(selection, range(first - 1, first + 3)) == [[], [0], [1], []]


def test_a_round_without_available_clients_has_nobody(tmp_path):
    selection = trace(tmp_path, INTERVALS)
    for size in (None, 2):
        with pytest.raises(NobodyAnswered):
            cohort(selection, SIX, size, round=4)


@pytest.mark.parametrize(("text", "says"), [
    ("client,from,until\n", "no interval"),
    ("client,from\n0,1\n", "line 2"),
    ("client,from,until\n0,0,1\n1,zero,1\n", "line 3"),
    ("client,from,until\n0.5,0,1\n", "line 2"),
    ("client,from,until\n-1,0,1\n", "at least 0"),
    ("client,from,until\n0,2,1\n", "from below until"),
    ("client,from,until\n6,0,1\n", "names client 6, but there are 6 clients"),
])
def test_a_bad_trace_is_refused(tmp_path, text, says):
    selection = trace(tmp_path, text)
    with pytest.raises(SettingError, match=says) as error:
        cohort(selection, SIX, 1)
    assert selection.file in str(error.value)


def test_a_missing_trace_is_refused(tmp_path):
    with pytest.raises(SettingError, match=r"nowhere\.csv'?: cannot be read"):
        cohort(Trace(file=str(tmp_path / "nowhere.csv")), SIX, 1)


# Responses.

TEN = torch.arange(10)


def answered(chain, ids=TEN, seed=0, round=0, ask=0):
    return arrivals(chain, ids, Moment(seed, round, ask))


def who(chain, ids=TEN, **moment):
    return ids[answered(chain, ids, **moment).accepted].tolist()


def test_everyone_answers_at_once():
    for chain in ((), (Everyone(),)):
        got = answered(chain)
        assert bool(got.accepted.all()) and not got.seconds.any() and got.closed == 0


def test_drop_outs_have_their_rate_for_every_client_and_ask():
    gone = np.stack([~answered((DropOuts(rate=0.3),), round=r, ask=a).accepted.numpy()
                     for r in range(500) for a in range(2)])
    assert np.abs(gone.mean(0) - 0.3).max() < 4.5 * np.sqrt(0.21 / 1000)
    assert abs(np.corrcoef(gone[::2].ravel(), gone[1::2].ravel())[0, 1]) < 0.06  # the two asks of a round
    assert who((DropOuts(rate=0.0),)) == TEN.tolist() and who((DropOuts(rate=1.0),)) == []
    assert bool(answered((DropOuts(rate=1.0),)).seconds.isinf().all())


@pytest.mark.parametrize(("share", "asked", "enough"), [
    (0.5, 10, 5), (0.5, 11, 6), (1.0, 7, 7), (0.01, 7, 1), (0.55, 100, 55), (0.28, 25, 7), (0.07, 100, 7), (0.7, 10, 7),
])
def test_the_server_waits_for_the_share_rounded_up(share, asked, enough):
    assert len(who((FirstResponders(share, share),), torch.arange(asked))) == enough


def test_one_share_is_drawn_per_round_and_serves_all_asks():
    chain, many = (FirstResponders(0.5, 1.0),), torch.arange(4000)
    for round in range(30):
        p = len(who(chain, many, round=round)) / 4000  # p_t to 1/4000
        for ask, size in ((0, 8), (1, 8), (2, 16)):
            count = len(who(chain, torch.arange(100, 100 + size), round=round, ask=ask))
            assert count in {ceil((p - 1 / 4000) * size), ceil(p * size)}


def test_the_share_is_uniform_between_its_bounds():
    many = torch.arange(1000)
    shares = np.array([len(who((FirstResponders(0.5, 0.9),), many, round=r)) / 1000 for r in range(1000)])
    assert shares.min() >= 0.5 and shares.max() <= 0.9
    assert chi2(np.histogram(shares, 8, (0.5, 0.901))[0], [125] * 8) < 30


def test_without_latencies_the_first_are_a_uniform_subset():
    subsets = [tuple(who((FirstResponders(0.5, 0.5),), torch.arange(4), round=r)) for r in range(1800)]
    assert chi2([subsets.count(pair) for pair in combinations(range(4), 2)], [300] * 6) < 28
    asks = [who((FirstResponders(0.5, 0.5),), ask=a) for a in range(2)]
    assert asks[0] != asks[1]  # the same number, not the same clients


def test_with_latencies_the_fastest_are_first_and_the_clock_shows_the_last_of_them():
    for round in range(20):
        seconds = answered((Latencies(),), round=round).seconds
        got = answered((Latencies(), FirstResponders(0.4, 0.4)), round=round)
        assert torch.equal(got.seconds, seconds)
        assert set(got.accepted.nonzero().flatten().tolist()) == set(seconds.argsort()[:4].tolist())
        assert got.closed == float(seconds.sort().values[3])
    assert answered((Latencies(),)).closed == float(answered((Latencies(),)).seconds.max())


def test_latencies_are_log_normal_with_a_part_that_stays_with_the_client():
    many = torch.arange(4000)
    logs = np.stack([answered((Latencies(2.0, 0.6, 0.3),), many, ask=a).seconds.log().numpy() for a in range(2)])
    assert np.median(np.exp(logs)) == pytest.approx(2.0, rel=0.05)
    assert logs.std() == pytest.approx(np.sqrt(0.36 + 0.09), rel=0.04)
    assert np.corrcoef(logs)[0, 1] == pytest.approx(0.36 / 0.45, abs=0.03)


def test_first_responders_take_whoever_is_left_of_the_drop_outs():
    chain = (DropOuts(rate=0.5), FirstResponders(0.5, 0.5))
    for round in range(60):
        alive, used = who(chain[:1], round=round), who(chain, round=round)
        assert set(used) <= set(alive) and len(used) == min(5, len(alive))


def test_a_deadline_closes_when_it_passes_and_not_before():
    seconds = answered((Latencies(),)).seconds.sort().values
    between = float(seconds[6] + seconds[7]) / 2
    got = answered((Latencies(), Deadline(between)))
    assert int(got.accepted.sum()) == 7 and got.closed == between
    got = answered((Latencies(), Deadline(100.0)))
    assert int(got.accepted.sum()) == 10 and got.closed == float(seconds[-1])
    got = answered((Latencies(), Deadline(1e-6)))
    assert not got.accepted.any() and got.closed == 1e-6
    got = answered((DropOuts(rate=0.5), Deadline(3.0)))  # the server cannot know that nobody else will come
    assert 0 < int(got.accepted.sum()) < 10 and got.closed == 3.0


@pytest.mark.parametrize("seconds", [0.5, 1.0, 1.7, 9.0])
def test_deadline_and_first_responders_give_the_same_in_either_order(seconds):
    start, enough, deadline = (DropOuts(rate=0.3), Latencies()), FirstResponders(0.3, 0.9), Deadline(seconds)
    for round in range(40):
        one = answered((*start, enough, deadline), round=round)
        other = answered((*start, deadline, enough), round=round)
        assert torch.equal(one.accepted, other.accepted) and one.closed == other.closed
        assert one.closed <= seconds and bool((one.seconds[one.accepted] <= one.closed).all())


def test_enough_replies_before_the_deadline_end_the_wait():
    got = answered((Latencies(), FirstResponders(0.2, 0.2), Deadline(50.0)))
    assert got.closed == float(got.seconds.sort().values[1]) and int(got.accepted.sum()) == 2


def test_late_replies_have_a_time_and_missing_ones_do_not():
    got = answered((DropOuts(rate=0.3), Latencies(), Deadline(1.0)), torch.arange(200))
    late = ~got.accepted & got.seconds.isfinite()
    assert late.any() and bool((got.seconds[late] > 1.0).all())
    assert abs(float((got.seconds == inf).double().mean()) - 0.3) < 0.15


CHAIN = (DropOuts(rate=0.3), Latencies(), FirstResponders(0.3, 0.9), Deadline(1.5))


def test_the_same_address_gives_the_same_answer_and_another_one_another():
    def once(**address):
        got = answered(CHAIN, torch.arange(50), **address)
        return got.accepted.tolist(), got.seconds.tolist(), got.closed

    assert once(seed=3, round=4, ask=1) == once(seed=3, round=4, ask=1)
    assert len({str(once(**a)) for a in ({}, {"seed": 1}, {"round": 1}, {"ask": 1})}) == 4
    for selection in (Uniform(), Weighted(), Weighted(replace=True), Cyclic(groups=2)):
        drawn = [cohort(selection, clients(40), 8, **a).ids.tolist() for a in ({}, {}, {"seed": 1}, {"number": 1})]
        assert drawn[0] == drawn[1] and len({str(d) for d in drawn}) == 3


def test_a_clients_fate_does_not_depend_on_the_order_or_the_others():
    order = torch.arange(30)[torch.randperm(30, generator=torch.Generator().manual_seed(0))]
    assert sorted(who(CHAIN, order)) == who(CHAIN, torch.arange(30))
    chain = CHAIN[:2]
    assert torch.equal(answered(chain, torch.arange(30)).seconds[order[:4]], answered(chain, order[:4]).seconds)


# Putting them together.


def test_parts_make_a_participation():
    assert as_participation() == Participation(Uniform(), ())
    got = as_participation(DropOuts(0.2), Cyclic(groups=3), Deadline(2.0))
    assert got == Participation(Cyclic(groups=3), (DropOuts(0.2), Deadline(2.0)))
    assert as_participation(got) is got
    with pytest.raises(ValueError, match="2 selections"):
        as_participation(Uniform(), Cyclic())


@pytest.mark.parametrize("selection", sorted(set(SELECTIONS) - {"trace"}))
@pytest.mark.parametrize("response", sorted(RESPONSES))
def test_every_selection_goes_with_every_response(selection, response):
    asked = cohort(SELECTIONS[selection](), clients(50), 8)
    got = answered((RESPONSES[response](),), asked.ids)
    assert len(got.accepted) == len(asked.ids) == 8 and bool(got.accepted.any())
