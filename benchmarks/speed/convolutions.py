"""One convolution for each client on a GPU: the library's grouped kernels, a loop over clients, and kernels of our own.

    python benchmarks/speed/convolutions.py [--nets gan,resnet20,resnet18,lenet5,cnn] [--tune] [--out FILE.json]

Times are of replays of a CUDA graph; rounds.py has whole rounds with and without ours. Prints Markdown. Needs triton.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsaddle.engine.programs import convolutions
from fedsaddle.engine.programs import kernels as own
from fedsaddle.engine.programs.kernels import Blocks, Form

REPEATED = 20


def form(n: int, g: int, a: int, side: int, c: int, kernel: int, stride: int = 1, pad: int = 0) -> Form:
    small = (side + 2 * pad - kernel) // stride + 1
    return Form(n, g, a, side, side, c, small, small, kernel, kernel, stride, pad)


NETS: dict[str, list[Form]] = {  # as the recipes ask for them: rows, clients, channels, side, channels, kernel
    "gan": [form(30, 8, 64, 14, 128, 4, 2, 1), form(30, 8, 1, 28, 64, 4, 2, 1),  # the generator's two are transposed
            form(30, 8, 1, 28, 32, 5), form(30, 8, 32, 12, 64, 5)],
    "resnet20": [form(32, 16, 3, 32, 16, 3, 1, 1), form(32, 16, 16, 32, 16, 3, 1, 1),
                 form(32, 16, 16, 32, 32, 3, 2, 1), form(32, 16, 32, 16, 32, 3, 1, 1),
                 form(32, 16, 32, 16, 64, 3, 2, 1), form(32, 16, 64, 8, 64, 3, 1, 1)],
    "resnet18": [form(32, 10, 64, 32, 64, 3, 1, 1), form(32, 10, 64, 32, 128, 3, 2, 1),
                 form(32, 10, 128, 16, 128, 3, 1, 1), form(32, 10, 256, 8, 256, 3, 1, 1),
                 form(32, 10, 512, 4, 512, 3, 1, 1)],
    "lenet5": [form(10, 16, 1, 28, 6, 5, 1, 2), form(10, 16, 6, 14, 16, 5)],
    "cnn": [form(10, 16, 3, 32, 32, 3), form(10, 16, 32, 15, 64, 3), form(10, 16, 64, 6, 64, 3)],
}
TRIED = [Blocks(16, 64, 32, 4, 3), Blocks(16, 128, 32, 4, 3), Blocks(16, 256, 16, 4, 3), Blocks(32, 64, 32, 4, 3),
         Blocks(32, 128, 32, 4, 3), Blocks(64, 64, 32, 4, 3), Blocks(64, 128, 32, 4, 3), Blocks(64, 128, 32, 8, 3),
         Blocks(64, 64, 64, 4, 2), Blocks(128, 64, 32, 8, 3), Blocks(128, 128, 32, 8, 3)]
COMPILERS = 14  # processes


def milliseconds(call: Callable[[], Any]) -> float:
    """Of one call, as a part of a captured graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATED):
            call()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay()
    laps = []
    for _ in range(3):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        laps.append(begin.elapsed_time(end) / REPEATED)
    return sorted(laps)[1]


def example(one: Form) -> tuple[Tensor, Tensor, Tensor]:
    return (torch.randn(one.N, one.G * one.A, one.H, one.V, device="cuda"),
            torch.randn(one.N, one.G * one.C, one.P, one.Q, device="cuda"),
            torch.randn(one.G * one.C, one.A, one.I, one.J, device="cuda"))


