"""Keyed random numbers, projections, trees, flat vectors and the arithmetic of points."""

from itertools import permutations
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import vmap

from fedsaddle.contracts import Point
from fedsaddle.maths import flat, keys, projections, streams, trees

torch.set_num_threads(1)
KEYS = [0, 1, 12345, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 0x9E3779B97F4A7C15]


def chi2(observed, expected):
    observed, expected = np.asarray(observed, float), np.asarray(expected, float)
    return float(((observed - expected) ** 2 / expected).sum())


def cohort_keys(count, seed=7):
    return streams.fold(keys.address(seed, 0, 0, keys.Purpose.ROWS), torch.arange(count))


def unsigned(tensor):
    return tensor.numpy().astype(np.int64).view(np.uint64)


# Independent: splitmix64 in NumPy's uint64.


def numpy_mix(value):
    with np.errstate(over="ignore"):
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def numpy_bits(key, counters):
    with np.errstate(over="ignore"):
        steps = (np.asarray(counters, np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        return numpy_mix(np.uint64(key) + steps)


def test_bits_are_the_published_splitmix64():
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert [keys.bits(1234567, j) for j in range(5)] == known


@pytest.mark.parametrize("key", KEYS)
def test_bits_agree_in_python_torch_and_numpy(key):
    counters = [0, 1, 2, 1000, 2**40]
    expected = numpy_bits(key, counters)
    assert [keys.bits(key, j) for j in counters] == expected.tolist()
    assert unsigned(streams.bits(torch.tensor(streams.signed(key)), torch.tensor(counters))).tolist() == \
        expected.tolist()


@pytest.mark.parametrize("key", KEYS)
def test_fold_agrees_in_python_torch_and_numpy(key):
    values = [-1, 0, 1, 999_999, 2**62]  # -1 is the preparation's round
    with np.errstate(over="ignore"):
        inner = np.array(values, np.int64).view(np.uint64) * np.uint64(keys.GAMMA) + np.uint64(keys.SALT)
    expected = numpy_mix(numpy_mix(inner) ^ np.uint64(key)).tolist()
    assert [keys.fold(key, value) for value in values] == expected
    assert unsigned(streams.fold(key, torch.tensor(values))).tolist() == expected


def test_address_keeps_its_parts_and_their_order_apart():
    parts = [(a, b, c) for a in range(-1, 9) for b in range(10) for c in range(10)]
    found = {keys.address(*part) for part in parts} | {keys.address(*part[:2]) for part in parts}
    assert len(found) == 1000 + 100


def test_uniform_is_equal_in_both_and_spread_over_the_half_open_interval():
    key = keys.address(3, 1, 4)
    numbers = streams.stream(key, 20_000)
    assert numbers[:50].tolist() == [keys.uniform(key, j) for j in range(50)]
    assert numbers.dtype == torch.float64 and float(numbers.min()) >= 0 and float(numbers.max()) < 1
    assert chi2(torch.histc(numbers, 50, 0, 1), [400] * 50) < 110  # 49 degrees of freedom
    assert torch.equal(streams.stream(key, 5, first=10), numbers[10:15])


def test_uniform_stays_below_one_for_the_largest_bits(monkeypatch):
    monkeypatch.setattr(keys, "bits", lambda key, counter: keys.MASK)
    assert keys.uniform(0) == 1 - 2.0**-53
    assert keys.randint(0, 3, 8) == 7


def test_randint_reaches_every_value_equally_often():
    values = [keys.randint(keys.address(1, j), 2, 7) for j in range(5000)]
    assert sorted(set(values)) == [2, 3, 4, 5, 6]
    assert chi2(np.bincount(values)[2:], [1000] * 5) < 25


def test_neighbouring_streams_are_uncorrelated():
    numbers = streams.uniform(cohort_keys(20_000)[:, None], torch.arange(2)).numpy()
    assert abs(np.corrcoef(numbers[1:, 0], numbers[:-1, 0])[0, 1]) < 0.03  # of neighbouring clients
    assert abs(np.corrcoef(numbers[:, 0], numbers[:, 1])[0, 1]) < 0.03  # within a stream
    other = streams.uniform(cohort_keys(20_000, seed=8), torch.tensor(0)).numpy()
    assert abs(np.corrcoef(numbers[:, 0], other)[0, 1]) < 0.03  # of neighbouring seeds


# Row numbers of minibatches.

ROWS = [1, 2, 3, 7, 12, 39, 40, 41, 95, 96, 97, 1000, 100_000]


@pytest.mark.parametrize("count", [1, 5, 12, 40])
def test_slots_agree_with_their_definition(count):
    key = cohort_keys(len(ROWS))
    drawn = streams.slots(key, torch.tensor(ROWS), count)
    for one, rows, mine in zip(unsigned(key).tolist(), ROWS, drawn.tolist(), strict=True):
        assert mine == keys.slots(one, rows, count), rows


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 12])
def test_every_epoch_of_slots_is_a_permutation(rows):
    drawn = streams.slots(cohort_keys(20), torch.full((20,), rows), 3 * rows + 1)
    for epoch in range(3):
        part = drawn[:, epoch * rows : (epoch + 1) * rows]
        assert torch.equal(part.sort(1).values, torch.arange(rows).expand(20, -1))


