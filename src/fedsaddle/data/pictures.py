"""Pictures in folders: one subfolder per class (ImageNet, chest X-rays), and CelebA with its attributes."""

from __future__ import annotations

import csv
import io
import os
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from fedsaddle.contracts import Rows, SettingError, setting
from fedsaddle.data.dataset import Attribute, DataSet, chosen_for_test
from fedsaddle.data.formats import Bytes, pillow, scaled
from fedsaddle.data.medmnist import evaluated
from fedsaddle.data.store import File, Form, Shelf, kept, load, stamp, where

ENDINGS = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".pgm", ".ppm"}
TESTS = ("test", "val", "valid", "validation")
CELEBA = ("list_attr_celeba.txt", "list_eval_partition.txt")


class Picture(NamedTuple):
    """A picture that is read when it is needed, and what tells it from a changed one."""

    name: str
    stamp: object
    read: Callable[[], bytes]


def decode(name: str, pictures: Sequence[Picture], size: int, gray: bool) -> Bytes:
    """[pictures, channels, size, size]: cut to a square in the middle and resized. Kept in the cache."""
    channels = 1 if gray else 3
    _affordable(len(pictures), channels * size * size)

    def make() -> dict[str, NDArray[Any]]:
        Image = pillow()
        from PIL import ImageOps  # noqa: PLC0415  # an extra

        pixels = np.empty((len(pictures), channels, size, size), np.uint8)
        bars = Console(stderr=True)
        for number, picture in enumerate(track(pictures, f"decoding {name}", console=bars, transient=True)):
            try:
                with Image.open(io.BytesIO(picture.read())) as opened:
                    opened.draft("L" if gray else "RGB", (2 * size, 2 * size))  # JPEG is decoded no larger than that
                    square = ImageOps.fit(opened.convert("L" if gray else "RGB"), (size, size))
            except (OSError, ValueError, SyntaxError) as error:  # Pillow raises all three for damaged files
                raise SettingError(f"data {name!r}: the picture {picture.name} cannot be read ({error}); replace it or "
                                   "take it out") from error
            pixels[number] = np.asarray(square).reshape(size, size, channels).transpose(2, 0, 1)
        return {"pixels": pixels}

    made_from = (size, gray, [picture[:2] for picture in pictures])
    return kept(name, made_from, make)["pixels"]


def _affordable(rows: int, values: int) -> None:
    """Refuse what cannot be held in memory: pixels become floats, and are sorted by client."""
    needed = 3 * 4 * rows * values
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else needed
    if needed > total:
        raise SettingError(f"data.size: {rows:,} pictures of {values:,} numbers need about {needed / 2**30:.0f} GiB of "
                           f"memory, there are {total / 2**30:.0f}; set data.size or data.most lower")


@dataclass(frozen=True)
class ImageFolder:
    """Pictures of your own, one subfolder per class; pixels scaled to [-1, 1]. Needs the extra `images`.

    Where the folder has subfolders train and test (or val), those hold the classes; else a share is kept for the test.
    """

    folder: str = setting("", "the folder")
    size: int = setting(64, "pixels of a side; pictures are cut to a square in the middle and resized", at_least=1)
    gray: bool = setting(False, "one channel instead of three")
    most: int | None = setting(None, "pictures of a class, at most; none: all", at_least=1)
    test_share: float = setting(0.2, "share of each class kept for the test, where there is no folder for it",
                                above=0.0, at_most=0.9)

    def load(self, seed: int) -> DataSet:
        root = Path(self.folder).expanduser()
        if not self.folder or not root.is_dir():
            raise SettingError(f"data.folder = {self.folder!r}: there is no such folder; give one with a subfolder of "
                               "pictures for each class")
        train = root / "train" if (root / "train").is_dir() else root
        test = next((root / name for name in TESTS if train != root and (root / name).is_dir()), None)
        classes = sorted(path.name for path in train.iterdir() if path.is_dir() and not path.name.startswith("."))
        pictures, labels = self._listed(train, classes)
        if test:
            more, others = self._listed(test, classes)
            in_test = torch.arange(len(labels) + len(others)) >= len(labels)
        else:
            more, others = [], torch.zeros(0, dtype=torch.int64)
            in_test = chosen_for_test(labels, self.test_share, seed)
        inputs = scaled(decode("image-folder", [*pictures, *more], self.size, self.gray))
        targets = torch.cat([labels, others])
        return DataSet(Rows(inputs[~in_test], targets[~in_test]), Rows(inputs[in_test], targets[in_test]),
                       len(classes), tuple(classes))

    def _listed(self, place: Path, classes: list[str]) -> tuple[list[Picture], torch.Tensor]:
        pictures, labels = [], []
        for label, name in enumerate(classes):
            paths = sorted(path for path in (place / name).rglob("*") if path.suffix.lower() in ENDINGS)
            for path in paths[: self.most]:
                pictures.append(Picture(str(path), stamp(path), path.read_bytes))
                labels.append(label)
        if not pictures:
            raise SettingError(f"data.folder = {self.folder!r}: {place} holds no pictures in subfolders; put those of "
                               f"each class into a subfolder of its own, as {', '.join(sorted(ENDINGS))}")
        return pictures, torch.tensor(labels)


