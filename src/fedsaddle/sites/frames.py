"""Frames on a local socket: how couriers, which know nothing of torch, hand bytes to the process that does.

A frame is its length, eight bytes, and so many bytes. Only the standard library: a courier starts for every message.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import struct
import tempfile
from pathlib import Path

LENGTH = struct.Struct("!Q")
PIECE = 1 << 20
LONGEST = 80  # bytes of a folder's path: a socket's address has 108 with its name


class Cut(ConnectionError):
    """The other side went away in the middle of a frame, or before one."""


class TooLarge(ValueError):
    """A frame beyond the limit; nothing of it was read."""


def socket_folder(folder: Path) -> Path:
    """The folder, or where its path is too long for a socket in it, one in the system's temporary folder. Whoever can
    write there can pass for one of our processes: so it must be this user's alone."""
    found = folder.resolve()
    if len(os.fsencode(found)) > LONGEST:
        name = hashlib.sha256(os.fsencode(found)).hexdigest()[:16]
        found = Path(tempfile.gettempdir()) / f"fedsaddle-{os.getuid()}-{name}"
    found.mkdir(parents=True, exist_ok=True, mode=0o700)
    there = found.lstat()
    if there.st_uid != os.getuid() or there.st_mode & 0o022 or not stat.S_ISDIR(there.st_mode):
        raise PermissionError(f"{found}: others may write there; remove it, or take their rights away (chmod 700)")
    return found


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
