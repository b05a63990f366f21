"""Exact AUC, partial AUC and average precision of a set of scores, by one sort on their device and one transfer."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsaddle.contracts import SettingError


def auc(scores: Tensor, positive: Tensor) -> float:
    """The share of (positive, negative) pairs in the right order, a tie counting half.

    nan where a class is missing or a score is nan. The pairs are counted in integers, so the result is exact.
    """
    true, false = _counts(scores, positive)
    doubled = (false.diff() * (true[1:] + true[:-1])).sum()  # trapezoids under the ROC curve, times two
    positives, negatives, area, broken = torch.stack([true[-1], false[-1], doubled, _broken(scores)]).tolist()
    return area / (2 * positives * negatives) if positives and negatives and not broken else float("nan")


def partial_auc(scores: Tensor, positive: Tensor, max_fpr: float) -> float:
    """The area under the ROC curve up to a false positive rate, scaled to 0.5 for chance and 1 at best (McClish).

    nan where a class is missing or a score is nan.
    """
    if not 0 < max_fpr <= 1:
        raise SettingError(f"partial AUC: max_fpr = {max_fpr} is no false positive rate; set it above 0 and at most 1")
    true, false = _counts(scores, positive)
    tpr, fpr = true.double() / true[-1], false.double() / false[-1]
    left, right, low, high = fpr[:-1], fpr[1:], tpr[:-1], tpr[1:]
    width = (right.clamp(max=max_fpr) - left).clamp(min=0)
    share = torch.where(right > left, width / (right - left).clamp(min=1e-300), 0)  # of the step, below max_fpr
    under = (width * (low + (high - low) * share / 2)).sum()
    pairs, area, broken = torch.stack([(true[-1] * false[-1]).double(), under, _broken(scores).double()]).tolist()
    least = max_fpr**2 / 2
    return 0.5 * (1 + (area - least) / (max_fpr - least)) if pairs and not broken else float("nan")


def average_precision(scores: Tensor, positive: Tensor) -> float:
    """The mean over positives of the precision at their score; tied scores share one threshold.

    nan where there are no positives or a score is nan.
    """
    true, false = _counts(scores, positive)
    found = true[1:].double()
    mean = (true.diff() * (found / (found + false[1:]).clamp(min=1))).sum() / true[-1]
    value, broken = torch.stack([mean, _broken(scores).double()]).tolist()
    return float("nan") if broken else value  # without positives it is 0 / 0


def _counts(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """True and false positives above every score from the highest down: int64, first entry 0. Within a group of ties
    they stay as before it, so that no shape depends on the scores and the host need not wait."""
    if scores.shape != positive.shape or scores.dim() != 1:
        raise SettingError(f"auc: scores of shape {tuple(scores.shape)} and labels of shape {tuple(positive.shape)}; "
                           "give two vectors of one length")
    ordered = torch.sort(scores.detach(), descending=True)
    hits = positive.bool()[ordered.indices].cumsum(0)
    last = torch.ones_like(hits, dtype=torch.bool)  # of its group of ties
    last[:-1] = ordered.values[1:] != ordered.values[:-1]
    false = torch.arange(1, len(hits) + 1, device=hits.device) - hits
    zero = hits.new_zeros(1)
    true, false = (torch.cat([zero, torch.where(last, part, 0)]).cummax(0).values for part in (hits, false))
    return true, false


def _broken(scores: Tensor) -> Tensor:
    return scores.isnan().any().long()
