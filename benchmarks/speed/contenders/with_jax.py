"""JAX: jit of vmap over the clients of lax.scan over the local steps. FedAvg and CDMA-ONE."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import work as shared
from jax import lax

Weights = list[jax.Array]
ALPHA = np.float32(1)


def forward(work: SimpleNamespace, weights: Weights, inputs: jax.Array) -> jax.Array:
    """The outputs of the model, from its parameters in PyTorch's order; matrices inputs first, as XLA is quicker."""
    if work.model == "resnet20":
        return resnet20(weights, inputs)
    parts = list(zip(weights[::2], weights[1::2], strict=True))
    values = inputs
    if work.model == "lenet5":
        for weight, bias in parts[:2]:
            values = jax.nn.relu(convolution(values, weight, 1, "VALID") + bias[:, None, None])
            values = lax.reduce_window(values, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        parts = parts[2:]
    values = values.reshape(len(values), -1)
    for weight, bias in parts[:-1]:
        values = jax.nn.relu(values @ weight + bias)
    return values @ parts[-1][0] + parts[-1][1]


def convolution(values: jax.Array, weight: jax.Array, stride: int, padding: Any) -> jax.Array:
    return lax.conv_general_dilated(values, weight, (stride, stride), padding)


def normalised(values: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    """Group normalisation with two groups."""
    grouped = values.reshape(len(values), 2, -1)
    centred = grouped - grouped.mean(-1, keepdims=True)
    centred = centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return centred.reshape(values.shape) * scale[:, None, None] + bias[:, None, None]


def resnet20(weights: Weights, inputs: jax.Array) -> jax.Array:
    layers = [tuple(weights[i:i + 3]) for i in range(0, len(weights) - 2, 3)]
    around = ((1, 1), (1, 1))
    values = jax.nn.relu(normalised(convolution(inputs, layers[0][0], 1, around), *layers[0][1:]))
    for first, second in zip(layers[1::2], layers[2::2], strict=True):
        more = first[0].shape[0] - values.shape[1]
        stride = 2 if more else 1
        body = jax.nn.relu(normalised(convolution(values, first[0], stride, around), *first[1:]))
        body = normalised(convolution(body, second[0], 1, around), *second[1:])
        kept = values[:, :, ::stride, ::stride]
        values = jax.nn.relu(body + jnp.pad(kept, ((0, 0), (more // 2, more - more // 2), (0, 0), (0, 0))))
    return values.mean((2, 3)) @ weights[-2] + weights[-1]


class Rounds:
    def __init__(self, work: SimpleNamespace) -> None:
        self.work = work
        inputs, targets = shared.table(work)
        self.inputs, self.targets = jnp.asarray(inputs), jnp.asarray(targets.astype(np.int32))
        self.starts = jnp.asarray(shared.starts(work).astype(np.int32))
        del inputs, targets
        self.laps = shared.Laps(work)
        self.server: Weights = [jnp.asarray(part.T if part.ndim == 2 else part) for part in shared.first_weights(work)]
        self.before = self.server
        self.chunk = shared.chunk(work)
        self.dice, self.turn = np.random.default_rng(work.seed), 0
        self.total, self.correction = jax.jit(self.steps), jax.jit(self.look)

    def loss(self, weights: Weights, inputs: jax.Array, targets: jax.Array) -> jax.Array:
        chances = jax.nn.log_softmax(forward(self.work, weights, inputs))
        return -jnp.take_along_axis(chances, targets[:, None], 1).mean()

    def cohort(self) -> list[np.ndarray]:
        ids = self.dice.choice(self.work.clients, self.work.cohort, replace=False, shuffle=False)
        return [ids[i:i + self.chunk] for i in range(0, len(ids), self.chunk)]

    def rows(self, key: jax.Array, start: jax.Array) -> jax.Array:
        """Of one client's minibatches, shuffled anew whenever all have been used."""
        work, need = self.work, self.work.steps * self.work.batch
        keys = jax.random.split(key, -(-need // work.rows))
        order = jax.vmap(partial(jax.random.permutation, x=work.rows))(keys).reshape(-1)[:need]
        return (start + order).reshape(work.steps, work.batch)

    def steps(self, turn: jax.Array, ids: jax.Array, inputs: jax.Array, targets: jax.Array, server: Weights,
              w: Weights | None) -> Weights:
        """The clients' share of the mean model after their local steps; with w along g(z) - g(z_0) + w."""
        key = jax.random.key(turn)
        gradient = jax.grad(self.loss)

        def client(key: jax.Array, start: jax.Array) -> Weights:
            rows = self.rows(key, start)

            def step(z: Weights, row: jax.Array) -> tuple[Weights, None]:
                x, y = inputs[row], targets[row]
                g = gradient(z, x, y)
                if w is not None:
                    g = jax.tree.map(lambda a, b, c: a - b + c, g, gradient(server, x, y), w)
                return jax.tree.map(lambda p, d: p - self.work.lr * d, z, g), None

            return lax.scan(step, server, rows)[0]

        ends = jax.vmap(client)(jax.random.split(key, len(ids)), self.starts[ids])
        return [end.sum(0) / self.work.cohort for end in ends]

    def look(self, ids: jax.Array, inputs: jax.Array, targets: jax.Array, server: Weights,
             before: Weights, alpha: jax.Array) -> Weights:
        """Their share of the mean gradient on all rows, minus 1 - alpha times that at z_{t-1}."""
        gradient = jax.grad(self.loss)

        def client(start: jax.Array) -> Weights:
            x = lax.dynamic_slice_in_dim(inputs, start, self.work.rows)
            y = lax.dynamic_slice_in_dim(targets, start, self.work.rows)
            now = gradient(server, x, y)
            if self.work.previous:
                now = jax.tree.map(lambda a, b: a - (1 - alpha) * b, now, gradient(before, x, y))
            return now

        return [g.sum(0) / self.work.cohort for g in jax.vmap(client)(self.starts[ids])]

    def round(self) -> None:
        w = None
        if self.work.method == "cdma-one":
            w = added([self.correction(ids, self.inputs, self.targets, self.server, self.before, ALPHA)
                       for ids in self.cohort()])
        parts = []
        for ids in self.cohort():
            self.turn += 1
            parts.append(self.total(np.uint32(self.turn), ids, self.inputs, self.targets, self.server, w))
        self.before, self.server = self.server, added(parts)


def added(parts: list[Weights]) -> Weights:
    """One chunk is the rule, and then nothing is left to do outside of what is compiled."""
    return parts[0] if len(parts) == 1 else [sum(part) for part in zip(*parts, strict=True)]


def main() -> None:
    work = shared.spec()
    if work.method not in ("fedavg", "cdma-one"):
        raise SystemExit(f"with_jax.py has no {work.method}")
    if (jax.default_backend() == "cpu") != (work.device == "cpu"):
        raise SystemExit(f"JAX finds only {jax.default_backend()} here")
    if work.matmul != "default":
        jax.config.update("jax_default_matmul_precision", work.matmul)
    run = Rounds(work)
    run.laps.run(run.round, lambda: jax.block_until_ready(run.server))
    held = shared.HELD
    run.laps.report({"jax": jax.__version__}, float(run.loss(run.server, run.inputs[:held], run.targets[:held])),
                    chunk=run.chunk)


if __name__ == "__main__":
    main()
