# mypy: disable-error-code="import-untyped,import-not-found,misc"
"""The courier at a site: an executor that hands the content of a task to the resident worker and returns its answer.

It is all of ours that runs in the site's job process, and needs no torch. The worker's socket and the largest answer
are in a file of the node's own, never in the message. Whatever goes wrong here is answered with one of the fixed
sentences below: the text of an exception can hold data of the site.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedsaddle.sites import frames
from fedsaddle.sites.nvflare.letters import ALIVE, HERE, Letter, pack, unpack

OWN = Path("local") / "fedsaddle.json"
NO_WORKER = "the site's worker is not there"
SAID: dict[type[Exception], str] = {  # the first that fits
    KeyError: "the site's node has no worker, or no limit, in its configuration",
    frames.TooLarge: "the answer of the site's worker is larger than the site allows",
    TimeoutError: "the site's worker did not answer in time",
    FileNotFoundError: NO_WORKER,
    ConnectionRefusedError: NO_WORKER,
    OSError: "the site's worker went away before it answered",
    ValueError: "the site did not understand the message",
    Exception: "the site's courier failed",
}
LOOK = 0.2  # seconds between looks at the clock, and at whether the job has ended
STALL = 60.0  # seconds that a worker may pause in the middle of an answer
RETURN = 10.0  # seconds to wait for a worker that is being started again: rounds are short, and would pass without it


class SiteCourier(Executor):
    def __init__(self) -> None:
        super().__init__()
        self.own: dict[str, Any] = {}
        self.ended = threading.Event()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            path = Path(str(fl_ctx.get_prop(FLContextKey.WORKSPACE_ROOT))) / OWN
            with contextlib.suppress(OSError, ValueError):  # said with every answer
                self.own = json.loads(path.read_text(encoding="utf-8"))
            threading.Thread(target=self._say_here, args=(fl_ctx.get_engine(),), daemon=True).start()
        elif event_type == EventType.END_RUN:
            self.ended.set()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        try:
            letter = unpack(shareable)
            worker, limit = str(self.own["worker"]), int(self.own["limit"])
            return pack(Letter(ask(worker, letter.content, limit, letter.seconds, abort_signal)))
        except Exception as error:
            return pack(Letter(error=next(text for kind, text in SAID.items() if isinstance(error, kind))))

    def _say_here(self, engine: Any) -> None:
        """NVFlare tells the server too late, or by ending the job, that a site is gone."""
        while not self.ended.is_set():
            with contextlib.suppress(Exception), engine.new_context() as fl_ctx:
                engine.send_aux_request(targets=["server"], topic=HERE, request=Shareable(), timeout=0.0,
                                        fl_ctx=fl_ctx, optional=True)
            self.ended.wait(ALIVE)


def ask(worker: str, content: bytes, limit: int, seconds: float, ended: Any) -> bytes:
    """The worker's answer. The seconds count from here: the clocks of two machines need not agree."""
    until = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(STALL)
        _connect(connection, worker, min(until, time.monotonic() + RETURN), ended)
        with contextlib.suppress(BrokenPipeError):  # it may have answered before it had read everything
            frames.send_frame(connection, content)
        while not select.select([connection], [], [], LOOK)[0]:
            if time.monotonic() > until or ended.triggered:
                raise TimeoutError
        return frames.receive_frame(connection, limit)


def _connect(connection: socket.socket, worker: str, until: float, ended: Any) -> None:
    while True:
        try:
            connection.connect(worker)
            return
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > until or ended.triggered:
                raise
            time.sleep(LOOK)
