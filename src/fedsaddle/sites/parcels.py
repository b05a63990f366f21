"""What travels over a wire: a header of plain values and a tree of tensors, as bytes. No pickle, no types by name.

Eight bytes of magic and version, the header's length and the header in JSON, then the leaves in the safetensors format.
Whoever reads knows the form of the tree that it expects, and nothing is built from what the bytes call themselves.
Lengths are checked before anything is read, so tensors cost their reader no more memory than the parcel's own size,
twice, and a header at most some dozen megabytes.
"""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor

MAGIC = b"fsaddle1"
LENGTH = struct.Struct("!I")
HEADER_LIMIT = 1 << 20  # bytes of the JSON header, and of the table of contents that safetensors keeps
TENSORS_LIMIT = 4096  # leaves
DEPTH = 32  # of brackets in a header


class Unreadable(ValueError):
    """Bytes that are no parcel. The text says why, in words that hold nothing of the content."""


class Content(NamedTuple):
    header: dict[str, Any]
    leaves: dict[str, Tensor]


def packed(header: dict[str, Any], leaves: dict[str, Tensor]) -> bytes:
    text = json.dumps(header, allow_nan=False).encode()
    if len(text) > HEADER_LIMIT:
        raise ValueError(f"a header of {len(text)} bytes")
    body = safetensors.torch.save({name: leaf.detach().cpu().contiguous().clone() for name, leaf in leaves.items()})
    return MAGIC + LENGTH.pack(len(text)) + text + body


def unpacked(content: bytes, limit: int) -> Content:
    """The parcel, or Unreadable. limit: bytes that it may have."""
    if len(content) > limit:
        raise Unreadable(f"it has {len(content)} bytes, more than the {limit} allowed")
    start = len(MAGIC) + LENGTH.size
    if len(content) < start or content[: len(MAGIC)] != MAGIC:
        raise Unreadable("it is no parcel of this version")
    (length,) = LENGTH.unpack(content[len(MAGIC) : start])
    if length > HEADER_LIMIT or start + length > len(content):
        raise Unreadable("its header is cut off or too long")
    return Content(_header(content[start : start + length]), _leaves(content[start + length :]))


def _header(text: bytes) -> dict[str, Any]:
    if text.count(b"[") + text.count(b"{") > HEADER_LIMIT // 64 or _deep(text):
        raise Unreadable("its header is nested too deeply")
    try:
        header = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Unreadable("its header is not JSON") from error
    if not isinstance(header, dict):
        raise Unreadable("its header is no table")
    return header


def _deep(text: bytes) -> bool:
    depth = 0
    for byte in text:
        depth += (byte in b"[{") - (byte in b"]}")
        if depth > DEPTH:
            return True
    return False


def _refuse(name: str) -> float:
    raise ValueError(name)


def _leaves(body: bytes) -> dict[str, Tensor]:
    if len(body) < 8 or int.from_bytes(body[:8], "little") > HEADER_LIMIT:
        raise Unreadable("its table of tensors is cut off or too long")
    try:
        found = safetensors.torch.load(body)
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError, AttributeError, TypeError) as error:
        raise Unreadable("its tensors cannot be read") from error
    if len(found) > TENSORS_LIMIT:
        raise Unreadable(f"it has more than {TENSORS_LIMIT} tensors")
    if any(leaf.device.type != "cpu" or leaf.layout != torch.strided for leaf in found.values()):
        raise Unreadable("its tensors cannot be read")
    return found
