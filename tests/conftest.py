"""Every test runs on one thread: the machine's second core belongs to the other test worker."""

import torch

torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    """Tests that mostly wait for real processes come first: the other worker computes meanwhile."""
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)
