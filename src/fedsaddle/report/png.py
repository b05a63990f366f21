"""PNG files, written: 8 bits a channel, grey or RGB, nothing else (W3C, Portable Network Graphics, third edition)."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

SIGNATURE = b"\x89PNG\r\n\x1a\n"
KINDS = {1: 0, 3: 2}  # channels: the format's number for them
UP = 2  # filter: what changes from the line above, which compresses better than the values


def png(pixels: NDArray[np.uint8]) -> bytes:
    """The file of an image [height, width] or [height, width, channels], with 1 or 3 channels of uint8."""
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.ndim != 3 or pixels.shape[2] not in KINDS or pixels.dtype != np.uint8 or not pixels.size:
        raise ValueError(f"an image is [height, width, 1 or 3] of uint8, not {pixels.shape} of {pixels.dtype}")
    height, width, channels = pixels.shape
    lines = np.ascontiguousarray(pixels).reshape(height, width * channels)
    changes = np.diff(lines, axis=0, prepend=np.zeros_like(lines[:1]))  # uint8 wraps round, as the format wants
    content = np.insert(changes, 0, UP, axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, KINDS[channels], 0, 0, 0)
    return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(content, 9)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
