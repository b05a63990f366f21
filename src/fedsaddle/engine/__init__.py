"""Engines: the federation, its vectorised and its one-by-one clients, the training loop, checkpoints."""
