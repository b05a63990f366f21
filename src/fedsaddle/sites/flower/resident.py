"""The courier of a site as one process for the whole life of its SuperNode, in the place of Flower's executor.

Flower's executor starts a process for every message (a second of computing, on an idle machine) and runs in it the app
that came with the run. This one does neither: whatever app a run brings, a message is handed to the worker by
`courier_site.carry` of the installed package, so no code that came over the wire runs at the site. The SuperNode is
started with `--isolation process`, which leaves the messages to whoever takes them.

    python -m fedsaddle.sites.flower.resident ADDRESS-OF-THE-SUPERNODE ITS-PID FILE-WITH-THE-SECRET
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import httpx
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedsaddle.sites.flower.courier_site import carry

LOOK = 0.1
TRIES = 3
STUCK = 120.0  # seconds without a further part of a message that has begun to arrive
LOST = 3  # exit code
READY = "resident courier"  # written once it can take messages


class Overtaken(Exception):
    """The message will never be whole: the SuperNode takes up the next one only when it is done with this one."""


class Stuck(Exception):
    """No further part of the message comes."""


class Arriving:
    """The SuperNode's interface while a message may still be on its way there: what is missing is asked for again.

    Of a server that died a SuperNode keeps what it began to send, and Flower would wait for the rest for hours.
    """

    def __init__(self, supernode: RuntimeHttpClient, acquire: Callable[[], str]) -> None:
        """acquire: the token of a message that waits, "" where none does."""
        self.supernode, self.acquire = supernode, acquire
        self.next = ""  # the token of the message that came after this one
        self.heard, self.over, self.one = time.monotonic(), False, threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.supernode, name)

    def PullMessages(self, request: Any) -> Any:
        return self._there(lambda: self.supernode.PullMessages(request), lambda found: bool(found.messages_list))

    def PullObject(self, request: Any) -> Any:
        return self._there(lambda: self.supernode.PullObject(request),
                           lambda found: found.object_available or not found.object_found)

    def _there(self, ask: Callable[[], Any], is_there: Callable[[Any], bool]) -> Any:
        """Called by several threads at once, for the parts of one message."""
        while True:
            found = ask()
            if is_there(found):
                self.heard = time.monotonic()
                return found
            with self.one:
                if not self.over:
                    self.next = self.acquire()
                self.over = self.over or bool(self.next) or time.monotonic() - self.heard > STUCK
                if self.over:
                    raise Overtaken if self.next else Stuck
            time.sleep(LOOK)


def reach(address: str, *more: ProtobufClientInterceptor) -> RuntimeHttpClient:
    """The SuperNode's interface for executors: plain HTTP, on this machine only."""
    retry = make_simple_http_retry_invoker()
    retry.max_tries = TRIES
    return RuntimeHttpClient.from_server_address(
        server_address=address, insecure=True, root_certificates=None, retry_invoker=retry,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), *more])


def serve(address: str, pid: int, secret: bytes) -> None:
    """Until the SuperNode has ended."""
    signing = SuperExecAuthHttpInterceptor(master_secret=secret,
                                           protected_methods=frozenset({"/flwr.proto.Runtime/AcquireTask"}))
    supernode = reach(address, signing)

    def acquire() -> str:
        try:
            taken = supernode.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        except httpx.TransportError:
            return ""
        return str(taken.token) if taken.HasField("task") else ""

    print(READY, flush=True)
    token = ""
    while alive(pid):
        token = token or acquire()
        if token:
            token = handle(address, token, acquire)
        else:
            time.sleep(LOOK)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def handle(address: str, token: str, acquire: Callable[[], str]) -> str:
    """One message, and the token of the one that overtook it, if one did."""
    supernode = reach(address, RuntimeTokenHttpInterceptor(token))
    arriving = Arriving(supernode, acquire)
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(supernode))
    heartbeat.start()
    try:
        message, context, _, _ = pull_task_input(cast(RuntimeHttpClient, arriving))
        push_message(supernode, carry(message, context), context)
        push_task_output(supernode, context, SubStatus.COMPLETED, "")
    except Overtaken:
        print("a message was never sent to its end; the next one is taken", flush=True)
        push_task_output(supernode, None, SubStatus.FAILED, "")  # reports its own failure
    except Exception as error:
        # The SuperNode would wait for the answer for ever: whoever started us both starts us again.
        print(f"a message was lost between the courier and its SuperNode: {type(error).__name__}", flush=True)
        os._exit(LOST)
    finally:
        heartbeat.stop()
        supernode.close()
    return arriving.next


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]).read_bytes())
