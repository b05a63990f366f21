# mypy: disable-error-code="import-untyped,import-not-found,misc"
"""The courier at a site: an executor that hands the content of a task to the resident worker and returns its answer.

It is all of ours that runs in the site's job process, and needs no torch. The worker's socket and the largest answer
are in a file of the node's own, never in the message. Whatever goes wrong here is answered with a fixed sentence.
"""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedsaddle.sites.handing import NOT_OURS, ask, sentence
from fedsaddle.sites.nvflare.letters import ALIVE, HERE, Letter, pack, unpack

OWN = Path("local") / "fedsaddle.json"
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
        except ValueError:
            return pack(Letter(error=NOT_OURS))
        try:
            worker, limit = str(self.own["worker"]), int(self.own["limit"])
            return pack(Letter(ask(worker, letter.content, limit, letter.seconds, RETURN,
                                   lambda: bool(abort_signal.triggered))))
        except Exception as error:
            return pack(Letter(error=sentence(error)))

    def _say_here(self, engine: Any) -> None:
        """NVFlare tells the server too late, or by ending the job, that a site is gone."""
        while not self.ended.is_set():
            with contextlib.suppress(Exception), engine.new_context() as fl_ctx:
                engine.send_aux_request(targets=["server"], topic=HERE, request=Shareable(), timeout=0.0,
                                        fl_ctx=fl_ctx, optional=True)
            self.ended.wait(ALIVE)
