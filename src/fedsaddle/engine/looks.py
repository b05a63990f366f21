"""The last look at a solution, for a report: how it serves each client, how it ranks rows, what it makes.

One pass over the data, in slices, on the run's device; what comes back are plain values of the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from math import nan
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsaddle.contracts import Batch, Point, Problem, Rows
from fedsaddle.data.clients import Clients
from fedsaddle.maths.nets import at_once
from fedsaddle.metrics.auc import auc
from fedsaddle.metrics.fairness import by_client

SLICE = 4096  # rows scored at once, at most
CORNERS, NEAR = 200, 1e-3  # points of a ROC curve at most; how far a corner that is left out may lie from the rest
BINS = 10  # of a calibration
SIDE = 8  # images in a row and in a column of the grid


class Looks(NamedTuple):
    """What there is to see of a solution; empty where the problem or the settings have none."""

    clients: dict[str, list[float]]  # measure -> one value a client
    rows: list[int]  # of each client, beside them
    scores: dict[str, dict[str, Any]]  # data set -> fpr, tpr, auc, calibration
    images: NDArray[np.uint8] | None  # [height, width, channels]: a grid of generated images

    def told(self) -> dict[str, Any]:
        """All but the images, without what is empty."""
        parts = {"clients": self.clients, "rows": self.rows, "scores": self.scores}
        return {name: part for name, part in parts.items() if part}


Look = Callable[[Point], Looks]


def looker(problem: Problem, sets: Mapping[str, Rows], clients: Clients | None) -> Look:
    """The look at a solution of this problem. clients: whose measures are wanted one by one; None: nobody's."""

    @torch.no_grad()
    def look(z: Point) -> Looks:
        each = {name: values.tolist() for name, values in by_client(problem, z, clients).items()} if clients else {}
        found = {name: scores_of(problem, z, rows) for name, rows in sets.items()}
        return Looks(each, clients.run.size.tolist() if clients else [],
                     {name: ranked(scores, sets[name].targets > 0) for name, scores in found.items()
                      if scores is not None}, grid(problem, z))

    return look


def scores_of(problem: Any, z: Point, rows: Rows) -> Tensor | None:
    """One score a row, of a problem that ranks rows; None of another."""
    if getattr(problem, "headline", "") != "auc" or not hasattr(problem, "scores") or not len(rows.targets):
        return None
    parts, size = [], at_once(problem, rows.inputs, SLICE)
    for inputs, targets in zip(rows.inputs.split(size), rows.targets.split(size), strict=True):
        weight = torch.full((len(targets),), 1 / len(targets), dtype=z.x.dtype, device=inputs.device)
        scores = problem.scores(z.x, Batch(inputs, targets, weight))
        if scores.dim() != 1:  # vectors, of pairs that are similar or not
            return None
        parts.append(scores)
    return torch.cat(parts)


def ranked(scores: Tensor, positive: Tensor) -> dict[str, Any]:
    """The ROC curve, the area under it (exact, not of the corners that are left) and the calibration."""
    values, hits = scores.double().cpu().numpy(), positive.cpu().numpy()
    broken = bool(np.isnan(values).any())
    one_class = bool(hits.all() or not hits.any())
    fpr, tpr = ([], []) if broken or one_class else roc(values, hits)
    return {"fpr": fpr, "tpr": tpr, "auc": nan if broken or one_class else auc(scores, positive),
            "calibration": {"score": [], "share": [], "count": []} if broken else calibration(values, hits)}


def roc(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> tuple[list[float], list[float]]:
    """False and true positive rates at the corners of the curve, from (0, 0) to (1, 1)."""
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))  # of each group of ties
    true = np.append(0, np.cumsum(positive[order])[last])
    false = np.append(0, last + 1 - true[1:])
    across, up = np.diff(false), np.diff(true)
    bends = np.append(np.insert(across[:-1] * up[1:] != across[1:] * up[:-1], 0, True), True)
    corners = np.stack([false[bends] / false[-1], true[bends] / true[-1]], 1)
    kept = corners[thinned(corners)]
    return kept[:, 0].tolist(), kept[:, 1].tolist()


def thinned(corners: NDArray[np.float64], most: int = CORNERS, near: float = NEAR) -> list[int]:
    """Which corners say enough, in order: always one more where the line through the others is farthest off
    (Douglas and Peucker 1973), until it is near everywhere or there are as many as may be."""
    end = len(corners) - 1
    if end < most:
        return list(range(end + 1))
    kept, open_ = [0, end], [_farthest(corners, 0, end)]
    while open_ and len(kept) < most:
        off, at, start, stop = heappop(open_)
        if -off <= near:
            break
        kept.append(at)
        for ends in ((start, at), (at, stop)):
            if ends[1] - ends[0] > 1:
                heappush(open_, _farthest(corners, *ends))
    return sorted(kept)


def _farthest(corners: NDArray[np.float64], start: int, stop: int) -> tuple[float, int, int, int]:
    """Minus the distance, and the place, of the corner between these two that lies farthest from their line."""
    chord, out = corners[stop] - corners[start], corners[start + 1 : stop] - corners[start]
    distance = np.abs(chord[0] * out[:, 1] - chord[1] * out[:, 0]) / np.hypot(*chord)
    at = int(distance.argmax())
    return -float(distance[at]), start + 1 + at, start, stop


def calibration(scores: NDArray[np.float64], positive: NDArray[np.bool_], bins: int = BINS) -> dict[str, list[Any]]:
    """Rows in bins of equally many by their score: mean score and share of positives. Equal scores share a bin."""
    order = np.argsort(scores, kind="stable")
    scores, positive = scores[order], positive[order]
    wanted = scores[np.arange(bins) * len(scores) // bins]  # the score with which each bin begins
    starts = np.unique(np.searchsorted(scores, wanted))
    count = np.diff(np.append(starts, len(scores)))
    means = [np.add.reduceat(part.astype(np.float64), starts) / count for part in (scores, positive)]
    return {"score": means[0].tolist(), "share": means[1].tolist(), "count": count.tolist()}


def grid(problem: Any, z: Point) -> NDArray[np.uint8] | None:
    """Generated images side by side. `problem.ranges["samples"]`: black and white, if not -1 and 1."""
    if not hasattr(problem, "samples"):
        return None
    made = problem.samples(z, SIDE * SIDE)
    if made.dim() == 3:
        made = made[:, None]
    if made.dim() != 4 or made.shape[1] not in (1, 3):
        return None  # points, not images
    black, white = getattr(problem, "ranges", {}).get("samples", (-1.0, 1.0))
    shades = ((made.double() - black) / (white - black)).nan_to_num(0.0).clamp(0, 1)
    _, channels, height, width = made.shape
    tiles = (255 * shades).round().to(torch.uint8).reshape(SIDE, SIDE, channels, height, width)
    tiled: NDArray[np.uint8] = tiles.permute(0, 3, 1, 4, 2).reshape(SIDE * height, SIDE * width, channels).cpu().numpy()
    return tiled
