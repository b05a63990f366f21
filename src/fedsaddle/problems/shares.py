"""Which of the clients have rows of each class, for problems that draw the classes apart."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from fedsaddle.contracts import Batch, Data, Federation, Oracle, SettingError, ShareOf

CLASSES = ("positives", "negatives")


class Held(NamedTuple):
    """Whether a client has rows of each class: empty in the question, filled in the reply."""

    positives: ShareOf | float = 0.0
    negatives: ShareOf | float = 0.0


def held(batch: Batch) -> Tensor:
    """1 where the client has such rows, 0 where it has none."""
    return (batch.weight.sum() > 0).to(batch.weight.dtype)


def classes_held(oracle: Oracle, message: Held, client: Any, data: Data) -> tuple[Held, Any]:
    pair = data.minibatches[0]
    return Held(held(pair.positives), held(pair.negatives)), client


def class_shares(federation: Federation) -> tuple[float, float]:
    """Of the clients, by the objective's weights, those that have positives and those that have negatives."""
    share = federation.average(classes_held, Held(), federation.everyone(), 1).mean
    for value, name in ((share.positives, "positives (target > 0)"), (share.negatives, "negatives (target <= 0)")):
        if not float(value):
            raise SettingError(f"targets: no client has any {name}, so there are no pairs to rank; check how the "
                               "targets are coded, or which class is set as the positive one")
    return float(share.positives), float(share.negatives)


def named_shares(shares: tuple[float, float] | None) -> dict[str, float]:
    """As constants of a problem, which `known_shares` reads back."""
    return {} if shares is None else {"positive_clients": shares[0], "negative_clients": shares[1]}


def known_shares(values: dict[str, float]) -> tuple[float, float] | None:
    return (values["positive_clients"], values["negative_clients"]) if "positive_clients" in values else None
