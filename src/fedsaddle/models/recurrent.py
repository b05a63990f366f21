"""Next characters by a gated recurrent unit, as in the Shakespeare experiment of the drfa paper."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsaddle.contracts import SettingError, setting


class Unit(nn.Module):
    """A GRU of one layer with the parameters of torch's own, which has no rule for vmap where cuDNN computes it."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.inputs_to_gates = nn.Linear(inputs, 3 * hidden)
        self.hidden_to_gates = nn.Linear(hidden, 3 * hidden)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden**-0.5), hidden**-0.5)

    def forward(self, inputs: Tensor) -> Tensor:
        """[rows, length, inputs] -> [rows, length, hidden]."""
        states = []
        h = inputs.new_zeros(inputs.shape[0], self.hidden)
        for step in self.inputs_to_gates(inputs).unbind(1):
            reset, update, new = step.chunk(3, 1)
            own_reset, own_update, own_new = self.hidden_to_gates(h).chunk(3, 1)
            z = torch.sigmoid(update + own_update)
            n = torch.tanh(new + torch.sigmoid(reset + own_reset) * own_new)
            h = (1 - z) * n + z * h
            states.append(h)
        return torch.stack(states, 1)


class NextCharacter(nn.Module):
    """[rows, length] of character numbers -> [rows, length, outputs]: after each character, the logits of the next."""

    def __init__(self, characters: int, embedding: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, embedding)
        self.unit = Unit(embedding, hidden)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.is_floating_point():
            raise SettingError("model gru: the inputs are no characters; give each row the numbers of its characters "
                               "as integers, such as those of the data set shakespeare")
        outputs: Tensor = self.head(self.unit(self.embedding(inputs)))
        return outputs


@dataclass(frozen=True)
class GRU:
    """Embedding, GRU, linear layer: 23,986 parameters for 86 characters."""

    characters: int | None = setting(None, "distinct characters in the inputs; none: as many as outputs", at_least=1)
    embedding: int = setting(50, "numbers that a character becomes", at_least=1)
    hidden: int = setting(50, "units of the GRU", at_least=1)

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        if len(input_shape) != 1:
            raise SettingError(f"model gru: inputs of shape {input_shape} are no texts; give each row one number for "
                               "each of its characters")
        return NextCharacter(self.characters or outputs, self.embedding, self.hidden, outputs)
