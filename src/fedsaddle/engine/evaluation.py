"""Measures beyond the problem's own that a run can be asked for: of each client, of all by histograms, of images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fedsaddle.contracts import Point, Problem, SettingError
from fedsaddle.data.clients import Clients
from fedsaddle.engine.classifier import SLICE, load
from fedsaddle.engine.federation import PREPARATION, EngineFederation
from fedsaddle.metrics.fairness import fairness
from fedsaddle.metrics.histogram import FEWEST, histogram_auc, problem_score
from fedsaddle.metrics.images import image_measures, judged

Measure = Callable[[Point], dict[str, float]]


def further(
    problem: Problem, clients: Clients, federation: EngineFederation, run: Any,
) -> list[tuple[str, Measure]]:
    """Those that the settings of a run ask for, by the name under which they are recorded."""
    asked = [("clients", of_each_client(problem, clients))] if run.per_client else []
    if run.histogram_bins:
        asked.append(("clients", of_all_clients(problem, federation, run.histogram_bins)))
    if run.image_samples:
        asked.append(("images", of_images(problem, run.classifier, run.image_samples, clients.inputs.device)))
    return asked


def of_each_client(problem: Problem, clients: Clients) -> Measure:
    """Worst, worst tenth, mean and spread over clients of the loss, and of the accuracy where the problem has one."""
    if getattr(problem, "strata", ()):
        raise SettingError(f"run.per_client = true: the loss of {type(problem).__name__} is one of pairs or of "
                           "classes, not of rows, so a client's rows have no mean; leave it out")
    return lambda z: fairness(problem, z, clients)


def of_all_clients(problem: Problem, federation: EngineFederation, bins: int) -> Measure:
    """The AUC over all clients' rows with its interval. What it took to ask is told beside it, apart from training."""
    if bins < FEWEST or getattr(problem, "headline", "") != "auc":
        raise SettingError(f"run.histogram_bins = {bins}: needs a problem that ranks rows, such as auc or pairwise, "
                           f"and at least {FEWEST} bins; set it to 64, or to 0 for another problem")

    def measure(z: Point) -> dict[str, float]:
        federation.begin(PREPARATION)  # between two rounds: everyone answers, and no draw of a round is touched
        found = histogram_auc(federation, problem_score, z, bins)
        traffic = federation.traffic
        return {"auc": found.value, "auc_low": found.low, "auc_high": found.high,
                "floats_up": traffic.floats_up, "floats_down": traffic.floats_down}

    return measure


def of_images(problem: Any, file: str, samples: int, device: torch.device) -> Measure:
    """Inception Score and FID of so many images, always from the same noise."""
    if not hasattr(problem, "samples"):
        raise SettingError(f"run.image_samples = {samples}: problem {type(problem).__name__} makes no images; set it "
                           "to 0, or choose the problem gan")
    if not file:
        raise SettingError(f"run.image_samples = {samples}: needs run.classifier; train one with `fedsaddle classifier "
                           "DATA`, and give its file")
    classifier = load(Path(file)).to(device)
    return lambda z: image_measures(judged(classifier.judge, problem.samples(z, samples).split(SLICE)), classifier.real)