@pytest.mark.parametrize("rows", [40, 80, 81, 1000, 10**9])
def test_slots_repeat_no_row_before_all_were_drawn(rows):
    drawn = streams.slots(cohort_keys(50), torch.full((50,), rows), 10)
    assert all(len(set(one)) == 10 for one in drawn.tolist())
    assert int(drawn.min()) >= 0 and int(drawn.max()) < rows


def test_slots_do_not_depend_on_the_other_clients_of_the_call():
    key, rows = cohort_keys(len(ROWS)), torch.tensor(ROWS)
    together = streams.slots(key, rows, 12)
    chosen = torch.tensor([9, 0, 11, 4])
    assert torch.equal(streams.slots(key[chosen], rows[chosen], 12), together[chosen])
    for i in range(len(ROWS)):
        assert torch.equal(streams.slots(key[i : i + 1], rows[i : i + 1], 12)[0], together[i])


def test_slots_of_a_client_without_rows_are_zero():
    drawn = streams.slots(cohort_keys(3), torch.tensor([0, 4, 0]), 6)
    assert not drawn[0].any() and not drawn[2].any() and drawn[1].any()


def test_all_permutations_of_four_rows_are_equally_frequent():
    drawn = streams.slots(cohort_keys(24_000), torch.full((24_000,), 4), 4)
    code = (drawn * torch.tensor([64, 16, 4, 1])).sum(1)
    counts = [int((code == 64 * a + 16 * b + 4 * c + d).sum()) for a, b, c, d in permutations(range(4))]
    assert sum(counts) == 24_000 and chi2(counts, [1000] * 24) < 70  # 23 degrees of freedom


@pytest.mark.parametrize("rows", [12, 100])  # shuffled, and drawn by rejection
def test_every_row_is_equally_likely_at_every_place(rows):
    drawn = streams.slots(cohort_keys(12_000), torch.full((12_000,), rows), 3)
    for place in range(3):
        assert chi2(torch.bincount(drawn[:, place], minlength=rows), [12_000 / rows] * rows) < 2.2 * rows + 20


def test_rejection_widens_until_it_has_enough():
    key = cohort_keys(200)  # five of five rows: the first try is too narrow for some of 200 clients
    drawn = streams._distinct(key, torch.full((200,), 5), 5)
    for one, mine in zip(unsigned(key).tolist(), drawn.tolist(), strict=True):
        first = dict.fromkeys(int(keys.uniform(one, j) * 5) for j in range(200))
        assert mine == list(first)


MIXED = [0, *ROWS, 0]


