"""How rows are dealt out: counts, exactness, seeds, and the changes of the training rows before and after."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedsaddle.assemble import deal
from fedsaddle.config import settle
from fedsaddle.contracts import Rows, SettingError
from fedsaddle.data.clients import Clients, Run, clients_from_arrays
from fedsaddle.data.dataset import Attribute, DataSet
from fedsaddle.data.dealing import Dealing, clients_of, hand_out, held_out, rows_for_test
from fedsaddle.data.deck import OUT, Deck
from fedsaddle.data.groups import ByAttribute, ClassGroups
from fedsaddle.data.partitions import IID, PARTITIONS, Dirichlet, LabelSorted

torch.set_num_threads(1)

BY_LABEL = {"iid": IID(), "label-sorted": LabelSorted(), "half-sorted": LabelSorted(0.5), "dirichlet": Dirichlet(),
            "equal dirichlet": Dirichlet(sizes="equal")}


def table(owner, labels, clients, classes):
    kept = owner != OUT
    return torch.bincount(owner[kept] * classes + labels[kept], minlength=clients * classes).reshape(clients, classes)


# by label

@pytest.mark.parametrize("name", BY_LABEL)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_row_has_one_owner_and_every_client_a_row(name, data):
    rows = data.draw(st.integers(1, 60))
    clients = data.draw(st.integers(1, rows))
    labels = torch.tensor(data.draw(st.lists(st.integers(0, 4), min_size=rows, max_size=rows)))
    owner = BY_LABEL[name].deal(Deck(labels), clients, seed=data.draw(st.integers(0, 10)))
    size = torch.bincount(owner, minlength=clients)
    assert owner.shape == (rows,)
    assert len(size) == clients
    assert int(size.min()) >= 1
    if name != "dirichlet":
        assert int(size.max() - size.min()) <= 1


@pytest.mark.parametrize("name", [*BY_LABEL, "by-attribute", "class-groups"])
def test_partitions_follow_their_seed_and_nothing_else(name):
    labels = torch.arange(200) % 10
    deck = Deck(labels, labels < 5, {"sex": torch.arange(200) % 2})
    partition = {**BY_LABEL, "by-attribute": ByAttribute(), "class-groups": ClassGroups()}[name]
    np.random.seed(0)
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    first = partition.deal(deck, 6, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    np.random.seed(1)
    assert torch.equal(partition.deal(deck, 6, seed=3), first)
    if name != "label-sorted":
        assert not torch.equal(partition.deal(deck, 6, seed=4), first)


def test_every_partition_of_the_registry_is_tested_here():
    assert {type(each) for each in BY_LABEL.values()} | {ByAttribute, ClassGroups} == set(PARTITIONS.values())


def test_label_sorted_cuts_the_sorted_labels_into_equal_blocks():
    labels = torch.tensor([2, 0, 1, 0, 2, 1, 0, 2])
    owner = LabelSorted().deal(Deck(labels), 4, seed=0)
    assert owner.tolist() == [2, 0, 1, 0, 3, 2, 1, 3]  # sorted rows: 1 3 | 6 2 | 5 0 | 4 7


def test_similarity_moves_that_share_of_the_rows():
    labels = torch.arange(4000) % 10
    kept = {}
    for similarity in (0.0, 0.4, 1.0):
        owner = LabelSorted(similarity).deal(Deck(labels), 10, seed=0)
        assert torch.bincount(owner).tolist() == [400] * 10
        kept[similarity] = float((owner == labels).float().mean())
    assert kept[0.0] == 1.0
    assert kept[0.4] == pytest.approx(0.6 + 0.4 * 0.1, abs=0.01)
    assert kept[1.0] == pytest.approx(0.1, abs=0.03)


def test_iid_mixes_the_labels():
    labels = torch.arange(4000) // 400
    assert int(table(IID().deal(Deck(labels), 10, seed=0), labels, 10, 10).min()) > 15  # 40 expected, deviation about 6


@pytest.mark.parametrize("sizes", ["natural", "equal"])
def test_dirichlet_concentration_sets_how_skewed_clients_are(sizes):
    labels = torch.arange(5000) % 5

    def largest_share(concentration):
        """Of a class in a client's rows, on average: 1/5 where all are alike."""
        owner = Dirichlet(concentration, sizes).deal(Deck(labels), 10, seed=1)
        counts = table(owner, labels, 10, 5).double()
        return float((counts / counts.sum(1, keepdim=True)).max(1).values.mean())

    assert largest_share(1000.0) == pytest.approx(0.2, abs=0.05)  # equal sizes are filled by draws
    assert largest_share(0.05) > 0.6
    assert 0.3 < largest_share(1.0) < 0.7


