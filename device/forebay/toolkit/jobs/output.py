"""What a run leaves: what its program prints, in numbered pieces on their way to the pool, and where a notebook's outputs are kept."""

from __future__ import annotations

import codecs
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PIECE_CHARACTERS_MAX = 16_384
PIECES_MAX = 256
"""Pieces that wait; while the pool is away the first of them are dropped."""
SENT_CHARACTERS_MAX = 131_072
"""In one request."""


def output_of(job: Mapping[str, Any]) -> Path:
    """Where a notebook with its outputs is kept, in the user's home or in the job's folder: beside the notebook."""
    notebook = Path(str(job["file"]))
    return notebook.with_name(f"{notebook.stem}-job-{job['id']}{notebook.suffix}")


class Output:
    """Written by one thread, sent by another."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._lock = threading.Lock()
        self._rest = ""
        self._pieces: deque[tuple[int, str]] = deque()
        self._number = 0

    def write(self, data: bytes, final: bool = False) -> None:
        """Takes what was printed."""
        with self._lock:
            self._rest += self._decoder.decode(data, final).replace("\0", "\N{REPLACEMENT CHARACTER}")
            while len(self._rest) >= PIECE_CHARACTERS_MAX:
                self._cut()

    def _cut(self) -> None:
        self._number += 1
        self._pieces.append((self._number, self._rest[:PIECE_CHARACTERS_MAX]))
        self._rest = self._rest[PIECE_CHARACTERS_MAX:]
        if len(self._pieces) > PIECES_MAX:
            self._pieces.popleft()

    def waiting(self) -> list[dict[str, object]]:
        """The next pieces for one request, as the pool takes them; they wait until they are :meth:`sent`."""
        with self._lock:
            if self._rest:
                self._cut()
            found: list[dict[str, object]] = []
            characters = 0
            for number, text in self._pieces:
                characters += len(text)
                if found and characters > SENT_CHARACTERS_MAX:
                    break
                found.append({"number": number, "text": text})
            return found

    def sent(self, pieces: list[dict[str, object]]) -> None:
        """The pool has these."""
        if pieces:
            with self._lock:
                while self._pieces and self._pieces[0][0] <= int(str(pieces[-1]["number"])):
                    self._pieces.popleft()
