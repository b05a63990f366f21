"""Data sets by name. `SOURCES`: the settings dataclass of each; `load(seed)` gives its training and test rows.

A source with files has a `shelf`, which says how they are found and fetched. One with `deal(clients, seed)` makes its
own clients instead.
"""

from __future__ import annotations

from typing import Any

from fedsaddle.data.dataset import Attribute, DataSet, split
from fedsaddle.data.embedded import BreastCancer, Digits, QuadraticSaddles
from fedsaddle.data.images import CIFAR10, CIFAR100, MNIST, FashionMNIST
from fedsaddle.data.medicare import Medicare
from fedsaddle.data.medmnist import SETS, ChestMNIST, medmnist
from fedsaddle.data.pictures import CelebA, ImageFolder
from fedsaddle.data.shakespeare import Shakespeare
from fedsaddle.data.sites import SitesData
from fedsaddle.data.table_source import TableFile
from fedsaddle.data.tabular import Adult, Campaign, Mammography

SOURCES: dict[str, type[Any]] = {
    "digits": Digits, "breast-cancer": BreastCancer, "quadratic": QuadraticSaddles,
    "mnist": MNIST, "fashion-mnist": FashionMNIST, "cifar10": CIFAR10, "cifar100": CIFAR100,
    "adult": Adult, "mammography": Mammography, "campaign": Campaign, "medicare": Medicare,
    "shakespeare": Shakespeare, "celeba": CelebA, "image-folder": ImageFolder, "chestmnist": ChestMNIST,
    "table": TableFile, "sites": SitesData,
    **{name: medmnist(name) for name in SETS},
}

__all__ = ["SOURCES", "Attribute", "DataSet", "split"]
