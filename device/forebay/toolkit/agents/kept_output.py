"""What a run printed, kept for whoever reads it page by page."""

from __future__ import annotations

from dataclasses import dataclass

KEPT_CHARS_MAX = 4_000_000
"""Of one run. Of more than that the beginning is forgotten."""


@dataclass(frozen=True)
class Page:
    """A part of an output. Positions count characters from the output's beginning, those that are forgotten too."""

    text: str
    start: int
    next: int
    """The position of what comes after; equal to ``length`` at the end of what there is."""
    length: int


class KeptOutput:
    """Grows at its end; what is forgotten keeps its place."""

    def __init__(self, chars_max: int = KEPT_CHARS_MAX) -> None:
        self._chars_max = chars_max
        self._pieces: list[str] = []
        self._kept = 0
        self.length = 0
        """Characters that were written, those that are forgotten too."""

    def write(self, text: str) -> None:
        self._pieces.append(text)
        self._kept += len(text)
        self.length += len(text)
        if self._kept > 2 * self._chars_max:
            self._text()

    def _text(self) -> str:
        kept = "".join(self._pieces)[-self._chars_max :]
        self._pieces, self._kept = [kept], len(kept)
        return kept

    def page(self, start: int, chars_max: int) -> Page:
        """From ``start`` on; a negative one counts from the end. It begins later where that is forgotten."""
        text = self._text()
        first = self.length - len(text)
        begins = min(max(first, start if start >= 0 else self.length + start), self.length)
        part = text[begins - first : begins - first + chars_max]
        return Page(part, begins, begins + len(part), self.length)
