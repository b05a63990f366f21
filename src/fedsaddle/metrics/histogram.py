"""The AUC over the rows of all clients from sums of score histograms: no score leaves its client.

Clients count their positives and negatives between thresholds; the sums over clients are points of the ROC curve of the
pooled rows. Between two of them the pairs of one bin are undecided, so the AUC lies in an interval: all of them wrong,
or all right. Thresholds are numbers of the floating-point format itself, counted in its own steps, and every ask puts
new ones where most undecided pairs are: the interval narrows whatever the scores' scale, saturated ones included, and a
bin of a single number holds nothing but ties, which are known to count half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsaddle.contracts import ALL, Batch, CountOf, Data, Federation, Oracle, Pair, Point, SettingError, Work

Score = Callable[[Any, Point, Batch], Tensor]  # (problem, z, batch) -> one score a row
FEWEST = 8  # bins: the first thresholds need them
NARROW = 5e-4  # no further ask once the AUC is known to this
EXACT = 1 << 20  # counts below it survive an average in float32; larger ones are off by a row in a million or so,
ROUNDING = 1e-5  # for which the interval is widened by this
FORMATS = {torch.float32: (torch.int32, 1 << 31), torch.float64: (torch.int64, 1 << 63)}


class HistogramAUC(NamedTuple):
    """low <= exact AUC <= high; `value` takes every undecided pair for half right. nan where a class is missing."""

    value: float
    low: float
    high: float
    positives: int
    negatives: int
    clients: int  # that answered
    asks: int


class Look(NamedTuple):
    z: Point
    thresholds: Tensor


class Counts(NamedTuple):
    """Rows per bin; bin b holds scores from threshold b - 1 on, up to and without threshold b."""

    positive: CountOf
    negative: CountOf
    broken: CountOf  # rows whose score is nan


class Known(NamedTuple):
    """A point of the ROC curve: rows with a score below the number of this key."""

    key: int
    positives: int
    negatives: int


class Bin(NamedTuple):
    start: Known
    end: Known

    @property
    def width(self) -> int:
        """Numbers of the format in it."""
        return self.end.key - self.start.key

    @property
    def pairs(self) -> int:
        """Undecided ones: none where the bin has one class only, or a single number, whose ties count half."""
        positives, negatives = self.end.positives - self.start.positives, self.end.negatives - self.start.negatives
        return positives * negatives if self.width > 1 else 0


def histogram_auc(
    federation: Federation, score: Score, z: Point, bins: int = 64, asks: int = 6,
) -> HistogramAUC:
    """Ask everyone up to so often for a histogram of so many bins.

    score: (problem, z, batch) -> one score a row, such as `problem_score`. Rows with target > 0 are the positives.
    """
    if bins < FEWEST or asks < 1:
        raise SettingError(f"histogram_auc: {bins} bins in {asks} asks; give at least {FEWEST} bins and 1 ask")
    dtype = z.x.dtype
    curve: list[Known] = []
    work, cohort, answered = counting(score), federation.everyone(), torch.zeros(0, dtype=torch.int64)
    cohort = cohort._replace(weight=torch.ones_like(cohort.weight))  # a row is a row, whatever its client weighs
    for ask in range(1, asks + 1):
        keys = thresholds(curve, bins, dtype)
        got = federation.average(work, Look(z, numbers(keys, dtype)), cohort, ALL)
        counts = rounded(got.mean, got.answered)
        exact = dtype == torch.float64 or max(int(part.max()) for part in counts) < EXACT
        if not torch.equal(got.ids, answered):  # the counts of other clients do not fit the earlier ones
            curve, answered = [], got.ids
        curve = merged(curve, keys, counts, dtype)
        result = interval(curve, 0.0 if exact else ROUNDING)._replace(clients=got.answered, asks=ask)
        if int(counts.broken) or math.isnan(result.value):
            return result._replace(value=math.nan, low=math.nan, high=math.nan)
        if result.high - result.low <= 2 * NARROW:
            break
    return result


def rounded(mean: Counts, answered: int) -> Counts:
    """The counts of all that answered, from their mean, in one transfer."""
    everything = torch.cat([part.reshape(-1) for part in mean]).double() * answered
    bins = mean.positive.numel()
    positive, negative, broken = torch.round(everything).long().cpu().split([bins, bins, 1])
    return Counts(positive, negative, broken[0])


def problem_score(problem: Any, z: Point, batch: Batch) -> Tensor:
    """The scores of a problem that ranks rows."""
    scores = problem.scores(z.x, batch) if hasattr(problem, "scores") else None
    if not isinstance(scores, Tensor) or scores.dim() != 1:
        raise SettingError(f"histogram AUC: problem {type(problem).__name__} gives no score a row; choose a problem "
                           "that ranks rows, such as auc or pairwise")
    return scores


@cache
def counting(score: Score) -> Work:
    """The work of a client: its rows counted between thresholds."""

    def count(oracle: Oracle, message: Look, client: Any, data: Data) -> tuple[Counts, Any]:
        sides = data.full if isinstance(data.full, Pair) else (data.full,)
        totals = []
        for side, batch in enumerate(sides):
            scores = score(oracle.problem, message.z, batch).detach().to(message.thresholds.dtype)
            bin = torch.searchsorted(message.thresholds, scores, right=True)
            real = (batch.weight > 0).to(scores.dtype)
            positive = (batch.targets > 0).to(scores.dtype) if len(sides) == 1 else torch.full_like(real, 1 - side)
            empty = scores.new_zeros(message.thresholds.shape[0] + 1)
            totals.append(Counts(empty.scatter_add(0, bin, real * positive),
                                 empty.scatter_add(0, bin, real * (1 - positive)), (real * scores.isnan()).sum()))
        return totals[0] if len(totals) == 1 else Counts(*(a + b for a, b in zip(*totals, strict=True))), client

    return count


def thresholds(curve: Sequence[Known], bins: int, dtype: torch.dtype) -> list[int]:
    """bins - 1 new thresholds, as keys, ascending: always one more in the bin where it decides most pairs.

    A bin cut in k holds 1/k of its undecided pairs if its rows lie evenly; if they do not, the next ask will know.
    """
    if not curve:
        return first_thresholds(bins, dtype)
    parts = [Bin(*ends) for ends in pairwise(curve)]
    cuts = [0] * len(parts)
    gains = [(-part.pairs / 2, i) for i, part in enumerate(parts) if part.pairs]
    heapify(gains)
    for _ in range(bins - 1):
        if gains:
            _, i = heappop(gains)
            cuts[i] += 1
            if cuts[i] < parts[i].width - 1:  # pairs / (cuts + 1) would be left, and pairs / (cuts + 2) after one more
                heappush(gains, (-parts[i].pairs / ((cuts[i] + 1) * (cuts[i] + 2)), i))
    chosen = [part.start.key + part.width * cut // (count + 1) for part, count in zip(parts, cuts, strict=True)
              for cut in range(1, count + 1)]
    return chosen + chosen[-1:] * (bins - 1 - len(chosen))


def first_thresholds(bins: int, dtype: torch.dtype) -> list[int]:
    """Before anything is known: half of them for scores in [0, 1] with long tails on both ends, half for any size.

    0 and 1, where saturated scores lie, get bins of their own.
    """
    some = (bins - 5) // 2
    within = torch.linspace(-14, 14, some, dtype=torch.float64).sigmoid().tolist()
    half = (bins - 5 - some) // 2
    sizes = [2.0**power for power in torch.linspace(-6, 12, half).tolist()]
    beyond = [-size for size in sizes] + [1 + size for size in sizes]
    keys = key_of(torch.tensor(within + beyond, dtype=dtype))
    keys += [k + more for k in key_of(torch.tensor([0.0, 1.0], dtype=dtype)) for more in (0, 1)]
    return sorted(keys + [max(keys)] * (bins - 1 - len(keys)))


def merged(curve: Sequence[Known], keys: Sequence[int], counts: Counts, dtype: torch.dtype) -> list[Known]:
    """The curve with the points that an ask has added, from below all scores to above them."""
    positive, negative = ([0, *part.cumsum(0).tolist()] for part in (counts.positive, counts.negative))
    lowest, highest = key_of(torch.tensor([-math.inf, math.inf], dtype=dtype))
    found = {known.key: known for known in curve}
    for key, p, n in zip([lowest, *keys, highest + 1], positive, negative, strict=True):
        found[key] = Known(key, p, n)
    ordered = [found[key] for key in sorted(found)]
    rising = [list(accumulate(side, max)) for side in list(zip(*ordered, strict=True))[1:]]  # large counts are rounded
    return [Known(known.key, p, n) for known, p, n in zip(ordered, *rising, strict=True)]


def interval(curve: Sequence[Known], slack: float = 0.0) -> HistogramAUC:
    """What the curve says about the area under it. Pairs are counted in integers: no rounding but the last."""
    positives, negatives = curve[-1].positives, curve[-1].negatives
    if not positives or not negatives:
        return HistogramAUC(math.nan, math.nan, math.nan, positives, negatives, 0, 0)
    doubled = undecided = 0
    for start, end in pairwise(curve):
        p, n = end.positives - start.positives, end.negatives - start.negatives
        doubled += p * (2 * start.negatives + n)
        undecided += Bin(start, end).pairs
    pairs = 2 * positives * negatives
    low, high = max(0.0, (doubled - undecided) / pairs - slack), min(1.0, (doubled + undecided) / pairs + slack)
    return HistogramAUC(doubled / pairs, low, high, positives, negatives, 0, 0)


def key_of(values: Tensor) -> list[int]:
    """The place of each number among all numbers of its format: neighbours differ by 1, and -0.0 is 0.0."""
    form, half = FORMATS[values.dtype]
    bits: list[int] = (values + 0.0).view(form).tolist()
    return [b if b >= 0 else -(b + half) for b in bits]


def numbers(keys: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The numbers of these keys, the inverse of `key_of`."""
    form, half = FORMATS[dtype]
    return torch.tensor([k if k >= 0 else -k - half for k in keys], dtype=form).view(dtype)
