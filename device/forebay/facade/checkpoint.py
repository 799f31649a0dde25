"""One checkpoint, and what became of tensors that went back to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from forebay.facade.names import Storage


@dataclass(frozen=True)
class Checkpoint:
    """What is known here of one that was taken."""

    number: int
    name: str
    """As it was given; else of the cell, or its number."""
    parent: int | None = field(repr=False)
    """The number of the one that tensors had come from."""
    generators: Sequence[tuple[torch.Generator, torch.Tensor]] = field(repr=False)
    """Those of the devices, and the program's own that have a name, with their states."""
    newer: Mapping[int, int] = field(repr=False)
    """From which number on storages of each device were made later."""
    names: Mapping[str, Storage] = field(repr=False)
    """The program's names of tensors."""


@dataclass(frozen=True)
class WentBack:
    """What became of a program's tensors. ``print()`` says it."""

    name: str
    tensors: int
    """Storages whose bytes were put back. The others had not changed."""
    gone: Sequence[str]
    """Names that led to a tensor then, and do not lead to it now. Those tensors were not brought back."""
    newer: Sequence[str]
    """Names of tensors that were made since. They were left as they are."""
    resized: int
    """Storages that have another size since, and were left as they are."""

    def __str__(self) -> str:
        from forebay.notebook.checkpoints import text
        from forebay.texts import Texts, language_here

        return text(self, Texts(language_here()))
