"""Which state of every client stands: the server's side of what sites keep on their disks."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsaddle.sites.store import Token


class Standing:
    """Names of states. A round is a transaction: those of its replies count when it returns."""

    def __init__(self) -> None:
        self.tokens: dict[int, Token] = {}
        self.pending: dict[int, Token] = {}
        self.kept: dict[int, Token] = {}  # of the last checkpoint, from which a server may start again

    def of(self, client: int) -> dict[str, Token]:
        """From which state an ask starts, and which ones must not be lost: of the last round, if this one is not to
        count, and of the last checkpoint."""
        stands = self.tokens.get(client, Token())
        return {"state": self.pending.get(client, stands), "stands": stands, "keep": self.kept.get(client, Token())}

    def commit(self) -> None:
        self.tokens |= self.pending
        self.pending = {}

    def rollback(self) -> None:
        self.pending = {}

    def dump(self) -> dict[str, Tensor]:
        self.kept = dict(self.tokens)
        if not self.tokens:
            return {}
        return {"ids": torch.tensor(list(self.tokens)), "token": torch.tensor([list(t) for t in self.tokens.values()])}

    def load(self, tensors: dict[str, Tensor]) -> None:
        ids = tensors.get("ids", torch.zeros(0)).tolist()
        rows = tensors["token"].tolist() if ids else []
        self.tokens = {int(client): Token(*row) for client, row in zip(ids, rows, strict=True)}
        self.kept = dict(self.tokens)
