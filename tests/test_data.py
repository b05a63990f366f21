"""Clients' tables, the embedded data sets and the made-up quadratics."""

import numpy as np
import pytest
import torch

from fedsaddle.contracts import SettingError
from fedsaddle.data.clients import Clients, Run, checked, clients_from_arrays, clients_from_list
from fedsaddle.data.sources import SOURCES, split
from fedsaddle.data.synthetic import quadratic_clients

torch.set_num_threads(1)


def rows_of(clients, i, run=None):
    start, size = (int(v[i]) for v in (run or clients.run))
    return clients.inputs[start : start + size], clients.targets[start : start + size]


# clients

def test_rows_go_to_the_owner_they_name_in_their_own_order():
    clients = clients_from_arrays(np.arange(6.0)[:, None], np.array([0, 1, 2, 3, 4, 5]), ["b", "a", "b", "c", "a", "b"])
    assert clients.count == 3
    assert [rows_of(clients, i)[1].tolist() for i in range(3)] == [[1, 4], [0, 2, 5], [3]]
    assert [rows_of(clients, i)[0][:, 0].tolist() for i in range(3)] == [[1, 4], [0, 2, 5], [3]]


def test_a_list_of_clients_is_the_same_table():
    parts = [(torch.ones(2, 3), torch.tensor([1, 0])), (2 * torch.ones(1, 3), torch.tensor([7]))]
    clients = clients_from_list(parts)
    for i, (inputs, targets) in enumerate(parts):
        got = rows_of(clients, i)
        assert torch.equal(got[0], inputs)
        assert torch.equal(got[1], targets)
    assert torch.equal(clients.rows.targets, torch.tensor([1, 0, 7]))


def test_strata_hold_each_clients_positives_and_negatives():
    targets = torch.tensor([0, 1, 1, -1, 0, 3, 0])
    clients = clients_from_arrays(torch.arange(7.0)[:, None], targets, [0, 0, 0, 1, 1, 2, 0]).stratified()
    positives, negatives = clients.strata
    assert positives.size.tolist() == [2, 0, 1]
    assert negatives.size.tolist() == [2, 2, 0]
    assert [rows_of(clients, i, positives)[0].flatten().tolist() for i in range(3)] == [[1, 2], [], [5]]
    assert [rows_of(clients, i, negatives)[0].flatten().tolist() for i in range(3)] == [[0, 6], [3, 4], []]
    assert [sorted(rows_of(clients, i)[0].flatten().tolist()) for i in range(3)] == [[0, 1, 2, 6], [3, 4], [5]]


def test_strata_of_clients_that_share_rows():
    shared = Clients(torch.arange(3.0)[:, None], torch.tensor([1, 0, 1]),
                     Run(torch.tensor([0, 1]), torch.tensor([2, 2]))).stratified()
    assert [rows_of(shared, i, shared.strata[0])[0].flatten().tolist() for i in range(2)] == [[0], [2]]
    assert [rows_of(shared, i, shared.strata[1])[0].flatten().tolist() for i in range(2)] == [[1], [1]]


def test_moving_clients_sets_the_precision_of_floats_only():
    clients = clients_from_arrays(np.zeros((2, 1)), np.array([0, 1]), [0, 1]).to("cpu", torch.float64)
    assert clients.inputs.dtype == torch.float64
    assert clients.targets.dtype == torch.int64
    assert clients.run.size.dtype == torch.int64


@pytest.mark.parametrize(("make", "words"), [
    (lambda: clients_from_arrays(np.zeros((3, 2)), np.zeros(2), [0, 0, 1]), "3 rows of inputs, 2 targets"),
    (lambda: clients_from_arrays(np.zeros((3, 2)), np.zeros(3), [0, 0]), "2 client names"),
    (lambda: clients_from_arrays(np.zeros((0, 2)), np.zeros(0), []), "no rows at all"),
    (lambda: clients_from_arrays(np.array([[0.0], [np.nan]]), np.zeros(2), [0, 1]), "inputs hold NaN.*client 1"),
    (lambda: clients_from_arrays(np.zeros((2, 1)), np.array([np.inf, 0.0]), [0, 1]), "targets hold NaN.*client 0"),
    (lambda: clients_from_list([]), "empty"),
    (lambda: clients_from_list([(torch.ones(1, 2), torch.ones(1)), (torch.ones(0, 2), torch.ones(0))]),
     "client 1 has no rows"),
    (lambda: clients_from_list([(torch.ones(1, 2), torch.ones(1)), (torch.ones(2, 2), torch.ones(1))]),
     "client 1 has 2 rows of inputs and 1 targets"),
    (lambda: clients_from_list([(torch.ones(1, 2), torch.ones(1)), (torch.ones(1, 3), torch.ones(1))]),
     "same features"),
    (lambda: checked(Clients(torch.ones(1), torch.ones(1), Run(torch.tensor([0, 1]), torch.tensor([1, 0])))),
     "client 1 has no rows"),
])
def test_bad_tables_are_refused_by_name(make, words):
    with pytest.raises(SettingError, match=words):
        make()


