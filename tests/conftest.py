"""Every test runs on one thread: the machine's second core belongs to the other test worker."""

import torch

torch.set_num_threads(1)
