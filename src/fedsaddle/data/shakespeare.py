"""Plays as text: one client per speaker, the next character to predict (papers: drfa, Appendix A)."""

from __future__ import annotations

import string
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedsaddle.contracts import Rows, SettingError, setting
from fedsaddle.data.dataset import Attribute, DataSet
from fedsaddle.data.formats import unpacked
from fedsaddle.data.store import File, Form, Shelf, load, where

CHARACTERS = "".join(sorted("\n\r !\"#$%&'()*,-./:;?@[]_" + string.digits + string.ascii_letters))  # 86 of them
LONGEST_NAME = 40
ORIGINAL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"


def _text(path: Path) -> str:
    return unpacked(path).decode("utf-8")


def speeches(text: str) -> dict[str, str]:
    """All that each speaker says, in order. A speech is a paragraph whose first line is a name and a colon."""
    said: dict[str, list[str]] = {}
    for paragraph in text.replace("\r\n", "\n").split("\n\n"):
        name, _, words = paragraph.strip("\n").partition("\n")
        if name.endswith(":") and len(name) <= LONGEST_NAME and words:
            said.setdefault(name[:-1].strip(), []).append(words)
    return {name: "\n".join(words) + "\n" for name, words in said.items()}


@dataclass(frozen=True)
class Shakespeare:
    """Plays by speaker: rows are sequences of characters and the same moved by one; the attribute is role.

    The text has its speakers on lines of their own, as NAME:. A speaker who says less than one sequence is left out;
    the last sequences of each are the test.
    """

    length: int = setting(50, "characters in a row", at_least=1)
    characters: str = setting("paper", "the alphabet: the paper's 86 characters, or those of the text",
                              choices=("paper", "text"))
    test_share: float = setting(0.2, "share of each speaker's sequences kept for the test", above=0.0, at_most=0.9)
    folder: str = where()
    shelf = Shelf("shakespeare", (
        Form((File("tinyshakespeare.txt"),), _text),
        Form((File("shakespeare.txt"),), _text),
        Form((File("input.txt", ORIGINAL,
                   "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"),), _text, loose=False),
    ))

    def load(self, seed: int) -> DataSet:
        said = load(self.shelf, self.folder, speeches)
        names = [name for name, words in said.items() if len(words) > self.length]
        if not names:
            raise SettingError(f"data.length = {self.length}: no speaker says that much; the text needs lines such as "
                               "'ROMEO:' before each speech, after an empty line")
        letters = CHARACTERS if self.characters == "paper" else "".join(sorted(set("".join(said.values()))))
        train, test = [], []
        for role, name in enumerate(names):
            rows = self._rows(said[name], letters)
            kept = len(rows) - round(self.test_share * len(rows))
            train.append((rows[:kept], role))
            test.append((rows[kept:], role))
        parts = [torch.cat([rows for rows, _ in part]) for part in (train, test)]
        roles = [torch.cat([torch.full((len(rows),), role) for rows, role in part]) for part in (train, test)]
        first, second = (Rows(part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in parts)
        return DataSet(first, second, len(letters), tuple(repr(letter) for letter in letters),
                       {"role": Attribute(tuple(names), *roles)})

    def _rows(self, words: str, letters: str) -> Tensor:
        """[sequences, length + 1]: the last character of a row is the first of the next."""
        place = {letter: number for number, letter in enumerate(letters)}
        unknown = sorted(set(words) - place.keys())
        if unknown:
            raise SettingError(f"data.characters = {self.characters!r}: the text has {unknown[0]!r}, which is not "
                               "among them; set it to 'text'")
        numbers = np.array([place[letter] for letter in words], dtype=np.int64)
        starts = np.arange((len(numbers) - 1) // self.length) * self.length
        return torch.from_numpy(numbers[starts[:, None] + np.arange(self.length + 1)])
