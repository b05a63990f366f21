# mypy: disable-error-code="import-untyped,import-not-found,misc"
"""The courier at the server: a controller that does what the wire asks on a local socket, and nothing by itself.

It ends when the wire hangs up, and the job with it; the wire sees it end when the job is ended otherwise. Every parcel
is a task for one site. NVFlare's own words about a failure never travel on: at a site that is the text of an exception.
"""

from __future__ import annotations

import contextlib
import math
import queue
import select
import socket
import time
from functools import partial
from typing import Any, NamedTuple

from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedsaddle.sites.notes import receive_note, send_note
from fedsaddle.sites.nvflare.letters import ALIVE, HERE, TASK, Letter, pack, unpack

LOOK = 0.5  # seconds between looks at the clock
SILENT = 6.0  # seconds without a sign of life after which a site is not there
EXPIRED, GONE, FAILED = "expired", "the node is not there", "the site's courier failed"
LOST = "the message or its answer was lost on the way"
LONGEST = 200  # characters of a reason


class Open(NamedTuple):
    node: str
    until: float
    task: Task


class ServerCourier(Controller):
    def __init__(self, socket_path: str) -> None:
        super().__init__()
        self.socket_path = socket_path
        self.heard: dict[str, float] = {}  # when a site gave its last sign of life
        self.open: dict[str, Open] = {}  # by ticket; of the thread of control_flow alone
        self.come: queue.SimpleQueue[tuple[str, Letter]] = queue.SimpleQueue()
        self.ear, self.bell = socket.socketpair()  # wakes that thread
        self.bell.setblocking(False)

    def start_controller(self, fl_ctx: FLContext) -> None:
        fl_ctx.get_engine().register_aux_message_handler(topic=HERE, message_handle_func=self._alive)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is left: whatever is open dies with the job."""

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Late, and told as such before."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wire:
            try:
                wire.connect(self.socket_path)
                send_note(wire, {"is": "here", "run": str(fl_ctx.get_job_id())})
                told = 0.0
                while not abort_signal.triggered:
                    ready = select.select([wire, self.ear], [], [], LOOK)[0]
                    if self.ear in ready:
                        self.ear.recv(1 << 16)
                    if wire in ready:
                        self._obey(wire, fl_ctx)
                    self._deliver(wire)
                    self._expire(wire)
                    if time.monotonic() - told > ALIVE:  # unasked: whoever looks after the job wants to know
                        send_note(wire, {"is": "nodes", "nodes": self._there()})
                        told = time.monotonic()
            except OSError:
                return  # the coordinator has closed the wire

    def _obey(self, wire: socket.socket, fl_ctx: FLContext) -> None:
        head, content = receive_note(wire)
        if head["do"] == "nodes":
            send_note(wire, {"is": "nodes", "nodes": self._there()})
        elif head["do"] == "send":
            for parcel in head["parcels"]:
                self._send(parcel["node"], parcel["ticket"], content, float(parcel["seconds"]), fl_ctx)

    def _send(self, node: str, ticket: str, content: bytes, seconds: float, fl_ctx: FLContext) -> None:
        task = Task(name=TASK, data=pack(Letter(content, seconds=seconds)), timeout=math.ceil(seconds) + 1,
                    result_received_cb=partial(self._received, ticket), task_done_cb=partial(self._done, ticket))
        self.open[ticket] = Open(node, time.monotonic() + seconds, task)
        self.broadcast(task=task, fl_ctx=fl_ctx, targets=[node], min_responses=1)

    # Called by NVFlare's threads, under its locks: only a note is left.

    def _alive(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        peer = fl_ctx.get_peer_context()
        if peer is not None:
            self.heard[str(peer.get_identity_name())] = time.monotonic()
        return make_reply(ReturnCode.OK)

    def _received(self, ticket: str, client_task: ClientTask, fl_ctx: FLContext) -> None:
        result, client_task.result = client_task.result, None
        self._note(ticket, read(result))

    def _done(self, ticket: str, task: Task, fl_ctx: FLContext) -> None:
        """Also after an answer, which then has been delivered."""
        late = task.completion_status == TaskCompletionStatus.TIMEOUT
        self._note(ticket, Letter(error=EXPIRED if late else LOST))

    def _note(self, ticket: str, letter: Letter) -> None:
        self.come.put((ticket, letter))
        with contextlib.suppress(BlockingIOError):  # it rings already
            self.bell.send(b"!")

    # The thread of control_flow.

    def _there(self) -> list[str]:
        now = time.monotonic()
        return sorted(node for node, at in list(self.heard.items()) if now - at < SILENT)

    def _deliver(self, wire: socket.socket) -> None:
        while not self.come.empty():
            ticket, letter = self.come.get()
            self._answer(wire, ticket, letter)

    def _expire(self, wire: socket.socket) -> None:
        now, there = time.monotonic(), set(self._there())
        for ticket, one in list(self.open.items()):
            late = now >= one.until
            if late or one.node not in there:
                self.cancel_task(one.task)
                self._answer(wire, ticket, Letter(error=EXPIRED if late else GONE))

    def _answer(self, wire: socket.socket, ticket: str, letter: Letter) -> None:
        """Once for every ticket."""
        one = self.open.pop(ticket, None)
        if one is not None:
            head = {"is": "delivery", "node": one.node, "ticket": ticket, "error": letter.error}
            send_note(wire, head, letter.content)


def read(result: Any) -> Letter:
    """What a site answered. Its reason is a line in somebody's log."""
    if not isinstance(result, Shareable) or result.get_return_code() != ReturnCode.OK:
        return Letter(error=FAILED)
    try:
        letter = unpack(result)
    except ValueError as wrong:
        return Letter(error=f"the site answered with {wrong}")
    error = "".join(character for character in letter.error[:LONGEST] if character.isprintable())
    return Letter(b"" if letter.error else letter.content, error)
