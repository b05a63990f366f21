"""Measures of a solution: on pooled rows, across clients, and of generated images."""

from fedsaddle.metrics.auc import auc, average_precision, partial_auc
from fedsaddle.metrics.fairness import fairness
from fedsaddle.metrics.histogram import HistogramAUC, histogram_auc, problem_score
from fedsaddle.metrics.images import frechet_distance, inception_score

__all__ = [
    "HistogramAUC", "auc", "average_precision", "fairness", "frechet_distance", "histogram_auc", "inception_score",
    "partial_auc", "problem_score",
]
