"""Text as numbers: the help texts that come with Python, a number for each character."""

from __future__ import annotations

from pydoc_data.topics import topics

import torch
from torch import Tensor

VOCABULARY = 128
"""Those of ASCII; 0 is in no text, and stands for what a model says of its own."""


def encode(text: str) -> Tensor:
    """A number for each character; others than ASCII's become question marks."""
    return torch.tensor(list(text.encode("ascii", "replace")))


def decode(numbers: Tensor) -> str:
    """The text again."""
    return bytes(numbers.tolist()).decode("ascii")


def windows(length: int, first: str = "a", last: str = "zz") -> Tensor:
    """Pieces of so many characters, (pieces, length), of the topics whose names lie between two words."""
    text = "\n".join(topics[name] for name in sorted(topics) if first <= name.lower() <= last)
    return encode(text).unfold(0, length, length // 4)
