"""One convolution for each client on a GPU, as kernels of our own. Needs triton, which comes with torch for CUDA.

vmap makes of a convolution with weights of each client a grouped one, and libraries are slow at those. Here a group is
a product of matrices. In two of three kernels its right side is read from the images as it is needed; `spread` has the
library multiply, and a kernel adds up what all places hand on to a pixel. They are enough for transposed convolutions,
too. With x [n, g, a, h, v] the larger images, y [n, g, c, p, q] the smaller, w [g, c, a, i, j]:

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

PIXELS = 512  # that a program of `_gathered` adds up


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
def _gathered(columns, x, G, N: tl.constexpr, A: tl.constexpr, H: tl.constexpr, V: tl.constexpr, P: tl.constexpr,
              Q: tl.constexpr, I: tl.constexpr, J: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr,
              BM: tl.constexpr):
    # A pixel at (h, v) meets the weights i with i = h + PAD modulo S: the first of them, and every S-th after it.
    m, a, g = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1), tl.program_id(2)
    known = m < N * H * V
    n, r = m // (H * V), m % (H * V)
    h, v = r // V + PAD, r % V + PAD
    total = tl.zeros((BM,), dtype=tl.float32)
    for down in tl.static_range((I + S - 1) // S):
        for across in tl.static_range((J + S - 1) // S):
            i, j, p, q = h % S + down * S, v % S + across * S, h // S - down, v // S - across
            there = known & (i < I) & (j < J) & (p >= 0) & (p < P) & (q >= 0) & (q < Q)
            at = ((g * A + a) * (I * J) + i * J + j) * (N * P * Q) + (n * P + p) * Q + q
            total += tl.load(columns + at, mask=there, other=0.0)
    tl.store(x + ((n * G + g) * A + a) * (H * V) + r, total, mask=known)


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


def spread(y: Tensor, w: Tensor, form: Form) -> Tensor:
    """One product of matrices for each group, whose results, all that an image hands on, are then added up by pixel."""
    handed_on = torch.bmm(
        w.view(form.G, form.C, form.A * form.I * form.J).transpose(1, 2),
        y.view(form.N, form.G, form.C, form.P * form.Q).permute(1, 2, 0, 3).reshape(form.G, form.C, -1))
    x = y.new_empty(form.N, form.G * form.A, form.H, form.V)
    grid = (triton.cdiv(form.N * form.H * form.V, PIXELS), form.A, form.G)
    _gathered[grid](handed_on, x, form.G, form.N, form.A, form.H, form.V, *form[6:], PIXELS)
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
