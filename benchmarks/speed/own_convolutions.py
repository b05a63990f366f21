"""One convolution for each client, as kernels of our own (Triton): the candidates of convolutions.py.

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
from torch import Tensor, fx


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
def _correlated(x, w, y, N: tl.constexpr, G: tl.constexpr, A: tl.constexpr, H: tl.constexpr, V: tl.constexpr,
                C: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, I: tl.constexpr, J: tl.constexpr, S: tl.constexpr,
                PAD: tl.constexpr, BC: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr):
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
def _spread(y, w, x, N: tl.constexpr, G: tl.constexpr, A: tl.constexpr, H: tl.constexpr, V: tl.constexpr,
            C: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, I: tl.constexpr, J: tl.constexpr, S: tl.constexpr,
            PAD: tl.constexpr, BC: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr):
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
    _correlated[grid](x, w, y, *form, blocks.rows, blocks.columns, blocks.terms, precision(), num_warps=blocks.warps,
                      num_stages=blocks.stages)
    return y


def spread(y: Tensor, w: Tensor, form: Form, blocks: Blocks) -> Tensor:
    x = y.new_empty(form.N, form.G * form.A, form.H, form.V)
    pixels = form.N * triton.cdiv(form.H, form.S) * triton.cdiv(form.V, form.S)  # of one remainder
    grid = (form.S**2 * triton.cdiv(pixels, blocks.columns), triton.cdiv(form.A, blocks.rows), form.G)
    _spread[grid](y, w, x, *form, blocks.rows, blocks.columns, blocks.terms, precision(), num_warps=blocks.warps,
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
    _weighed[(tiles, parts, form.G)](x, y, w, *form, share, blocks.rows, blocks.columns, blocks.terms, precision(),
                                     num_warps=blocks.warps, num_stages=blocks.stages)
    return w[0] if parts == 1 else w.sum(0)


# In a trace.

aten = torch.ops.aten
TERMS = 32  # of a product at a time


def written_in(module: fx.GraphModule) -> int:
    """Put these kernels in the place of a trace's grouped convolutions. How many there were."""
    graph, count = module.graph, 0
    for node in list(graph.nodes):
        if node.target is aten.convolution.default:
            x, w, bias, stride, pad, dilation, transposed, _, groups = node.args
            if not _suits(x, stride, pad, dilation, groups):
                continue
            with graph.inserting_before(node):
                found = graph.call_function(_forward, (x, w, form_of(node, x, w, stride, pad, transposed, groups),
                                                       transposed))
                if bias is not None:
                    found = graph.call_function(_with_bias, (found, bias))
        elif node.target is aten.convolution_backward.default:
            above, x, w, _, stride, pad, dilation, transposed, _, groups, wanted = node.args
            if not _suits(x, stride, pad, dilation, groups):
                continue
            with graph.inserting_before(node):
                found = graph.call_function(_backward, (
                    above, x, w, form_of(above, x, w, stride, pad, transposed, groups), transposed, tuple(wanted)))
        else:
            continue
        found.meta = dict(node.meta)
        node.replace_all_uses_with(found)
        count += 1
    graph.eliminate_dead_code()
    module.recompile()
    return count


def _suits(x: fx.Node, stride: list[int], pad: list[int], dilation: list[int], groups: int) -> bool:
    value = x.meta["val"]
    return groups > 1 and value.dim() == 4 and value.dtype == torch.float32 and set(dilation) == {1} and \
        len(set(stride)) == 1 and len(set(pad)) == 1


def form_of(
    result: fx.Node, x: fx.Node, w: fx.Node, stride: list[int], pad: list[int], transposed: bool, groups: int,
) -> Form:
    """result: the convolution, or whatever has its shape."""
    large, small = (result, x) if transposed else (x, result)
    (n, a, h, v), (_, c, p, q) = large.meta["val"].shape, small.meta["val"].shape
    i, j = w.meta["val"].shape[2:]
    return Form(n, groups, a // groups, h, v, c // groups, p, q, i, j, stride[0], pad[0])


def blocks_for(rows: int, columns: int) -> Blocks:
    """Of a product with so many rows and columns a group."""
    tall = 16 if rows <= 16 else 32 if rows <= 32 else 64
    wide = 128 if columns >= 4096 else 64
    return Blocks(tall, wide, TERMS, 4, 3)


def _forward(x: Tensor, w: Tensor, form: Form, transposed: bool) -> Tensor:
    form = Form(*form)
    x, w = x.contiguous(), w.contiguous()
    if transposed:
        return spread(x, w, form, blocks_for(form.A, form.N * form.H * form.V))
    return correlated(x, w, form, blocks_for(form.C, form.N * form.P * form.Q))


def _with_bias(found: Tensor, bias: Tensor) -> Tensor:
    return found + bias[:, None, None]


def _backward(
    above: Tensor, x: Tensor, w: Tensor, form: Form, transposed: bool, wanted: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    form = Form(*form)
    above, x, w = above.contiguous(), x.contiguous(), w.contiguous()
    of_x = of_w = None
    if wanted[0]:
        of_x = correlated(above, w, form, blocks_for(form.C, form.N * form.P * form.Q)) if transposed else \
            spread(above, w, form, blocks_for(form.A, form.N * form.H * form.V))
    if wanted[1]:
        large, small = (above, x) if transposed else (x, above)
        of_w = weighed(large, small, form, blocks_for(form.C, form.A * form.I * form.J)).view_as(w)
    return of_x, of_w, above.sum((0, 2, 3)) if wanted[2] else None
