"""What a data set is once it is read: training and test rows, class names, and attributes to deal by."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from fedsaddle.contracts import Rows, SettingError
from fedsaddle.maths import keys, streams


class Attribute(NamedTuple):
    """What each row belongs to besides its class, such as a speaker: a number a row, and the numbers' names."""

    names: tuple[str, ...]
    train: Tensor
    test: Tensor


class DataSet(NamedTuple):
    """Inputs in float32, or int64 for text; targets 0 .. classes - 1, one a row, or one a character for text."""

    train: Rows
    test: Rows
    classes: int
    names: tuple[str, ...] = ()  # of the classes, where they have names
    attributes: Mapping[str, Attribute] = MappingProxyType({})
    files: Mapping[str, str] = MappingProxyType({})  # what a run folder keeps of how it was made: name, text


def split(inputs: Tensor, targets: Tensor, test_share: float, seed: int) -> DataSet:
    """The same share of every class for the test, chosen by the seed alone; both parts keep the rows' order."""
    if not 0 < test_share < 1:
        raise SettingError(f"data.test_share: {test_share} leaves one part empty; set it strictly between 0 and 1")
    test = chosen_for_test(targets, test_share, seed)
    return DataSet(Rows(inputs[~test], targets[~test]), Rows(inputs[test], targets[test]), int(targets.max()) + 1)


def chosen_for_test(targets: Tensor, test_share: float, seed: int) -> Tensor:
    """Whether each row is one of its class's share for the test."""
    shuffled = torch.argsort(streams.stream(keys.address(seed, keys.Purpose.PARTITION, 0), len(targets)), stable=True)
    test = torch.zeros(len(targets), dtype=torch.bool)
    for label in range(int(targets.max()) + 1):
        rows = shuffled[targets[shuffled] == label]
        test[rows[: round(test_share * len(rows))]] = True
    return test


def standardised(data: DataSet) -> DataSet:
    """Every feature with mean 0 and deviation 1 on the training rows; one that never varies there becomes 0."""
    mean, deviation = data.train.inputs.mean(0), data.train.inputs.std(0, correction=0)
    scale = torch.where(deviation > 0, deviation, torch.inf)
    train, test = (part._replace(inputs=((part.inputs - mean) / scale).float()) for part in (data.train, data.test))
    return data._replace(train=train, test=test)
