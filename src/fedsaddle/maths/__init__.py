"""Flat vectors, trees, projections and keyed random streams."""
