"""A function of tensors as a CUDA graph: recorded once, replayed with new values by one launch.

Values that come from the host (who is asked, keys, weights, step sizes) travel together, in one copy out of pinned
memory, so that the host never waits for the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx

from fedsaddle.engine.programs.segments import Finish, Finished
from fedsaddle.engine.programs.tracing import Untraceable

AHEAD = 64  # calls that the host may be ahead of the device
WARM_UPS = 3  # libraries choose their algorithms and get their workspaces before anything is recorded


def each_captured(finish: Finish) -> Finish:
    """Finish segments as graphs of their own."""

    def finished(segment: fx.GraphModule, values: list[Tensor]) -> Finished:
        function, found = finish(segment, values)
        graph = Captured(function, values)

        def captured_step(*values: Tensor) -> Sequence[Tensor]:  # a node of a trace is a function with a name
            return graph(*values)

        captured_step.operations = getattr(function, "operations", 1)  # type: ignore[attr-defined]
        return captured_step, found

    return finished


@functools.cache
def _kept(device: int) -> torch.cuda.CUDAGraph:
    """A graph whose memory all others of this device share: one runs at a time, and its results are copied before the
    next does. It stays, since torch gives up memory that no graph uses any more."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        torch.zeros(1, device="cuda")
    return graph


class Captured:
    """Results are copies: the graph's own memory is written by the next call."""

    def __init__(self, function: Callable[..., Sequence[Tensor]], values: Sequence[Tensor]) -> None:
        self.from_host = [value.device.type == "cpu" for value in values]
        host = [value for value, there in zip(values, self.from_host, strict=True) if there]
        self.packed = _packed(host).cuda()
        self.pinned = [torch.empty(self.packed.shape, dtype=torch.int64, pin_memory=True) for _ in range(AHEAD)]
        self.copied = [torch.cuda.Event() for _ in self.pinned]
        self.calls = 0
        self.values = [torch.empty(value.shape, dtype=value.dtype, device=value.device).copy_(value)
                       for value, there in zip(values, self.from_host, strict=True) if not there]

        def unpacked() -> Sequence[Tensor]:
            parts, own = iter(_unpacked(self.packed, host)), iter(self.values)
            return function(*(next(parts) if there else next(own) for there in self.from_host))

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                unpacked()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        shared = _kept(torch.cuda.current_device()).pool()
        try:
            with torch.cuda.graph(self.graph, pool=shared, capture_error_mode="thread_local"):
                self.results = unpacked()
        except RuntimeError as error:
            torch.cuda.synchronize()
            _kept.cache_clear()  # what was being recorded may still hold that memory
            raise Untraceable(f"it cannot be captured: {str(error).splitlines()[0][:200]}") from error

    def __call__(self, *values: Tensor) -> list[Tensor]:
        host = [value for value, there in zip(values, self.from_host, strict=True) if there]
        self._send(host)
        device = [value for value, there in zip(values, self.from_host, strict=True) if not there]
        if device:
            torch._foreach_copy_(self.values, device)
        self.graph.replay()
        return [result.clone() if result.numel() else result for result in self.results]

    def _send(self, host: list[Tensor]) -> None:
        turn, self.calls = self.calls % AHEAD, self.calls + 1
        self.copied[turn].synchronize()  # its last copy was so many calls ago
        _packed(host, self.pinned[turn])
        self.packed.copy_(self.pinned[turn], non_blocking=True)
        self.copied[turn].record()


def _packed(values: list[Tensor], out: Tensor | None = None) -> Tensor:
    """Numbers of all kinds as one vector of 64-bit patterns."""
    wide = [value.double().view(torch.int64) if value.is_floating_point() else value.long() for value in values]
    return torch.cat([value.reshape(-1) for value in wide], out=out) if wide else torch.zeros(0, dtype=torch.int64)


def _unpacked(packed: Tensor, values: list[Tensor]) -> list[Tensor]:
    """On the device, with the kinds and shapes of these values."""
    parts = packed.split([value.numel() for value in values])
    return [(part.view(torch.float64) if value.is_floating_point() else part).to(value.dtype).reshape(value.shape)
            for part, value in zip(parts, values, strict=True)]
