"""One convolution for each client on a GPU, as kernels of our own. Needs triton, which comes with torch for CUDA.

vmap makes of a convolution with weights of each client a grouped one, and libraries are slow at those. Here a group is
a product of matrices whose left side are the weights, whose right side is read from the images as it is needed:
nothing is unfolded in memory. Three kernels are enough, for transposed convolutions too. With x [n, g, a, h, v] the
larger images, y [n, g, c, p, q] the smaller, w [g, c, a, i, j]:

    correlated   y = sum over a, i, j of x at (p * stride - pad + i, ...) * w
    spread       x = its adjoint: sum over c, i, j of y at ((h + pad - i) / stride, ...) * w
    weighed      w = sum over n, p, q of x * y
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Form(NamedTuple):
    """Everything that decides the work: batch, groups; channels and sides of x and of y; kernel, stride, padding."""

    N: int
    G: int
    A: int
    H: int
    V: int
    C: int
    P: int
    Q: int
    I: int
    J: int
    S: int
    PAD: int


class Blocks(NamedTuple):
    """Of a product: rows, columns, terms at a time; warps and stages of a program."""

    rows: int
    columns: int
    terms: int
    warps: int
    stages: int


@triton.jit
def _correlated(x, w, y, G, N: tl.constexpr, A: tl.constexpr, H: tl.constexpr, V: tl.constexpr, C: tl.constexpr,
                P: tl.constexpr, Q: tl.constexpr, I: tl.constexpr, J: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr,
                BC: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr):
    K: tl.constexpr = A * I * J
    m, c, g = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BC + tl.arange(0, BC), tl.program_id(2)
    n, r = m // (P * Q), m % (P * Q)
    top, left = (r // Q) * S - PAD, (r % Q) * S - PAD
    image = (n * G + g) * (A * H * V)
    total = tl.zeros((BC, BM), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        h, v = top[None, :] + ((k // J) % I)[:, None], left[None, :] + (k % J)[:, None]
        there = (m < N * P * Q)[None, :] & (k < K)[:, None] & (h >= 0) & (h < H) & (v >= 0) & (v < V)
        right = tl.load(x + image[None, :] + (k // (I * J))[:, None] * (H * V) + h * V + v, mask=there, other=0.0)
        known = (c < C)[:, None] & (k < K)[None, :]
        weights = tl.load(w + (g * C + c)[:, None] * K + k[None, :], mask=known, other=0.0)
        total = tl.dot(weights, right, total, input_precision=PRECISION)
    place = ((n * G + g) * C)[None, :] * (P * Q) + c[:, None] * (P * Q) + r[None, :]
    tl.store(y + place, total, mask=(c < C)[:, None] & (m < N * P * Q)[None, :])


@triton.jit
def _spread(y, w, x, G, N: tl.constexpr, A: tl.constexpr, H: tl.constexpr, V: tl.constexpr, C: tl.constexpr,
            P: tl.constexpr, Q: tl.constexpr, I: tl.constexpr, J: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr,
            BC: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr):
    # With a stride, pixels of one remainder meet the same weights, every S-th: each remainder is a product of its own.
    DOWN: tl.constexpr = (H + S - 1) // S
    ACROSS: tl.constexpr = (V + S - 1) // S
    TILES: tl.constexpr = (N * DOWN * ACROSS + BM - 1) // BM
    IS: tl.constexpr = (I + S - 1) // S
    JS: tl.constexpr = (J + S - 1) // S
    K: tl.constexpr = C * IS * JS
    rest, tile, g = tl.program_id(0) // TILES, tl.program_id(0) % TILES, tl.program_id(2)
    m, a = tile * BM + tl.arange(0, BM), tl.program_id(1) * BC + tl.arange(0, BC)
    n, r = m // (DOWN * ACROSS), m % (DOWN * ACROSS)
    h, v = (r // ACROSS) * S + rest // S, (r % ACROSS) * S + rest % S
    first_i, first_j = (rest // S + PAD) % S, (rest % S + PAD) % S
    last_p, last_q = (h + PAD - first_i) // S, (v + PAD - first_j) // S
    image = (n * G + g) * (C * P * Q)
    total = tl.zeros((BC, BM), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        c, down, across = k // (IS * JS), (k // JS) % IS, k % JS
        i, j = first_i + down * S, first_j + across * S
        p, q = last_p[None, :] - down[:, None], last_q[None, :] - across[:, None]
        known = (k < K) & (i < I) & (j < J)
        there = (m < N * DOWN * ACROSS)[None, :] & known[:, None] & (p >= 0) & (p < P) & (q >= 0) & (q < Q)
        right = tl.load(y + image[None, :] + c[:, None] * (P * Q) + p * Q + q, mask=there, other=0.0)
        at = ((g * C + c)[None, :] * A + a[:, None]) * (I * J) + (i * J + j)[None, :]
        weights = tl.load(w + at, mask=(a < A)[:, None] & known[None, :], other=0.0)
        total = tl.dot(weights, right, total, input_precision=PRECISION)
    place = ((n * G + g) * A)[None, :] * (H * V) + a[:, None] * (H * V) + (h * V + v)[None, :]
    tl.store(x + place, total, mask=(a < A)[:, None] & ((m < N * DOWN * ACROSS) & (h < H) & (v < V))[None, :])


@triton.jit
def _weighed(x, y, w, N: tl.constexpr, G: tl.constexpr, A: tl.constexpr, H: tl.constexpr, V: tl.constexpr,
             C: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, I: tl.constexpr, J: tl.constexpr, S: tl.constexpr,
             PAD: tl.constexpr, SHARE: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr, BM: tl.constexpr,
             PRECISION: tl.constexpr):
    K: tl.constexpr = A * I * J
    ROWS: tl.constexpr = (C + BC - 1) // BC
    tile, part, g = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    c, k = (tile % ROWS) * BC + tl.arange(0, BC), (tile // ROWS) * BK + tl.arange(0, BK)
    a, i, j = k // (I * J), (k // J) % I, k % J
    total = tl.zeros((BC, BK), dtype=tl.float32)
    for start in range(0, SHARE, BM):
        m = part * SHARE + start + tl.arange(0, BM)
        n, r = m // (P * Q), m % (P * Q)
        h, v = ((r // Q) * S - PAD)[None, :] + i[:, None], ((r % Q) * S - PAD)[None, :] + j[:, None]
        known = m < N * P * Q
        there = known[None, :] & (k < K)[:, None] & (h >= 0) & (h < H) & (v >= 0) & (v < V)
        image = (n * G + g) * (A * H * V)
        left = tl.load(y + ((n * G + g) * C * (P * Q) + r)[None, :] + c[:, None] * (P * Q),
                       mask=known[None, :] & (c < C)[:, None], other=0.0)
        right = tl.load(x + image[None, :] + a[:, None] * (H * V) + h * V + v, mask=there, other=0.0)
        total = tl.dot(left, tl.trans(right), total, input_precision=PRECISION)
    place = ((part * G + g) * C + c)[:, None] * K + k[None, :]
    tl.store(w + place, total, mask=(c < C)[:, None] & (k < K)[None, :])


def precision() -> str:
    """As the library's own convolutions."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


