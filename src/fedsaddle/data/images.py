"""MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100, with pixels scaled to [-1, 1] as in cdma, or to [0, 1]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsaddle.contracts import setting
from fedsaddle.data.dataset import DataSet
from fedsaddle.data.formats import Images, cifar_images, idx_images, keras_images, members, mosaics
from fedsaddle.data.store import File, Form, Shelf, load, where

IDX = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz",
       "t10k-labels-idx1-ubyte.gz")
MNIST_SUMS = (
    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
)
FASHION_SUMS = (
    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
)
FASHION = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TORONTO = "https://www.cs.toronto.edu/~kriz/"
BATCHES = tuple(f"data_batch_{n}.bin" for n in range(1, 6))


def _idx_form(site: str, sums: tuple[str, ...], within: str, loose: bool) -> Form:
    files = tuple(File(name, site + name, f"sha256:{digest}") for name, digest in zip(IDX, sums, strict=True))
    return Form(files, idx_images, (within,), loose)


def _cifar10(*parts: bytes) -> Images:
    split = [cifar_images(part, 1, 0) for part in parts]
    images, labels = (np.concatenate([part[i] for part in split[:-1]]) for i in (0, 1))
    return Images(images, labels, *split[-1])


def _cifar100(train: bytes, test: bytes) -> dict[str, Images]:
    return {name: Images(*cifar_images(train, 2, label), *cifar_images(test, 2, label))
            for label, name in enumerate(("coarse", "fine"))}


def between() -> Any:
    return setting("signed", "pixels between -1 and 1 (signed), or between 0 and 1 (unit)", choices=("signed", "unit"))


MNIST_SHELF = Shelf("mnist", (
    Form((File("mnist.npz"),), keras_images),
    _idx_form("https://ossci-datasets.s3.amazonaws.com/mnist/", MNIST_SUMS, "MNIST/raw", loose=True),
))
FASHION_SHELF = Shelf("fashion-mnist", (
    Form((File("fashion_mnist.npz"),), keras_images),
    Form((File("fashion-mnist.npz"),), keras_images),
    _idx_form("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", FASHION_SUMS, "FashionMNIST/raw",
              loose=False),  # its files have MNIST's names
))
CIFAR10_SHELF = Shelf("cifar10", (
    Form((File("cifar-10-binary.tar.gz", TORONTO + "cifar-10-binary.tar.gz",
               "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),),
         lambda path: _cifar10(*members(path, *BATCHES, "test_batch.bin"))),
    Form(tuple(File(name) for name in (*BATCHES, "test_batch.bin")),
         lambda *paths: _cifar10(*(path.read_bytes() for path in paths)), ("cifar-10-batches-bin",)),
    Form((File("cifar10_a.npz"), File("cifar10_b.npz")), mosaics),
))
CIFAR100_SHELF = Shelf("cifar100", (
    Form((File("cifar-100-binary.tar.gz", TORONTO + "cifar-100-binary.tar.gz",
               "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"),),
         lambda path: _cifar100(*members(path, "train.bin", "test.bin"))),
    Form((File("train.bin"), File("test.bin")), lambda *paths: _cifar100(*(path.read_bytes() for path in paths)),
         ("cifar-100-binary",), loose=False),
))


@dataclass(frozen=True)
class MNIST:
    """70,000 handwritten digits of 1x28x28 pixels, 10,000 of them for the test; ten classes."""

    pixels: str = between()
    folder: str = where()
    shelf = MNIST_SHELF

    def load(self, seed: int) -> DataSet:
        return load(self.shelf, self.folder, lambda images: _data(images, self.pixels, 10))


@dataclass(frozen=True)
class FashionMNIST:
    """70,000 pieces of clothing of 1x28x28 pixels, 10,000 of them for the test; ten classes."""

    pixels: str = between()
    folder: str = where()
    shelf = FASHION_SHELF

    def load(self, seed: int) -> DataSet:
        return load(self.shelf, self.folder, lambda images: _data(images, self.pixels, 10, FASHION))


@dataclass(frozen=True)
class CIFAR10:
    """60,000 photographs of 3x32x32 pixels, 10,000 of them for the test; ten classes."""

    pixels: str = between()
    folder: str = where()
    shelf = CIFAR10_SHELF

    def load(self, seed: int) -> DataSet:
        return load(self.shelf, self.folder, lambda images: _data(images, self.pixels, 10, CIFAR10_CLASSES))


@dataclass(frozen=True)
class CIFAR100:
    """60,000 photographs of 3x32x32 pixels, 10,000 of them for the test; 100 classes in 20 groups."""

    labels: str = setting("fine", "the 100 classes, or their 20 groups", choices=("fine", "coarse"))
    pixels: str = between()
    folder: str = where()
    shelf = CIFAR100_SHELF

    def load(self, seed: int) -> DataSet:
        classes = 100 if self.labels == "fine" else 20
        return load(self.shelf, self.folder, lambda images: _data(images[self.labels], self.pixels, classes))


def _data(images: Images, pixels: str, classes: int, names: tuple[str, ...] = ()) -> DataSet:
    train, test = images.rows(pixels)
    return DataSet(train, test, classes, names)
