"""Frames on a local socket: how couriers, which know nothing of torch, hand bytes to the process that does.

A frame is its length, eight bytes, and so many bytes. Only the standard library: a courier starts for every message.
"""

from __future__ import annotations

import socket
import struct

LENGTH = struct.Struct("!Q")
PIECE = 1 << 20


class Cut(ConnectionError):
    """The other side went away in the middle of a frame, or before one."""


class TooLarge(ValueError):
    """A frame beyond the limit; nothing of it was read."""


def send_frame(connection: socket.socket, content: bytes) -> None:
    connection.sendall(LENGTH.pack(len(content)))
    if content:  # the other side may have answered and gone by now
        connection.sendall(content)


def receive_frame(connection: socket.socket, limit: int) -> bytes:
    (length,) = LENGTH.unpack(_exactly(connection, LENGTH.size))
    if length > limit:
        raise TooLarge(f"a frame of {length} bytes, where {limit} are allowed")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts, missing = [], count
    while missing:
        part = connection.recv(min(missing, PIECE))
        if not part:
            raise Cut("the connection was closed")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