@pytest.mark.parametrize("count", [1, 7, 40])
@pytest.mark.parametrize("rows", [
    MIXED, [0, 0, 3], [1, 2, 3, 7], [1000, 100_000], [0, 10**9], [0, 0], [56, 57, 8, 9, 320, 321],
], ids=["mixed", "few", "fewer", "many", "none and many", "none", "at the border"])
def test_slots_with_a_settled_reach_are_the_same(rows, count):
    key, size = cohort_keys(len(rows)), torch.tensor(rows)
    drawn = streams.slots(key, size, count, far=streams.reach(size, count))
    for one, many, mine in zip(unsigned(key).tolist(), rows, drawn.tolist(), strict=True):
        assert mine == (keys.slots(one, many, count) if many else [0] * count), many
    wider = streams.Reach(*(part and part + 50 for part in streams.reach(size, count)))
    assert torch.equal(streams.slots(key, size, count, far=wider), drawn)


def test_a_reach_settled_for_all_clients_serves_any_of_them():
    key, size = cohort_keys(len(MIXED)), torch.tensor(MIXED)
    far = streams.reach(size, 12)
    together = streams.slots(key, size, 12)
    for chosen in ([0], [1, 2], [13, 3], [14, 12, 0, 5]):
        assert torch.equal(streams.slots(key[chosen], size[chosen], 12, far=far), together[chosen])