def correlated(x: Tensor, w: Tensor, form: Form, blocks: Blocks) -> Tensor:
    y = x.new_empty(form.N, form.G * form.C, form.P, form.Q)
    grid = (triton.cdiv(form.N * form.P * form.Q, blocks.columns), triton.cdiv(form.C, blocks.rows), form.G)
    _correlated[grid](x, w, y, form.G, form.N, *form[2:], *blocks[:3], precision(), num_warps=blocks.warps,
                      num_stages=blocks.stages)
    return y


def spread(y: Tensor, w: Tensor, form: Form, blocks: Blocks) -> Tensor:
    x = y.new_empty(form.N, form.G * form.A, form.H, form.V)
    pixels = form.N * triton.cdiv(form.H, form.S) * triton.cdiv(form.V, form.S)  # of one remainder
    grid = (form.S**2 * triton.cdiv(pixels, blocks.columns), triton.cdiv(form.A, blocks.rows), form.G)
    _spread[grid](y, w, x, form.G, form.N, *form[2:], *blocks[:3], precision(), num_warps=blocks.warps,
                  num_stages=blocks.stages)
    return x


def weighed(x: Tensor, y: Tensor, form: Form, blocks: Blocks, programs: int = 528) -> Tensor:
    """programs: about so many run at once; the sum over images is split among them, and the parts are added up."""
    terms = form.A * form.I * form.J
    tiles = triton.cdiv(form.C, blocks.rows) * triton.cdiv(terms, blocks.columns)
    length = form.N * form.P * form.Q
    steps = triton.cdiv(length, blocks.terms)
    share = triton.cdiv(steps, max(1, min(steps, programs // (tiles * form.G)))) * blocks.terms
    parts = triton.cdiv(length, share)
    w = x.new_empty(parts, form.G * form.C, form.A, form.I, form.J)
    _weighed[(tiles, parts, form.G)](x, y, w, *form, share, *blocks[:3], precision(),
                                     num_warps=blocks.warps, num_stages=blocks.stages)
    return w[0] if parts == 1 else w.sum(0)
