"""Measures of a solution, computed on pooled scores."""

from fedsaddle.metrics.auc import auc, average_precision

__all__ = ["auc", "average_precision"]