def ways(one: Form, x: Tensor, y: Tensor, w: Tensor) -> dict[str, dict[str, Callable[[], Any]]]:
    """By what is computed (y, x, w), the ways to compute it."""
    stride, pad, none, flat = [one.S] * 2, [one.PAD] * 2, [1, 1], [0, 0]
    conv, back = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default

    def grouped(x: Tensor, y: Tensor, w: Tensor, groups: int) -> dict[str, Callable[[], Any]]:
        return {"y": lambda: conv(x, w, None, stride, pad, none, False, flat, groups),
                "x": lambda: back(y, x, w, None, stride, pad, none, False, flat, groups, [True, False, False])[0],
                "w": lambda: back(y, x, w, None, stride, pad, none, False, flat, groups, [False, True, False])[1]}

    whole = grouped(x, y, w, one.G)
    last = grouped(*(part.to(memory_format=torch.channels_last) for part in (x, y, w)), one.G)
    parts = [grouped(x[:, g * one.A : (g + 1) * one.A].contiguous(), y[:, g * one.C : (g + 1) * one.C].contiguous(),
                     w[g * one.C : (g + 1) * one.C].contiguous(), 1) for g in range(one.G)]
    return {what: {"grouped": whole[what], "channels last": last[what],
                   "one by one": lambda what=what: [part[what]() for part in parts],
                   "own": lambda what=what: ours(one, x, y, w, what, usual_blocks(what, one))}
            for what in ("y", "x", "w")}


def usual_blocks(what: str, one: Form) -> Blocks | None:
    return None if what == "x" else convolutions.blocks_for(what, one)


def ours(one: Form, x: Tensor, y: Tensor, w: Tensor, what: str, blocks: Blocks | None) -> Tensor:
    if what == "y":
        return own.correlated(x, w, one, blocks)
    return own.spread(y, w, one) if what == "x" else own.weighed(x, y, one, blocks)


def tried(one: Form, what: str) -> list[Blocks | None]:
    """For x there is nothing to choose: the library multiplies."""
    return [None] if what == "x" else [blocks for blocks in TRIED if blocks.rows < 2 * max(16, one.C)]


def prepare(one: Form, what: str, blocks: Blocks | None) -> None:
    """Compiles a kernel; whoever wants it next finds it on the disk."""
    with contextlib.suppress(Exception):  # too much shared memory, for instance
        ours(one, *example(one), what, blocks)


def tuned(one: Form, x: Tensor, y: Tensor, w: Tensor, what: str) -> tuple[float, Blocks | None]:
    """The best of the blocks tried."""
    found = []
    for blocks in tried(one, what):
        try:
            found.append((milliseconds(lambda blocks=blocks: ours(one, x, y, w, what, blocks)), blocks))
        except Exception as error:
            print(f"{what} {blocks}: {type(error).__name__}", file=sys.stderr)
    return min(found, key=lambda one: one[0])


def layers(nets: list[str], tune: bool) -> list[dict[str, Any]]:
    found = []
    if tune:
        with ProcessPoolExecutor(COMPILERS, get_context("spawn")) as pool:
            for done in [pool.submit(prepare, one, what, blocks) for net in nets for one in NETS[net] for what in "yxw"
                         for blocks in tried(one, what)]:
                done.result()
    print("| layer | computes | us: grouped | channels last | one by one | own | best blocks | own / exact - 1 |")
    print("|---|---|---|---|---|---|---|---|")
    for net in nets:
        for one in NETS[net]:
            x, y, w = example(one)
            exact = {what: calls["grouped"]() for what, calls in ways(one, x.double(), y.double(), w.double()).items()}
            for what, calls in ways(one, x, y, w).items():
                times = {name: milliseconds(call) for name, call in calls.items()}
                off = float((calls["own"]() - exact[what]).abs().max() / exact[what].abs().max())
                best = tuned(one, x, y, w, what) if tune else None
                found.append({"net": net, "form": one._asdict(), "computes": what, "milliseconds": times, "off": off,
                              "best": best and [best[0], best[1] and best[1]._asdict()]})
                told = f"{best[0] * 1e3:.1f} {tuple(best[1] or ())}" if best else ""
                print(f"| {net} {tuple(one)} | {what} | " + " | ".join(f"{time * 1e3:.1f}" for time in times.values())
                      + f" | {told} | {off:.1e} |", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--tune", action="store_true", help="try blocks of many sizes")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("convolutions.py: torch finds no CUDA device")
    results = layers(given.nets.split(","), given.tune)
    if given.out:
        given.out.write_text(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
                                         "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