def _celeba_files(pictures: Path, attributes: Path, parts: Path) -> Any:
    rows = {row[0]: row[1:] for row in _words(attributes) if len(row) > 1}
    names = rows.pop("image_id", None) or next(iter(_words(attributes)[1:]))
    part = {row[0]: int(row[1]) for row in _words(parts) if row[-1].isdigit()}
    table = {name: values for name, values in rows.items() if name in part and len(values) == len(names)}
    if not table:
        raise ValueError(f"{attributes.name} and {parts.name} have no picture in common")
    return pictures, names, table, part


def _words(path: Path) -> list[list[str]]:
    """Rows of words, apart by spaces as published, or by commas as often copied."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if lines and "," in lines[0]:
        return [row for row in csv.reader(lines) if row]
    return [line.split() for line in lines if line.strip()]


def _celeba_shelf() -> Shelf:
    forms = [Form((File(pictures), *(File(name.replace("txt", ending)) for name in CELEBA)), _celeba_files)
             for ending in ("txt", "csv") for pictures in ("img_align_celeba", "img_align_celeba.zip")]
    return Shelf("celeba", tuple(forms), "from https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html, under its conditions")


@dataclass(frozen=True)
class CelebA:
    """202,599 faces of celebrities with 40 attributes, of which one is the target; pixels scaled to [-1, 1].

    All attributes can be dealt by, such as Male; values are no and yes. Needs the extra `images`.
    """

    target: str = setting("Smiling", "the attribute to predict")
    size: int = setting(64, "pixels of a side; faces are cut to a square in the middle and resized", at_least=1)
    most: int | None = setting(None, "pictures of each part, at most; none: all", at_least=1)
    part: str = evaluated()
    folder: str = where()
    shelf = _celeba_shelf()

    def load(self, seed: int) -> DataSet:
        place, names, table, part = load(self.shelf, self.folder, lambda content: content)
        if self.target not in names:
            raise SettingError(f"data.target = {self.target!r}: is no attribute; choose one of {', '.join(names)}")
        chosen = [[name for name in sorted(table) if part[name] == number][: self.most]
                  for number in (0, 1 if self.part == "validation" else 2)]
        pixels = scaled(decode("celeba", _faces(place, [*chosen[0], *chosen[1]]), self.size, gray=False))
        values = torch.tensor([[value in ("1", "+1") for value in table[name]] for part in chosen for name in part])
        values, border = values.long(), len(chosen[0])
        attributes = {name: Attribute(("no", "yes"), values[:border, i], values[border:, i])
                      for i, name in enumerate(names)}
        targets = attributes[self.target]
        return DataSet(Rows(pixels[:border], targets.train), Rows(pixels[border:], targets.test), 2,
                       ("no", self.target), attributes)


def _faces(place: Path, names: list[str]) -> list[Picture]:
    if place.suffix != ".zip":
        nested = place / place.name  # unpacked into a folder of its own
        place = nested if nested.is_dir() else place
        missing = next((name for name in names if not (place / name).is_file()), None)
        if missing:
            raise SettingError(f"data 'celeba': {place} has no {missing}; unpack all of img_align_celeba.zip there")
        return [Picture(name, stamp(place / name), (place / name).read_bytes) for name in names]
    archive = zipfile.ZipFile(place)
    inside = {Path(name).name: name for name in archive.namelist()}
    missing = next((name for name in names if name not in inside), None)
    if missing:
        raise SettingError(f"data 'celeba': {place} has no {missing}; put the complete img_align_celeba.zip there")
    return [Picture(name, stamp(place), lambda name=name: archive.read(inside[name])) for name in names]  # type: ignore[misc]