# sources

@pytest.mark.parametrize(("name", "shape", "rows", "classes"), [
    ("digits", (1, 8, 8), 1797, 10), ("breast-cancer", (30,), 569, 2),
])
def test_sources_split_every_class_alike_and_follow_the_seed(name, shape, rows, classes):
    got, again, other = (SOURCES[name]().load(seed) for seed in (1, 1, 2))
    assert got.classes == classes
    assert got.train.inputs.shape[1:] == shape
    assert got.train.inputs.dtype == torch.float32
    assert len(got.train.targets) + len(got.test.targets) == rows
    in_test = torch.bincount(got.test.targets, minlength=classes)
    in_all = in_test + torch.bincount(got.train.targets, minlength=classes)
    assert float((in_test - 0.25 * in_all).abs().max()) <= 0.5
    assert torch.equal(got.test.inputs, again.test.inputs)
    assert not torch.equal(got.test.inputs, other.test.inputs)


def test_digits_are_scaled_and_breast_cancer_is_standardised_by_its_training_rows():
    digits = SOURCES["digits"]().load(0)
    pixels = torch.cat([digits.train.inputs, digits.test.inputs])
    assert (float(pixels.min()), float(pixels.max())) == (-1.0, 1.0)
    cancer = SOURCES["breast-cancer"]().load(0)
    torch.testing.assert_close(cancer.train.inputs.mean(0), torch.zeros(30), atol=1e-5, rtol=0)
    torch.testing.assert_close(cancer.train.inputs.std(0, correction=0), torch.ones(30), atol=1e-5, rtol=0)
    assert float(cancer.test.inputs.mean(0).abs().max()) > 1e-3  # not by its own statistics
    assert int(cancer.train.targets.sum() + cancer.test.targets.sum()) == 212  # the malignant ones


def test_no_row_is_in_both_parts():
    data = split(torch.arange(50.0), torch.arange(50) % 3, 0.3, seed=0)
    assert sorted([*data.train.inputs.tolist(), *data.test.inputs.tolist()]) == list(range(50))
    with pytest.raises(SettingError, match="test_share"):
        split(torch.zeros(4), torch.zeros(4).long(), 1.0, seed=0)


# made-up quadratics

def matrices(clients, m, n):
    inputs = clients.inputs.double().numpy()
    return (inputs[:, : m * m].reshape(-1, m, m), inputs[:, m * m : m * m + m * n].reshape(-1, m, n),
            inputs[:, m * m + m * n :].reshape(-1, n, n))


def test_every_quadratic_row_is_strongly_convex_and_concave():
    clients = quadratic_clients(5, (2, 9), 4, 3, heterogeneity=3.0, noise=2.0, coupling=1.0, seed=1)
    A, _, C = matrices(clients, 4, 3)
    for block in (A, C):
        values = np.linalg.eigvalsh(block)
        assert values.min() > 0.5 - 1e-5
        assert values.max() < 2.0 + 1e-5
        np.testing.assert_array_equal(block, block.transpose(0, 2, 1))
    assert clients.targets.shape == (len(A), 7)
    sizes = clients.run.size.tolist()
    assert len(set(sizes)) > 1
    assert min(sizes) >= 2
    assert max(sizes) <= 9


def test_heterogeneity_noise_and_coupling_are_what_they_say():
    def made(**given_):
        return quadratic_clients(4, 3, 3, 2, **{"heterogeneity": 0.0, "noise": 0.0, "seed": 2, **given_})
    same = made()
    assert torch.equal(same.inputs, same.inputs[:1].expand_as(same.inputs))
    assert torch.equal(same.targets, same.targets[:1].expand_as(same.targets))
    apart = made(heterogeneity=1.0)
    for i in range(4):  # rows of one client alike, clients not
        inputs, targets = rows_of(apart, i)
        assert torch.equal(inputs, inputs[:1].expand_as(inputs))
        assert torch.equal(targets, targets[:1].expand_as(targets))
    assert len(apart.inputs.unique(dim=0)) == len(apart.targets.unique(dim=0)) == 4
    assert len(made(noise=1.0).inputs.unique(dim=0)) == len(made(noise=1.0).targets.unique(dim=0)) == 12
    assert not matrices(made(coupling=0.0), 3, 2)[1].any()
    np.testing.assert_allclose(matrices(made(coupling=3.0), 3, 2)[1], 3 * matrices(made(coupling=1.0), 3, 2)[1],
                               rtol=1e-6)
    assert torch.equal(made(noise=1.0).inputs, made(noise=1.0).inputs)
    assert not torch.equal(made(noise=1.0).inputs, made(noise=1.0, seed=3).inputs)


@pytest.mark.parametrize("bad", [{"clients": 0}, {"rows": 0}, {"rows": (4, 2)}, {"noise": -1.0}])
def test_impossible_quadratics_are_refused(bad):
    with pytest.raises(SettingError, match="quadratic_clients"):
        quadratic_clients(**{"clients": 2, "rows": 3, **bad})
