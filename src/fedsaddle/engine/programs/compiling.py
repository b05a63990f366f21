"""Segments compiled by inductor, and what a CPU needs for large tensors to be quick."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode

from fedsaddle.engine.programs.convolutions import write_in_own_convolutions
from fedsaddle.engine.programs.products import INNER, write_out_small_products
from fedsaddle.engine.programs.segments import Finished
from fedsaddle.engine.programs.spreading import fill_up_concatenations, spread
from fedsaddle.engine.programs.tracing import Function, Untraceable, simplify, trace

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
KEPT = 1 << 30
SMALL = 3  # pixels a side of convolutions at which the library is faster among compiled operations
NAMED = 1 << 12  # numbers among a segment's constants; all of them are part of the name under which it is kept
ON_GPU: dict[str, Any] = {  # of inductor
    "unroll_reductions_threshold": INNER + 1,  # sums written out are elementwise
    "combo_kernels": True,  # what does not depend on each other is one launch
    "compile_threads": min(8, os.cpu_count() or 1),  # the many kernels of a segment
}


def decompositions() -> Any:
    """The table of operations that inductor wants written out in simpler ones."""
    # Slow to import, and often not needed. Some of the table's entries look for the compiler's modules.
    import torch._inductor.compile_fx  # noqa: F401, PLC0415
    from torch._inductor.decomposition import select_decomp_table  # noqa: PLC0415

    return select_decomp_table()


def compiled(segment: fx.GraphModule, values: list[Tensor]) -> Finished:
    """Finish a segment by compiling it for exactly these shapes. Needs a C++ compiler on a CPU, triton on a GPU."""
    from torch._inductor import config  # noqa: PLC0415

    options: dict[str, Any] = {
        "cpp.threads": torch.get_num_threads(), "compile_threads": 1,
        "comprehensive_padding": False,  # padded rows would have to be copied before every product
        "max_pointwise_cat_inputs": 0,  # concatenations are written part by part
    }
    try:
        spread(segment)
        if any(value.device.type == "cuda" for value in values):
            write_in_own_convolutions(segment, beyond=SMALL)
            write_out_small_products(segment)
            fill_up_concatenations(segment)
            options |= ON_GPU
        with config.patch(options), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it advises a lower precision
            run: Any = _compiled_once(segment, values)
            found = run(list(values))
    except Exception as error:  # whatever a compiler may raise, a slower way exists
        raise Untraceable(f"it does not compile: {_first_line(error)}") from error

    def compiled_step(*values: Tensor) -> Sequence[Tensor]:
        results: Sequence[Tensor] = run(list(values))
        return results

    return compiled_step, found


def _compiled_once(segment: fx.GraphModule, values: list[Tensor]) -> Any:
    """Compiled, or taken from what inductor has on disk of segments that any process has compiled before.

    It looks there only while tracing, for inputs that have shapes and no values.
    """
    from torch._inductor.compile_fx import compile_fx_inner  # noqa: PLC0415
    from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: PLC0415

    constants = {node.target: getattr(segment, str(node.target)) for node in segment.graph.nodes
                 if node.op == "get_attr"}
    if sum(constant.numel() for constant in constants.values()) > NAMED:  # a draw's are the rows of all clients
        return compile_fx_inner(segment, values)
    shapes = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    with tracing(TracingContext(shapes)):
        return compile_fx_inner(segment, [shapes.from_tensor(value, static_shapes=True) for value in values])


def compiled_function(function: Function, values: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """A function of tensors, traced and compiled as one piece."""
    module = trace(function, values, decompositions())
    simplify(module, fold=True)  # numbers counted up in a kernel would have 32 bits
    return compiled(module, list(values))[0]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:200]


@functools.cache
def keep_freed_memory() -> bool:
    """Let malloc keep freed blocks of a chunk's size instead of giving them back to the system at every operation.

    Pages of a fresh block are zeroed by the kernel when touched, which costs as much as the arithmetic of small nets.
    """
    libc = _glibc()
    return libc is not None and all(libc.mallopt(name, KEPT) for name in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD))


def give_freed_memory_back() -> None:
    """What lies free between blocks that stay: making a program leaves such gaps by every step that it traces."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