def test_equal_dirichlet_clients_have_the_mix_they_drew():
    """Plenty of every class: the first client's counts are a multinomial of a Dirichlet draw, so far from even."""
    labels = torch.arange(10000) % 4
    owner = Dirichlet(0.3, "equal").deal(Deck(labels), 50, seed=0)
    counts = table(owner, labels, 50, 4).double()
    assert counts.sum(1).tolist() == [200.0] * 50
    assert counts.sum(0).tolist() == [2500.0] * 4
    # E sum of squares of a Dirichlet(a, .., a) over k classes is (a+1)/(ka+1) = 0.59; leftovers even it out a little
    assert float(((counts / 200) ** 2).sum(1).mean()) == pytest.approx(1.3 / 2.2, abs=0.08)


def test_a_rare_class_does_not_break_equal_sizes():
    labels = torch.tensor([0] * 997 + [1] * 3)
    owner = Dirichlet(0.1, "equal").deal(Deck(labels), 10, seed=0)
    assert torch.bincount(owner).tolist() == [100] * 10


def test_partitions_that_cannot_be_made_are_refused():
    for partition in BY_LABEL.values():
        with pytest.raises(SettingError, match="5 clients but only 4 rows"):
            partition.deal(Deck(torch.zeros(4)), 5, seed=0)
        with pytest.raises(SettingError, match="at least 1"):
            partition.deal(Deck(torch.zeros(4)), 0, seed=0)
    for name in ("label-sorted", "dirichlet", "equal dirichlet"):
        with pytest.raises(SettingError, match="no labels"):
            BY_LABEL[name].deal(Deck(torch.zeros(4, 2)), 2, seed=0)


# by attribute

def test_one_client_for_each_value():
    deck = Deck(torch.zeros(6), None, {"state": torch.tensor([7, 2, 7, 5, 2, 7])})
    assert ByAttribute().natural(deck) == 3
    assert ByAttribute("state").deal(deck, 3, seed=0).tolist() == [2, 0, 2, 1, 0, 2]  # in the values' order


