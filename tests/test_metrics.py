"""AUC and average precision against brute force and scikit-learn."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from fedsaddle.contracts import SettingError
from fedsaddle.metrics import auc, average_precision


def brute(scores, positive):
    pos, neg = scores[positive], scores[~positive]
    better = (pos[:, None] > neg).sum() + 0.5 * (pos[:, None] == neg).sum()
    return better / (len(pos) * len(neg))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=40))
def test_auc_counts_every_pair_and_halves_ties(rows):
    scores, positive = np.array([float(s) for s, _ in rows]), np.array([p for _, p in rows])
    got = auc(torch.tensor(scores), torch.tensor(positive))
    if positive.all() or not positive.any():
        assert math.isnan(got)
    else:
        assert got == pytest.approx(brute(scores, positive), abs=1e-15)


def test_auc_by_hand():
    positive = torch.tensor([True, True, False, False])
    assert auc(torch.tensor([4.0, 3.0, 2.0, 1.0]), positive) == 1.0
    assert auc(torch.tensor([1.0, 2.0, 3.0, 4.0]), positive) == 0.0
    assert auc(torch.full((4,), 0.7), positive) == 0.5
    assert auc(torch.tensor([2.0, 1.0, 1.0, 0.0]), positive) == 0.875


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_sets_with_ties_agree_with_scikit_learn(dtype):
    random = np.random.default_rng(0)
    positive = random.random(200_000) < 0.03
    scores = torch.tensor(np.round(random.normal(size=200_000) + positive, 2), dtype=dtype)
    assert auc(scores, torch.tensor(positive)) == pytest.approx(roc_auc_score(positive, scores.numpy()), abs=1e-12)
    assert average_precision(scores, torch.tensor(positive)) == pytest.approx(
        average_precision_score(positive, scores.numpy()), abs=1e-12)


def test_neighbouring_float32_scores_are_no_ties():
    one = torch.tensor(1.0)
    scores = torch.stack([torch.nextafter(one, 2 * one), one])
    assert auc(scores, torch.tensor([True, False])) == 1.0


def test_missing_classes_and_broken_scores_give_nan():
    three = torch.tensor([1.0, 2.0, 3.0])
    for positive in (torch.ones(3, dtype=torch.bool), torch.zeros(3, dtype=torch.bool)):
        assert math.isnan(auc(three, positive))
    assert math.isnan(average_precision(three, torch.zeros(3, dtype=torch.bool)))
    assert average_precision(three, torch.ones(3, dtype=torch.bool)) == 1.0
    assert math.isnan(auc(torch.tensor([1.0, math.nan, 3.0]), torch.tensor([True, False, True])))
    assert auc(torch.tensor([-math.inf, math.inf]), torch.tensor([False, True])) == 1.0
    assert math.isnan(auc(torch.zeros(0), torch.zeros(0, dtype=torch.bool)))


def test_labels_of_another_length_are_refused():
    with pytest.raises(SettingError, match="one length"):
        auc(torch.zeros(3), torch.ones(2, dtype=torch.bool))
