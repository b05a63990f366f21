"""The two-dimensional data sets of MedMNIST v2: one npz file each, with parts for training, validation and test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsaddle.contracts import SettingError, setting
from fedsaddle.data.dataset import DataSet
from fedsaddle.data.formats import Images, arrays
from fedsaddle.data.store import File, Form, Shelf, load, where

SITE = "https://zenodo.org/record/6496656/files/"
FINDINGS = ("atelectasis", "cardiomegaly", "effusion", "infiltration", "mass", "nodule", "pneumonia", "pneumothorax",
            "consolidation", "edema", "emphysema", "fibrosis", "pleural", "hernia")
ORGANS = ("bladder", "left femur", "right femur", "heart", "left kidney", "right kidney", "liver", "left lung",
          "right lung", "pancreas", "spleen")


class About(NamedTuple):
    what: str
    md5: str  # as Zenodo gives it
    names: tuple[str, ...]


SETS = {
    "pathmnist": About("107,180 tissue slides of the colon, nine kinds", "a8b06965200029087d5bd730944a56c1", (
        "adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle", "normal mucosa", "stroma",
        "adenocarcinoma")),
    "dermamnist": About("10,015 photographs of the skin, seven diseases", "0744692d530f8e62ec473284d019b0c7", (
        "actinic keratoses", "basal cell carcinoma", "benign keratosis", "dermatofibroma", "melanoma", "nevi",
        "vascular")),
    "octmnist": About("109,309 retina scans, four diagnoses", "c68d92d5b585d8d81f7112f81e2d0842", (
        "neovascularization", "macular edema", "drusen", "normal")),
    "pneumoniamnist": About("5,856 chest X-rays of children, with pneumonia or not",
                            "28209eda62fecd6e6a2d98b1501bb15f", ("normal", "pneumonia")),
    "retinamnist": About("1,600 retina photographs, five grades", "bd4c0672f1bba3e3a89f0e4e876791e4", ()),
    "breastmnist": About("780 breast ultrasounds; class 0 is malignant", "750601b1f35ba3300ea97c75c52ff8f6", (
        "malignant", "normal or benign")),
    "bloodmnist": About("17,092 blood cells, eight kinds", "7053d0359d879ad8a5505303e11de1dc", (
        "basophil", "eosinophil", "erythroblast", "immature granulocytes", "lymphocyte", "monocyte", "neutrophil",
        "platelet")),
    "tissuemnist": About("236,386 kidney cells, eight kinds", "ebe78ee8b05294063de985d821c1c34b", ()),
    "organamnist": About("58,850 axial slices of organs, eleven kinds", "866b832ed4eeba67bfb9edee1d5544e6", ORGANS),
    "organcmnist": About("23,660 coronal slices of organs, eleven kinds", "0afa5834fb105f7705a7d93372119a21", ORGANS),
    "organsmnist": About("25,221 sagittal slices of organs, eleven kinds", "e5c39f1af030238290b9557d9503af9d", ORGANS),
}
CHEST_MD5 = "02c8a6516a18b556561a56cbdd36c4a8"


def evaluated() -> Any:
    return setting("test", "rows to evaluate on; tune on validation", choices=("test", "validation"))


def shelf_of(name: str, md5: str) -> Shelf:
    file = File(f"{name}.npz", f"{SITE}{name}.npz?download=1", f"md5:{md5}")
    return Shelf(name, (Form((file,), _parts, ("medmnist", ".medmnist")),))


def _parts(path: Path) -> dict[str, NDArray[Any]]:
    names = [f"{part}_{what}" for part in ("train", "val", "test") for what in ("images", "labels")]
    return dict(zip(names, arrays(path, *names), strict=True))


def _images(parts: dict[str, NDArray[Any]], on: str, column: int) -> Images:
    def both(part: str) -> tuple[NDArray[Any], NDArray[Any]]:
        pixels, labels = parts[f"{part}_images"], parts[f"{part}_labels"]
        pixels = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)  # colours come last
        return np.ascontiguousarray(pixels), labels.reshape(len(labels), -1)[:, column]

    return Images(*both("train"), *both("val" if on == "validation" else "test"))


@dataclass(frozen=True)
class ChestMNIST:
    """112,120 chest X-rays of 1x28x28 pixels with or without a finding; of MedMNIST."""

    finding: str = setting("mass", "which of the 14 findings makes a row positive", choices=FINDINGS)
    part: str = evaluated()
    folder: str = where()
    shelf = shelf_of("chestmnist", CHEST_MD5)

    def load(self, seed: int) -> DataSet:
        column = FINDINGS.index(self.finding)
        train, test = load(self.shelf, self.folder, lambda parts: _images(parts, self.part, column).rows())
        return DataSet(train, test, 2, ("none", self.finding))


def medmnist(name: str) -> type[Any]:
    """The settings dataclass of one of SETS."""
    about = SETS[name]

    @dataclass(frozen=True)
    class MedMNIST:
        part: str = evaluated()
        folder: str = where()
        shelf = shelf_of(name, about.md5)

        def load(self, seed: int) -> DataSet:
            train, test = load(self.shelf, self.folder, lambda parts: _images(parts, self.part, 0).rows())
            classes = 1 + max(int(rows.targets.max()) for rows in (train, test))
            if about.names and classes > len(about.names):
                raise SettingError(f"data {name!r}: holds label {classes - 1}, but has {len(about.names)} classes; "
                                   "the file is another data set's")
            return DataSet(train, test, len(about.names) or classes, about.names)

    MedMNIST.__doc__ = f"{about.what}, 28x28 pixels; of MedMNIST."
    return MedMNIST
