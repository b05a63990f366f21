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
from pathlib import Path

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
STUCK = 120.0  # seconds to take over a message that has arrived
READY = "resident courier"  # written once it can take messages


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
    print(READY, flush=True)
    while alive(pid):
        try:
            taken = supernode.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        except httpx.TransportError:
            time.sleep(LOOK)
            continue
        if taken.HasField("task") and taken.token:
            handle(address, taken.token)
        else:
            time.sleep(LOOK)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def handle(address: str, token: str) -> None:
    """One message. Nothing that it holds may end this process."""
    supernode = reach(address, RuntimeTokenHttpInterceptor(token))
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(supernode))
    heartbeat.start()
    # What a server that died did not finish sending, Flower waits for for hours: rather end, and be started again.
    stuck = threading.Timer(STUCK, os._exit, (3,))
    stuck.daemon = True
    stuck.start()
    try:
        message, context, _, _ = pull_task_input(supernode)
        stuck.cancel()
        push_message(supernode, carry(message, context), context)
        push_task_output(supernode, context, SubStatus.COMPLETED, "")
    except Exception as error:
        print(f"a message was lost between the courier and its SuperNode: {type(error).__name__}", flush=True)
        push_task_output(supernode, None, SubStatus.FAILED, "")  # reports its own failure
    finally:
        stuck.cancel()
        heartbeat.stop()
        supernode.close()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]).read_bytes())
