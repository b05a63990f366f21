"""Exact AUC, partial AUC and average precision of a set of scores, by one sort."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsaddle.contracts import SettingError


def auc(scores: Tensor, positive: Tensor) -> float:
    """The share of (positive, negative) pairs in the right order, a tie counting half.

    nan where a class is missing or a score is nan. The pairs are counted in integers, so the result is exact.
    """
    true, false = _counts(scores, positive)
    pairs = int(true[-1]) * int(false[-1])
    if not pairs or bool(scores.isnan().any()):
        return float("nan")
    doubled = int((false.diff() * (true[1:] + true[:-1])).sum())  # trapezoids under the ROC curve, times two
    return doubled / (2 * pairs)


def partial_auc(scores: Tensor, positive: Tensor, max_fpr: float) -> float:
    """The area under the ROC curve up to a false positive rate, scaled to 0.5 for chance and 1 at best (McClish).

    nan where a class is missing or a score is nan.
    """
    if not 0 < max_fpr <= 1:
        raise SettingError(f"partial AUC: max_fpr = {max_fpr} is no false positive rate; set it above 0 and at most 1")
    true, false = _counts(scores, positive)
    if not int(true[-1]) * int(false[-1]) or bool(scores.isnan().any()):
        return float("nan")
    tpr, fpr = true.double() / true[-1], false.double() / false[-1]
    left, right, low, high = fpr[:-1], fpr[1:], tpr[:-1], tpr[1:]
    width = (right.clamp(max=max_fpr) - left).clamp(min=0)
    share = torch.where(right > left, width / (right - left).clamp(min=1e-300), 0)  # of the step, below max_fpr
    area = float((width * (low + (high - low) * share / 2)).sum())
    least = max_fpr**2 / 2
    return 0.5 * (1 + (area - least) / (max_fpr - least))


def average_precision(scores: Tensor, positive: Tensor) -> float:
    """The mean over positives of the precision at their score; tied scores share one threshold.

    nan where there are no positives or a score is nan.
    """
    true, false = _counts(scores, positive)
    if not int(true[-1]) or bool(scores.isnan().any()):
        return float("nan")
    found = true[1:].double()
    return float((true.diff() * (found / (found + false[1:]))).sum() / true[-1])


def _counts(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """True and false positives at every threshold from above all scores down to the lowest: int64, first entry 0."""
    if scores.shape != positive.shape or scores.dim() != 1:
        raise SettingError(f"auc: scores of shape {tuple(scores.shape)} and labels of shape {tuple(positive.shape)}; "
                           "give two vectors of one length")
    ordered = torch.sort(scores.detach(), descending=True)
    hits = positive.bool()[ordered.indices].cumsum(0)
    last = torch.ones_like(hits, dtype=torch.bool)  # of its group of ties
    last[:-1] = ordered.values[1:] != ordered.values[:-1]
    ends = last.nonzero().squeeze(1)
    true = hits[ends]
    zero = true.new_zeros(1)
    return torch.cat([zero, true]), torch.cat([zero, ends + 1 - true])
