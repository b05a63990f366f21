"""Inception Score (Salimans et al. 2016) and Fréchet distance (Heusel et al. 2017) of generated images.

Both are judged by a classifier. Papers on small images train it on the same data, and so does `fedsaddle classifier`:
the numbers compare methods under one classifier, and never with numbers of another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from fedsaddle.contracts import SettingError

SAMPLES = 10_000  # images that the papers draw
Judge = Callable[[Tensor], tuple[Tensor, Tensor]]  # images -> features [rows, d], class probabilities [rows, classes]


class Moments(NamedTuple):
    """Mean and covariance (divided by the rows less one) of features, in float64."""

    rows: int
    mean: Tensor
    covariance: Tensor


class Seen(NamedTuple):
    """What a judge says about a set of images."""

    probabilities: Tensor
    moments: Moments


@torch.no_grad()
def judged(judge: Judge, batches: Iterable[Tensor]) -> Seen:
    """Show the images to the judge, batch by batch. What it says stays on its device until the end."""
    probabilities: list[Tensor] = []
    total: Moments | None = None
    for images in batches:
        features, classes = judge(images)
        probabilities.append(classes.double())
        total = moments(features) if total is None else combined(total, moments(features))
    if total is None:
        raise SettingError("images: there are none to judge; give at least one batch")
    return Seen(torch.cat(probabilities).cpu(), Moments(total.rows, total.mean.cpu(), total.covariance.cpu()))


def inception_score(probabilities: Tensor, splits: int = 10) -> tuple[float, float]:
    """exp of the mean KL divergence between an image's classes and those of all: mean and deviation over splits.

    Between 1 and the number of classes.
    """
    if not 1 <= splits <= len(probabilities):
        raise SettingError(f"inception score: {splits} splits of {len(probabilities)} images; give each one an image")
    scores = []
    for part in torch.tensor_split(probabilities.double(), splits):
        divergence = torch.special.entr(part.mean(0)).sum() - torch.special.entr(part).sum(1).mean()
        scores.append(divergence.exp())
    found = torch.stack(scores)
    mean, deviation = torch.stack([found.mean(), found.std(correction=0)]).tolist()
    return mean, deviation


def moments(features: Tensor) -> Moments:
    values = features.double()
    centred = values - values.mean(0)
    return Moments(len(values), values.mean(0), centred.T @ centred / max(1, len(values) - 1))


def combined(one: Moments, other: Moments) -> Moments:
    """The moments of both sets together."""
    rows, apart = one.rows + other.rows, other.mean - one.mean
    scatter = (one.rows - 1) * one.covariance + (other.rows - 1) * other.covariance
    between = torch.outer(apart, apart) * (one.rows * other.rows / rows)
    return Moments(rows, one.mean + apart * (other.rows / rows), (scatter + between) / max(1, rows - 1))


def frechet_distance(one: Moments, other: Moments) -> float:
    """|m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)).

    The trace of that root is the sum of the singular values of C1^(1/2) C2^(1/2): roots of symmetric matrices, which
    rounding cannot make complex, and no root of a product, in which rounding of 1e-14 would become 1e-7.
    """
    shared = torch.linalg.svdvals(_root(one.covariance) @ _root(other.covariance)).sum()
    apart = (one.mean - other.mean).square().sum()
    return max(0.0, float(apart + one.covariance.trace() + other.covariance.trace() - 2 * shared))


def image_measures(made: Seen, real: Moments) -> dict[str, float]:
    """As measures of a run."""
    score, deviation = inception_score(made.probabilities, min(10, len(made.probabilities)))
    return {"inception_score": score, "inception_score_deviation": deviation,
            "fid": frechet_distance(made.moments, real)}


def _root(matrix: Tensor) -> Tensor:
    values, directions = torch.linalg.eigh(matrix)
    root: Tensor = directions * values.clamp(min=0).sqrt() @ directions.T
    return root
