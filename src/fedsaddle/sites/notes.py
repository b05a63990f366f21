"""What a wire and its courier write to each other: frames of a JSON line and, after it, the content."""

from __future__ import annotations

import json
import socket
from typing import Any

from fedsaddle.sites import frames

LIMIT = 1 << 34  # both ends are ours; the limits on what a site may answer are the coordinator's and the site's


def send_note(connection: socket.socket, head: dict[str, Any], content: bytes = b"") -> None:
    frames.send_frame(connection, json.dumps(head).encode() + b"\n" + content)


def receive_note(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    head, _, content = frames.receive_frame(connection, LIMIT).partition(b"\n")
    return json.loads(head), content
