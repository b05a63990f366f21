"""Readers of the files that image data sets are published in. None of them unpickles."""

from __future__ import annotations

import gzip
import io
import tarfile
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsaddle.contracts import Rows, SettingError
from fedsaddle.data.store import kept, stamp

Bytes = NDArray[np.uint8]
CIFAR_IMAGE = 3 * 32 * 32


class Images(NamedTuple):
    """Pixels 0 .. 255 of shape [rows, channels, height, width], and labels."""

    train: Bytes
    train_labels: NDArray[Any]
    test: Bytes
    test_labels: NDArray[Any]

    def rows(self, pixels: str = "signed") -> tuple[Rows, Rows]:
        """Pixels scaled to [-1, 1], or to [0, 1] (unit); labels as whole numbers."""
        scale = unit if pixels == "unit" else scaled
        for images, labels in (self[:2], self[2:]):
            if len(images) != len(labels):
                raise ValueError(f"{len(images)} images but {len(labels)} labels")
        return Rows(scale(self.train), whole(self.train_labels)), Rows(scale(self.test), whole(self.test_labels))


def scaled(pixels: Bytes) -> Tensor:
    return torch.from_numpy(pixels).float().div_(127.5).sub_(1)


def unit(pixels: Bytes) -> Tensor:
    return torch.from_numpy(pixels).float().div_(255)


def whole(labels: NDArray[Any]) -> Tensor:
    return torch.from_numpy(labels.astype(np.int64))


def unpacked(path: Path) -> bytes:
    """The content of a file, packed by gzip or not."""
    content = path.read_bytes()
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


def idx(path: Path) -> Bytes:
    """An array of bytes in the idx format of MNIST: two zeros, the kind (8), the dimensions and their sizes."""
    content = unpacked(path)
    if len(content) < 4 or content[:3] != b"\0\0\x08" or len(content) < 4 + 4 * content[3]:
        raise ValueError(f"{path.name} is no idx file of bytes")
    shape = np.frombuffer(content, ">u4", content[3], 4).astype(int)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * content[3])
    if len(values) != shape.prod():
        raise ValueError(f"{path.name} holds {len(values)} values, its head says {shape.prod()}")
    return values.reshape(shape).copy()


def idx_images(train: Path, train_labels: Path, test: Path, test_labels: Path) -> Images:
    return Images(idx(train)[:, None], idx(train_labels), idx(test)[:, None], idx(test_labels))


def arrays(path: Path, *names: str) -> list[NDArray[Any]]:
    """Arrays of an npz file by name."""
    with np.load(path, allow_pickle=False) as content:
        missing = [name for name in names if name not in content]
        if missing:
            raise ValueError(f"{path.name} has no array {missing[0]!r}, only {', '.join(content)}")
        return [content[name] for name in names]


def keras_images(path: Path) -> Images:
    """The arrays x_train, y_train, x_test and y_test."""
    train, train_labels, test, test_labels = arrays(path, "x_train", "y_train", "x_test", "y_test")
    return Images(train[:, None], train_labels, test[:, None], test_labels)


def cifar_images(content: bytes, labels: int, label: int) -> tuple[Bytes, Bytes]:
    """Images and one of the labels of CIFAR's binary format: label bytes, then 3072 pixels, row after row."""
    length = labels + CIFAR_IMAGE
    if not content or len(content) % length:
        raise ValueError(f"{len(content)} bytes are no whole number of images of {length} bytes")
    table = np.frombuffer(content, np.uint8).reshape(-1, length)
    return table[:, labels:].reshape(-1, 3, 32, 32).copy(), table[:, label].copy()


def members(path: Path, *names: str) -> list[bytes]:
    """Files of a tar archive by their last names, without unpacking it to disk."""
    with tarfile.open(path, "r:*") as archive:
        content = {Path(member.name).name: stream.read() for member in archive
                   if Path(member.name).name in names and (stream := archive.extractfile(member))}
    missing = [name for name in names if name not in content]
    if missing:
        raise ValueError(f"{path.name} holds no {missing[0]}")
    return [content[name] for name in names]


def mosaics(*paths: Path) -> Images:
    """CIFAR-10 as lossless WebP mosaics of 40 x 25 images, 60 of them in two npz files; the last 10 are the test."""

    def decode() -> dict[str, NDArray[Any]]:
        Image = pillow()
        images, labels = [], []
        for path in paths:
            packed, offsets, own = arrays(path, "mosaics", "offsets", "labels")
            for start, end in pairwise(offsets):
                with Image.open(io.BytesIO(packed[start:end].tobytes())) as mosaic:
                    tiles = np.asarray(mosaic.convert("RGB")).reshape(25, 32, 40, 32, 3)
                images.append(tiles.transpose(0, 2, 4, 1, 3).reshape(-1, 3, 32, 32))
            labels.append(own)
        return {"images": np.concatenate(images), "labels": np.concatenate(labels)}

    made = kept("cifar10", stamp(*paths), decode)
    images, labels = made["images"], made["labels"]
    if len(images) <= 10_000 or len(images) != len(labels):
        raise ValueError(f"{len(images)} images and {len(labels)} labels")
    return Images(images[:-10_000], labels[:-10_000], images[-10_000:], labels[-10_000:])


def pillow() -> Any:
    """Pillow's Image."""
    try:
        from PIL import Image  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise SettingError("data: Pillow is not installed, which decodes images; install the extra `images`: "
                           "pip install 'fedsaddle[images]'") from error
    return Image
