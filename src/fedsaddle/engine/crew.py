"""Local workers: copies of the running process, one per core, that compute their shares of every cohort.

A worker is forked from the run between two rounds, so it has the data (shared, not copied), the problem and the
algorithm, whatever objects they are, and goes on from the same state. After that every process runs the same rounds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from fedsaddle.engine.ranks import Ranks

WORTH_HIRING = 4.0  # seconds of work still to come
PR_SET_PDEATHSIG = 1
PATIENCE = timedelta(hours=12)  # an evaluation of the first process may take long


def possible() -> bool:
    """Whether processes can be forked here; on other systems than Linux their libraries do not survive it."""
    return sys.platform == "linux" and hasattr(os, "fork") and not dist.is_initialized()


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Crew:
    """The workers of one run. wanted: processes in all; None: one per core, where it pays."""

    def __init__(self, wanted: int | None) -> None:
        self.wanted = wanted
        self.settled = wanted == 1 or not possible()
        self.worth = WORTH_HIRING
        self.hired = False
        self.children: list[int] = []

    def size(self, clients: int) -> int:
        """How many processes share so many clients."""
        return self.wanted if self.wanted is not None else max(1, min(cores(), clients))

    def hire(self, size: int, serve: Callable[[Ranks], None]) -> Ranks:
        """Fork size - 1 workers that call `serve` and end; the first process of the group is this one."""
        self.settled = self.hired = True
        meeting = Path(tempfile.mkdtemp(prefix="fedsaddle-")) / "meeting"
        for rank in range(1, size):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of forking while a progress bar has a thread
                child = os.fork()
            if child == 0:
                _work(meeting, rank, size, serve)
            self.children.append(child)
        _meet(meeting, 0, size)
        shutil.rmtree(meeting.parent, ignore_errors=True)
        return Ranks(0, size)

    def dismiss(self) -> None:
        """End all workers."""
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        if self.children:
            dist.destroy_process_group()
        self.children = []


def worthwhile(ranks: Ranks, floats: int, seconds: float) -> bool:
    """Whether sharing gains more than exchanging so many floats costs, by measurement, the same in every process.

    seconds: of a round alone and eager; compiled it may take a quarter of that.
    """
    spent = []
    for _ in range(5):
        began = time.perf_counter()
        ranks.total((torch.zeros(max(1, floats)),))
        spent.append(time.perf_counter() - began)
    alone = seconds / 4
    return alone / ranks.size + ranks.largest(sorted(spent)[2]) < 0.9 * alone


def _meet(meeting: Path, rank: int, size: int) -> None:
    before = os.environ.get("GLOO_SOCKET_IFNAME")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # the name of this machine need not be known to it
    try:
        dist.init_process_group("gloo", init_method=meeting.as_uri(), rank=rank, world_size=size, timeout=PATIENCE)
        dist.barrier()  # the meeting file is removed after it: nobody may still be reading
    finally:
        os.environ.pop("GLOO_SOCKET_IFNAME")
        if before is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = before


def _work(meeting: Path, rank: int, size: int, serve: Callable[[Ranks], None]) -> None:
    """The whole life of a worker. It prints nothing and never returns: all that it inherited belongs to the run."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process decides when to stop
        _meet(meeting, rank, size)
        serve(Ranks(rank, size))
    finally:
        os._exit(0)
