"""A record: the receipts of one user from one pool, in a file for each month, each line with the hash of the line before.

A line is the SHA-256 of the line before it (without its end; of the first line 64 zeros), the signature and the receipt's text, with a
space between. The chain goes on from one month's file to the next one's.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from forebay_wire.message_parts import SignedReceipt

BEGINNING = "0" * 64
"""What stands in the first line in place of a hash."""
MONTHS = "[0-9][0-9][0-9][0-9]-[0-9][0-9].txt"
LINE_BYTES_MAX = 16 * 1024
"""Longer than any line: a receipt's text has 2,048 characters at most."""
KEY, LOCK = "key", "lock"


@dataclass(frozen=True)
class RecordLine:
    """One line of a record, as it stands there."""

    file: str
    number: int
    """In its file, from 1."""
    raw: bytes

    @property
    def hash(self) -> str:
        """What the line after it begins with."""
        return hashlib.sha256(self.raw).hexdigest()

    @property
    def parts(self) -> tuple[str, str, str] | None:
        """Hash of the line before, signature, and text; None where it is no line of a record."""
        try:
            previous, signature, text = self.raw.decode().split(" ", 2)
        except ValueError:
            return None
        return previous, signature, text

    @property
    def place(self) -> str:
        """For people."""
        return f"{self.file}, line {self.number}"


class Record:
    """A folder with one record. Several processes may add to it at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def append(self, receipts: Iterable[SignedReceipt]) -> None:
        """Adds them at the end, in this month's file. Raises OSError."""
        with self._locked():
            file, before = self._end()
            previous = BEGINNING if before is None else before.hash
            text = b""
            for one in receipts:
                line = f"{previous} {one.signature} {one.text}".encode()
                previous, text = hashlib.sha256(line).hexdigest(), text + line + b"\n"
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with open(descriptor, "r+b", buffering=0) as written:
                written.write(b"\n" + text if self._is_cut(written.fileno()) else text)

    def lines(self) -> Iterator[RecordLine]:
        """All lines, the oldest first. Raises OSError."""
        for path in self._files():
            for number, raw in enumerate(path.read_bytes().splitlines(), 1):
                yield RecordLine(path.name, number, raw)

    def pin(self, key: str) -> None:
        """Makes the folder, and keeps the pool's public key in it, unless it is there. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (self.folder / KEY).exists():
            _write(self.folder / KEY, f"{key}\n")

    @property
    def key(self) -> str:
        """The pool's public key, in hex. Raises OSError."""
        return (self.folder / KEY).read_text(encoding="ascii", errors="replace").strip()

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob(MONTHS))

    def _end(self) -> tuple[Path, RecordLine | None]:
        """The file that is written to, and the last line there is. A clock that is set back makes no earlier file than there is."""
        files = self._files()
        now = self.folder / f"{datetime.now(UTC):%Y-%m}.txt"
        file = max([now, *files])
        return file, next((line for path in reversed(files) if (line := _last(path)) is not None), None)

    @staticmethod
    def _is_cut(descriptor: int) -> bool:
        """Whether the file ends within a line: the machine stopped while it was written."""
        size = os.fstat(descriptor).st_size
        return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(os.open(self.folder / LOCK, os.O_WRONLY | os.O_CREAT, 0o600), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _last(path: Path) -> RecordLine | None:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LINE_BYTES_MAX))
        lines = file.read().splitlines()
    return RecordLine(path.name, 0, lines[-1]) if lines else None


def _write(path: Path, text: str) -> None:
    """Whole or not at all, for this user alone."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)