def test_several_clients_share_a_value_evenly():
    sex = (torch.arange(1001) % 3 == 0).long()  # 667 and 334
    owner = ByAttribute().deal(Deck(torch.zeros(1001), None, {"sex": sex}), 10, seed=0)
    for client in range(10):
        assert set(sex[owner == client].tolist()) == {client // 5}
    assert sorted(torch.bincount(owner).tolist()) == [66, 67, 67, 67, 67, 133, 133, 133, 134, 134]
    mean = torch.arange(1001.0)[owner == 0].mean()
    assert abs(float(mean) - 500) < 100  # shuffled, not the first rows


def test_fewer_clients_than_values_are_the_largest_and_the_rest_is_left_out():
    role = torch.tensor([0] * 3 + [1] * 9 + [2] * 1 + [3] * 5)
    owner = ByAttribute().deal(Deck(torch.zeros(18, 50), None, {"role": role}), 2, seed=0)
    assert owner.tolist() == [OUT] * 3 + [0] * 9 + [OUT] + [1] * 5


@pytest.mark.parametrize(("partition", "clients", "words"), [
    (ByAttribute("age"), 2, "attributes race, sex; choose one"),
    (ByAttribute(), 2, "attributes race, sex; choose one"),
    (ByAttribute("race"), 4, "no multiple of the 3 values of 'race'"),
    (ByAttribute("race"), 6, "2 clients would share the 1 rows"),
])
def test_impossible_attributes_are_refused(partition, clients, words):
    deck = Deck(torch.zeros(8), None, {"race": torch.tensor([0, 1, 2, 0, 1, 0, 1, 0]), "sex": torch.zeros(8).long()})
    with pytest.raises(SettingError, match=words):
        partition.deal(deck, clients, seed=0)


def test_a_data_set_without_attributes_says_so():
    with pytest.raises(SettingError, match="no attributes; choose another partition"):
        ByAttribute("sex").deal(Deck(torch.zeros(3)), 1, seed=0)


# class groups

@pytest.mark.parametrize(("classes", "clients"), [(100, 16), (100, 8), (10, 5), (10, 16), (10, 8), (1000, 16)])
def test_class_groups_are_disjoint_balanced_and_have_the_imbalance_ratio(classes, clients):
    """The IH construction; CIFAR-100 has 500 rows a class."""
    rows = 60000 // classes
    labels = torch.arange(classes).repeat_interleave(rows)
    positive = labels < classes // 2
    owner = ClassGroups(imratio=0.1).deal(Deck(labels, positive), clients, seed=2)
    counts = table(owner, labels, clients, classes)
    negatives = counts[:, classes // 2 :]
    assert int(negatives.sum()) == 30000  # only positives are removed
    share = counts[:, : classes // 2].sum(1) / counts.sum(1)
    assert float((share - 0.1).abs().max()) < 0.001
    holders = (counts > 0).sum(0)
    if clients <= classes // 2:
        assert holders.tolist() == [1] * classes  # no class at two clients
        held = (negatives > 0).sum(1)
        assert int(held.max() - held.min()) <= 1
    else:
        assert (counts > 0).sum(1).tolist() == [2] * clients  # one positive and one negative class each
        assert int(holders.max() - holders.min()) <= 1


def test_class_groups_differ_by_seed_and_shuffle_the_classes():
    labels = torch.arange(20).repeat_interleave(30)
    owners = [ClassGroups(imratio=1.0).deal(Deck(labels, labels < 10), 5, seed) for seed in (0, 1)]
    assert [torch.bincount(owner).tolist() for owner in owners] == [[120] * 5] * 2  # 1: nothing is removed
    assert not torch.equal(*owners)


@pytest.mark.parametrize("positive", [None, torch.ones(20, dtype=torch.bool), torch.zeros(20, dtype=torch.bool)])
def test_class_groups_need_two_sides(positive):
    with pytest.raises(SettingError, match=r"set data\.positive"):
        ClassGroups().deal(Deck(torch.arange(20), positive), 2, seed=0)


# positives, kept and flipped

def data_set(rows=2000, classes=10):
    inputs = torch.arange(float(rows))[:, None]
    targets = torch.arange(rows) % classes
    test = Rows(inputs[:100] + 0.5, targets[:100])
    names = tuple(f"class {number}" for number in range(classes))
    return DataSet(Rows(inputs, targets), test, classes, names, {"odd": Attribute(("no", "yes"), targets % 2,
                                                                              targets[:100] % 2)})


def test_one_class_or_several_against_the_rest():
    data = data_set()
    for positive, expected in ((3, [3]), ((1, 4), [1, 4]), ("class 3", [3]), (("CLASS 1", 4), [1, 4])):
        dealing = Dealing(4, positive)
        hand = hand_out(data, IID(), dealing)
        assert torch.equal(hand.targets == 1, torch.isin(data.train.targets[hand.rows], torch.tensor(expected)))
        clients = clients_of(data, hand)
        assert torch.equal(clients.targets == 1, torch.isin(clients.inputs[:, 0].long() % 10, torch.tensor(expected)))
        test = rows_for_test(data, dealing)
        assert torch.equal(test.targets == 1, torch.isin(data.test.targets, torch.tensor(expected)))


def test_rows_are_dealt_by_the_full_labels():
    hand = hand_out(data_set(), LabelSorted(), Dealing(10, 3))
    for client in range(10):
        assert hand.targets[hand.owner == client].tolist() == [int(client == 3)] * 200


@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
def test_a_share_of_the_positives_is_kept(share):
    data = data_set()
    hand = hand_out(data, Dirichlet(), Dealing(5, 0, keep_positives=share))
    assert int(hand.targets.sum()) == round(200 * share)
    assert int((hand.targets == 0).sum()) == 1800
    assert len(set(hand.rows.tolist())) == len(hand.rows)
    assert int(rows_for_test(data, Dealing(5, 0, keep_positives=share)).targets.sum()) == 10  # the test is untouched


def test_which_positives_are_kept_follows_the_seed_alone():
    data = data_set()
    kept = [hand_out(data, partition, Dealing(5, 0, keep_positives=0.1, seed=seed)).rows
            for partition, seed in ((IID(), 0), (LabelSorted(), 0), (IID(), 1))]
    assert torch.equal(kept[0], kept[1])
    assert not torch.equal(kept[0], kept[2])


def test_flipped_positives_become_negatives_and_stay_where_they_are():
    data = data_set()
    clean, noisy = (hand_out(data, LabelSorted(), Dealing(20, (0, 1), flip_positives=share)) for share in (0, 0.2))
    assert torch.equal(clean.owner, noisy.owner)
    assert int(clean.targets.sum()) == 400
    assert int(noisy.targets.sum()) == 320
    assert not bool((noisy.targets > clean.targets).any())
    assert int(rows_for_test(data, Dealing(20, (0, 1), flip_positives=0.2)).targets.sum()) == 20


def test_flipped_labels_become_any_other_class():
    data = data_set()
    hand = hand_out(data, IID(), Dealing(4, flip_labels=0.3))
    moved = (hand.targets - data.train.targets) % 10
    assert int((moved > 0).sum()) == 600
    others = torch.bincount(moved, minlength=10)[1:]
    assert int(others.min()) > 35  # 67 expected of each
    two = hand_out(data, IID(), Dealing(4, 3, flip_labels=0.3))
    assert int((two.targets != (data.train.targets == 3)).sum()) == 600


def test_two_classes_need_no_positive_to_be_named():
    hand = hand_out(data_set(classes=2), IID(), Dealing(4, keep_positives=0.1))
    assert torch.bincount(hand.targets).tolist() == [1000, 100]


def test_the_number_of_clients_where_none_is_set():
    assert int(hand_out(data_set(), IID(), Dealing()).owner.max()) == 99
    assert int(hand_out(data_set(), ByAttribute(), Dealing()).owner.max()) == 1


@pytest.mark.parametrize(("dealing", "words"), [
    (Dealing(2, 10), "data.positive = 10: is no class; choose one of 0 to 9"),
    (Dealing(2, "dog"), "data.positive = 'dog': is no class.*class 0, class 1"),
    (Dealing(2, ()), "leaves one side empty"),
    (Dealing(2, tuple(range(10))), "leaves one side empty"),
    (Dealing(2, keep_positives=0.5), "data.keep_positives: there are no positives; set data.positive"),
    (Dealing(2, flip_positives=0.5), "data.flip_positives: there are no positives; set data.positive"),
    (Dealing(2, 0, keep_positives=0.001), "leaves none of the 200 positives"),
])
def test_impossible_tasks_are_refused(dealing, words):
    with pytest.raises(SettingError, match=words):
        hand_out(data_set(), IID(), dealing)


def test_a_class_that_the_rows_lack_cannot_be_positive():
    data = data_set()._replace(classes=12)
    with pytest.raises(SettingError, match="no training row has this label"):
        hand_out(data, IID(), Dealing(2, 11))


@pytest.mark.parametrize("dealing", [Dealing(2, 1), Dealing(2, flip_labels=0.1)])
def test_text_has_no_single_label(dealing):
    text = DataSet(Rows(torch.zeros(9, 5), torch.zeros(9, 5).long()), Rows(torch.zeros(1, 5), torch.zeros(1, 5)), 5)
    assert hand_out(text, IID(), Dealing(3)).targets.shape == (9, 5)
    with pytest.raises(SettingError, match="no single label"):
        hand_out(text, IID(), dealing)


@settings(deadline=None)
@given(st.lists(st.integers(2, 30), min_size=1, max_size=20), st.floats(0.01, 0.9), st.integers(0, 99))
@example([15], 0.8999999999999999, 0)  # 13.5 in single precision
def test_every_clients_rows_are_kept_or_held_out(sizes, share, seed):
    owner = np.repeat(np.arange(len(sizes)), sizes)
    whole = clients_from_arrays(np.arange(len(owner))[:, None], owner, owner)
    stay, held = held_out(whole, share, seed)
    assert held.run.size.tolist() == [min(max(round(share * n), 1), n - 1) for n in sizes]
    for i, n in enumerate(sizes):
        parts = [part.inputs[int(part.run.start[i]) :][: int(part.run.size[i]), 0].tolist() for part in (stay, held)]
        first = int(whole.run.start[i])
        assert sorted(parts[0] + parts[1]) == list(range(first, first + n)) and parts[0] and parts[1]
        assert all(int(part.targets[int(part.run.start[i])]) == i for part in (stay, held))


def test_rows_that_are_held_out_are_drawn_by_the_seed_alone():
    whole = clients_from_arrays(np.arange(400)[:, None], np.zeros(400), np.arange(400) // 200)
    drawn = [held_out(whole, 0.25, seed)[1].inputs[:50, 0] for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert 70 < float(drawn[0].double().mean()) < 130  # from all of them, 0 to 199


def test_what_cannot_be_held_out_is_refused_by_name():
    one = clients_from_arrays(np.zeros((3, 1)), np.zeros(3), [0, 0, 1])
    with pytest.raises(SettingError, match=r"data.hold_out = 0.5: client 1 has one row only"):
        held_out(one, 0.5, 0)
    shared = Clients(torch.zeros(4, 1), torch.zeros(4), Run(torch.tensor([0, 0]), torch.tensor([4, 4])))
    with pytest.raises(SettingError, match=r"data.hold_out = 0.5: .*share rows"):
        held_out(shared, 0.5, 0)
    tables = {"data": {"name": "digits", "clients": 4, "hold_out": 0.5}, "model": {"name": "linear"},
              "problem": {"name": "agnostic"}, "algorithm": {"name": "fedavg", "asked": 2}}
    with pytest.raises(SettingError, match=r"data.hold_out = 0.5: .*run.per_client = true"):
        settle(tables)
    dealt = deal(settle({**tables, "run": {"per_client": True}}))
    assert dealt.held is not None and len(dealt.held.targets) + len(dealt.clients.targets) == len(
        deal(settle({**tables, "data": {**tables["data"], "hold_out": 0.0}})).clients.targets)