@pytest.mark.parametrize("count", [1, 7, 40])
def test_a_reach_is_as_far_as_is_needed_and_no_farther(count):
    """Whole epochs of every client that is shuffled; enough candidates for those drawn by rejection; else nothing."""
    few = [rows for rows in MIXED if rows <= keys.SPARSE * count]
    far = streams.reach(torch.tensor(MIXED), count)
    epochs = [rows * -(-count // rows) for rows in few if rows]
    assert far.shuffled == max(*epochs, count) <= max(keys.SPARSE, 2) * count
    assert far.distinct >= 2 * count
    assert streams.reach(torch.tensor(few), count) == (0, far.shuffled)
    assert streams.reach(torch.tensor([keys.SPARSE * count + 1, 10**6]), count) == (far.distinct, 0)


@pytest.mark.parametrize("count", [1, 7, 40])
def test_a_settled_reach_holds_enough_distinct_rows_where_they_are_fewest(count):
    rows, clients = keys.SPARSE * count + 1, 3000
    size = torch.full((clients,), rows)
    drawn = streams.slots(cohort_keys(clients), size, count, far=streams.reach(size, count))
    assert int((drawn.sort(1).values.diff(dim=1) == 0).sum()) == 0


# Draws of clients.


@pytest.mark.parametrize(("population", "count"), [(1, 1), (5, 5), (10, 3), (33, 4), (1000, 1000), (10**6, 16), (9, 0)])
def test_draw_distinct_is_distinct_and_in_range(population, count):
    for seed in range(20):
        drawn = streams.draw_distinct(keys.address(seed), population, count).tolist()
        assert len(drawn) == len(set(drawn)) == count
        assert all(0 <= one < population for one in drawn)


@pytest.mark.parametrize("population", [12, 40])  # by sorting, and by rejection
def test_draw_distinct_is_uniform_and_so_is_its_first_draw(population):
    drawn = torch.stack([streams.draw_distinct(keys.address(s), population, 4) for s in range(3000)])
    for part in (drawn, drawn[:, 0]):
        assert chi2(torch.bincount(part.flatten(), minlength=population), [part.numel() / population] * population) < 90


def test_draw_distinct_refuses_more_than_there_are():
    with pytest.raises(ValueError, match="cannot draw 4"):
        streams.draw_distinct(1, 3, 4)


WEIGHTS = torch.tensor([0.0, 3.0, 1.0, 0.0, 4.0, 2.0, 0.0])


def test_draw_weighted_with_replacement_follows_the_weights():
    drawn = streams.draw_weighted(keys.address(5), WEIGHTS, 20_000, replace=True)
    counts = torch.bincount(drawn, minlength=7)
    assert not counts[WEIGHTS == 0].any()
    assert chi2(counts[WEIGHTS > 0], WEIGHTS[WEIGHTS > 0] * 2000) < 25


def test_draw_weighted_without_replacement_is_a_sequential_draw():
    drawn = np.array([streams.draw_weighted(keys.address(s), WEIGHTS, 2, replace=False).tolist() for s in range(6000)])
    p = WEIGHTS.numpy() / 10
    pairs = [(i, j) for i in range(7) for j in range(7) if i != j and p[i] * p[j] > 0]
    counts = [int(((drawn[:, 0] == i) & (drawn[:, 1] == j)).sum()) for i, j in pairs]
    assert sum(counts) == 6000  # distinct, and no client of weight zero
    assert chi2(counts, [6000 * p[i] * p[j] / (1 - p[i]) for i, j in pairs]) < 45  # 11 degrees of freedom
    assert chi2(np.bincount(drawn[:, 0], minlength=7)[p > 0], 6000 * p[p > 0]) < 25


def test_draw_weighted_without_replacement_can_take_all_but_no_more():
    assert sorted(streams.draw_weighted(1, WEIGHTS, 4, replace=False).tolist()) == [1, 2, 4, 5]
    with pytest.raises(ValueError, match="only 4 have positive weight"):
        streams.draw_weighted(1, WEIGHTS, 5, replace=False)


@pytest.mark.parametrize("count", [1, 3, 4])
def test_inverse_inclusions_count_every_client_once_on_average(count):
    totals = np.zeros((2000, 7))
    for s in range(2000):
        drawn = streams.draw_weighted(keys.address(s), WEIGHTS, count, replace=False)
        totals[s, drawn.numpy()] = 1 / streams.inclusion(keys.address(s), WEIGHTS, count)[drawn]
    error = totals.std(0) / np.sqrt(2000) + 1e-12
    assert (np.abs(totals.mean(0) - (WEIGHTS.numpy() > 0)) <= 4.5 * error).all()


# Projections.

vectors = st.lists(st.floats(-50, 50), min_size=1, max_size=10).map(lambda v: torch.tensor(v, dtype=torch.float64))
seeds = st.integers(0, 2**32 - 1)
some = settings(max_examples=80, deadline=None, derandomize=True)


def assert_optimal(v, p, feasible):
    """The variational inequality: p is the projection of v if and only if <v - p, u - p> <= 0 for all feasible u."""
    worst = ((feasible - p) @ (v - p)).max()
    assert float(worst) <= 1e-9 * (1 + float(v.abs().max()) ** 2)


def simplex_points(n, total, seed):
    """Random points of the simplex, and its corners, which decide."""
    inside = np.random.default_rng(seed).dirichlet(np.ones(n), 20)
    return torch.from_numpy(np.vstack([inside, np.eye(n)])) * total


@some
@given(vectors, st.sampled_from([1.0, 0.25, 7.0]), seeds)
def test_simplex_is_feasible_idempotent_and_optimal(v, total, seed):
    p = projections.simplex(v, total)
    assert float(p.min()) >= 0 and float(p.sum()) == pytest.approx(total, abs=1e-12)
    torch.testing.assert_close(projections.simplex(p, total), p, atol=1e-12, rtol=0)
    assert_optimal(v, p, simplex_points(len(v), total, seed))


@some
@given(vectors)
def test_simplex_agrees_with_bisection(v):
    v = v.numpy()
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        theta = (low + high) / 2
        low, high = (theta, high) if np.maximum(v - theta, 0).sum() > 1 else (low, theta)
    np.testing.assert_allclose(projections.simplex(torch.from_numpy(v)).numpy(), np.maximum(v - high, 0), atol=1e-12)


@some
@given(vectors, st.sampled_from([0.5, 3.0]), seeds)
def test_ball_is_feasible_idempotent_and_optimal(v, radius, seed):
    random = np.random.default_rng(seed)
    centre = torch.from_numpy(random.normal(size=len(v)))
    p = projections.ball(v, radius, centre)
    assert float((p - centre).norm()) <= radius * (1 + 1e-12)
    torch.testing.assert_close(projections.ball(p, radius, centre), p, atol=1e-12, rtol=0)
    directions = torch.from_numpy(random.normal(size=(20, len(v))))
    assert_optimal(v, p, centre + radius * directions / directions.norm(dim=1, keepdim=True))


@some
@given(vectors, seeds)
def test_box_is_feasible_idempotent_and_optimal(v, seed):
    random = np.random.default_rng(seed)
    ends = torch.from_numpy(np.sort(random.normal(scale=20, size=(2, len(v))), axis=0))
    p = projections.box(v, ends[0], ends[1])
    assert bool((ends[0] <= p).all()) and bool((p <= ends[1]).all())
    assert torch.equal(projections.box(p, ends[0], ends[1]), p)
    assert_optimal(v, p, ends[0] + (ends[1] - ends[0]) * torch.from_numpy(random.uniform(size=(20, len(v)))))


def test_projections_by_hand():
    assert projections.simplex(torch.tensor([0.5, 0.5, -3.0])).tolist() == [0.5, 0.5, 0.0]
    assert projections.simplex(torch.tensor([2.0, 1.5])).tolist() == [0.75, 0.25]
    assert projections.ball(torch.tensor([3.0, 4.0]), 10).tolist() == [3.0, 4.0]
    torch.testing.assert_close(projections.ball(torch.tensor([3.0, 4.0]), 1), torch.tensor([0.6, 0.8]))
    assert projections.box(torch.tensor([-2.0, 0.3, 2.0]), -1, 1).tolist() == [-1, pytest.approx(0.3), 1]


@pytest.mark.parametrize("size", [1e4, 1e8, 1e30])
def test_simplex_sums_to_one_beside_large_entries_in_single_precision(size):
    p = projections.simplex(torch.tensor([size, size, size / 2]))
    assert p.tolist() == [0.5, 0.5, 0.0]


def test_simplex_sums_to_one_for_many_clients_in_single_precision():
    v = streams.stream(3, 100_000).float() * 1e-4
    assert float(projections.simplex(v).double().sum()) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("project", [
    projections.simplex, lambda v: projections.ball(v, 2.0), lambda v: projections.box(v, -1.0, 0.5),
])
def test_projections_under_vmap_equal_row_by_row(project):
    v = torch.from_numpy(np.random.default_rng(1).normal(scale=2, size=(30, 6)))
    torch.testing.assert_close(vmap(project)(v), torch.stack([project(row) for row in v]), atol=1e-14, rtol=0)


# Trees.


class Inner(NamedTuple):
    z: Point
    tag: int


class Outer(NamedTuple):
    inner: Inner
    pair: tuple
    nothing: None
    eta: float


TREE = Outer(Inner(Point(torch.ones(2), torch.zeros(1)), 3), (True, torch.tensor([1, 2])), None, 0.5)


def test_leaves_are_named_by_their_address_and_filled_back():
    named = dict(trees.named_leaves(TREE))
    assert list(named) == ["inner.z.x", "inner.z.y", "inner.tag", "pair.0", "pair.1", "eta"]
    again = trees.fill(TREE, named)
    assert type(again.inner.z) is Point and again.nothing is None and again.pair[1] is TREE.pair[1]
    assert [id(leaf) for leaf in trees.leaves(again)] == [id(leaf) for leaf in trees.leaves(TREE)]


def test_fill_takes_each_leaf_from_its_own_name():
    filled = trees.fill(TREE, {name: name for name, _ in trees.named_leaves(TREE)})
    assert filled.inner.z.y == "inner.z.y" and filled.pair == ("pair.0", "pair.1")


def test_map_leaves_meets_leaves_of_the_same_place():
    total = trees.map_leaves(lambda a, b: a + b, TREE, TREE)
    assert total.inner.tag == 6 and total.eta == 1.0 and total.nothing is None
    assert total.inner.z.x.tolist() == [2, 2] and total.pair[1].tolist() == [2, 4]
    with pytest.raises(ValueError, match="zip"):
        trees.map_leaves(lambda a, b: a, (1, 2), (1, 2, 3))


def test_lift_makes_tensors_of_the_runs_precision():
    lifted = trees.lift(TREE, torch.device("cpu"), torch.float64)
    assert lifted.eta.dtype == torch.float64 and lifted.eta.shape == () and float(lifted.eta) == 0.5
    assert lifted.inner.tag.dtype == torch.int64 and lifted.pair[0].dtype == torch.bool
    assert lifted.inner.z.x.dtype == torch.float32 and lifted.pair[1].dtype == torch.int64  # tensors stay as they are


# Flat vectors.


class Tied(nn.Module):
    """Two layers that share their weight: it stands in the vector once."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.scale = nn.Linear(3, 3), nn.Linear(3, 3), nn.Parameter(torch.tensor(2.0))
        self.second.weight = self.first.weight

    def forward(self, inputs):
        return self.scale * self.second(torch.tanh(self.first(inputs)))


def module_of(kind):
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    return {"dense": dense, "tied": Tied(), "none": nn.ReLU()}[kind]


@pytest.mark.parametrize(("kind", "count"), [("dense", 3 * 4 + 4 + 4 * 2 + 2), ("tied", 9 + 3 + 3 + 1), ("none", 0)])
def test_flat_holds_every_parameter_once_and_gives_it_back(kind, count):
    module = module_of(kind)
    vector = flat.flatten(module)
    assert vector.shape == (count,) and not vector.requires_grad
    named = flat.named(module, vector)
    assert list(named) == [name for name, _ in module.named_parameters()]
    assert all(torch.equal(named[name], p) for name, p in module.named_parameters())


def test_flatten_copies():
    module = nn.Linear(2, 1, bias=False)
    flat.flatten(module).zero_()
    assert bool(module.weight.any())


@pytest.mark.parametrize("kind", ["dense", "tied", "none"])
def test_call_uses_the_vector_and_leaves_the_module_alone(kind):
    module, inputs = module_of(kind), torch.randn(5, 3)
    vector = flat.flatten(module)
    before = module(inputs)
    torch.testing.assert_close(flat.call(module, vector, inputs), before)
    other = flat.call(module, vector + 1, inputs)
    assert kind == "none" or not torch.allclose(other, before)
    assert torch.equal(module(inputs), before)
    nn.utils.vector_to_parameters(vector + 1, list(module.parameters()))
    torch.testing.assert_close(module(inputs), other)


# Points.


def as_lists(z):
    assert type(z) is Point and len(z) == 2
    return z.x.tolist(), z.y.tolist()


def test_points_add_and_scale_and_are_never_repeated_as_tuples():
    z = Point(torch.tensor([1.0, 2.0]), torch.tensor([3.0]))
    for doubled in (2 * z, z * 2, torch.tensor(2.0) * z, z * torch.tensor(2.0), z + z, z - -z):
        assert as_lists(doubled) == ([2, 4], [6])
    assert as_lists(z / 2) == ([0.5, 1], [1.5])
    assert as_lists(-z) == ([-1, -2], [-3])
    assert as_lists(0 * z) == ([0, 0], [0])


def test_a_step_descends_in_x_and_ascends_in_y():
    z = Point(torch.tensor([1.0, 2.0]), torch.tensor([3.0]))
    assert as_lists(z.step(Point(torch.tensor([10.0, 20.0]), torch.tensor([30.0])), 0.5, 0.1)) == ([-4, -8], [6])
