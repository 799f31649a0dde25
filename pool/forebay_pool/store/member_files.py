"""The files of one member's jobs on disk: contents, each under its hash, and lists of files that say which belong together."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from forebay_wire.remote import folder
from forebay_wire.remote.folder import Written
from forebay_wire.remote.frames import PIECE_BYTES, File
from forebay_wire.remote.job_files import Listed
from pydantic import ValidationError

from forebay_pool.errors import FilesRefused

Which = Literal["sent", "results"]
BLOCK_BYTES = 4096
FOLDER_MODE, FILE_MODE = 0o700, 0o600
HALF = ".half"
"""The ending of contents that broke off."""
_HEX = frozenset("0123456789abcdef")
_HASH_CHARACTERS = 64


def on_disk(size: int) -> int:
    """Bytes that a file of this size takes, so that a million empty files are not for nothing."""
    return max(1, -(-size // BLOCK_BYTES)) * BLOCK_BYTES


@dataclass(frozen=True, slots=True, order=True)
class Contents:
    """One file's contents, or the half of them that came. Sorts by when they were last used."""

    used_ns: int
    bytes: int
    name: str
    """Their hash; of a half with its ending."""


@dataclass(frozen=True, slots=True)
class List:
    """One list: of what was sent under its own hash, of what a job left under the job's number."""

    which: Which
    name: str
    used_ns: int
    bytes: int


class MemberFiles:
    """In a folder that is of this member alone. Nothing of it is told to anybody else, not even whether it is there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        """Raises OSError."""
        for one in (self.path, self.path / "sent", self.path / "results"):
            one.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)

    def opened(self) -> int:
        """The open folder. Raises OSError."""
        return os.open(self.path, folder.FOLDER)

    # Contents

    def contents(self) -> Iterator[Contents]:
        """All that are here."""
        for name, seen in _entries(self.path):
            whole = name.removesuffix(HALF)
            if len(whole) == _HASH_CHARACTERS and _HEX.issuperset(whole):
                yield Contents(seen.st_mtime_ns, on_disk(seen.st_size), name)

    def use(self, file: File) -> bool:
        """Whether the contents of a file are here; if so, they count as used now."""
        path = self.path / file.hash
        try:
            if path.stat().st_size != file.size:
                return False
            os.utime(path)
        except OSError:
            return False
        return True

    def writing(self, opened: int, file: File) -> Written:
        """Contents that come, into the :meth:`opened` folder. Raises OSError."""
        return Written(opened, file.hash, file.size, file.hash, False, mode=FILE_MODE)

    def has_half(self, file: File) -> bool:
        """Whether some of the contents of a file are here, which broke off."""
        return (self.path / f"{file.hash}{HALF}").is_file()

    def pieces(self, file: File, begun: int = 0) -> Iterator[bytes]:
        """The contents of a file, but for the first bytes. Raises FilesRefused where they are not here any more, or not what they were."""
        made = hashlib.sha256()
        try:
            with open(os.open(self.path / file.hash, folder.READ), "rb") as opened:
                for piece in folder.pieces_of(opened.fileno(), file.size):
                    made.update(piece)
                    if piece := piece[begun:]:
                        yield piece
                    begun = max(0, begun - PIECE_BYTES)
        except OSError:
            raise FilesRefused(f"{file.path} is not kept any more; submit the job again.") from None
        if made.hexdigest() != file.hash:
            self.drop(file.hash)
            raise FilesRefused(f"{file.path} was damaged where it was kept; submit the job again, and it is sent anew.")

    def drop(self, name: str) -> None:
        """Contents that nobody needs."""
        (self.path / name).unlink(missing_ok=True)

    # Lists

    def keep(self, which: Which, name: str, listed: Listed) -> None:
        """Writes a list, in place of one of this name. Raises OSError."""
        made = self.path / f".forebay-{secrets.token_hex(8)}"
        try:
            with open(os.open(made, folder.WRITE, FILE_MODE), "wb") as file:
                file.write(listed.encode().encode())
            made.replace(self._list(which, name))
        except OSError:
            made.unlink(missing_ok=True)
            raise

    def listed(self, which: Which, name: str) -> Listed | None:
        """A list; None where there is none, or none that can be read."""
        try:
            return Listed.model_validate_json(self._list(which, name).read_bytes())
        except (OSError, ValidationError):
            return None

    def use_list(self, name: str) -> bool:
        """Whether a list of files that were sent is here; if so, it counts as used now."""
        try:
            os.utime(self._list("sent", name))
        except OSError:
            return False
        return True

    def lists(self) -> Iterator[List]:
        """All that are here."""
        kinds: tuple[Which, ...] = ("sent", "results")
        for which in kinds:
            for name, seen in _entries(self.path / which):
                yield List(which, name, seen.st_mtime_ns, on_disk(seen.st_size))

    def drop_list(self, which: Which, name: str) -> None:
        self._list(which, name).unlink(missing_ok=True)

    def _list(self, which: Which, name: str) -> Path:
        return self.path / which / name

    # All of it

    @property
    def bytes(self) -> int:
        """What all of it takes on disk."""
        return sum(one.bytes for one in self.contents()) + sum(one.bytes for one in self.lists())

    def drop_halves(self) -> None:
        """What was being written when its pool ended."""
        for name, _ in _entries(self.path):
            if name.startswith(".forebay-"):
                self.drop(name)

    def drop_if_empty(self) -> None:
        with contextlib.suppress(OSError):
            for one in (self.path / "sent", self.path / "results", self.path):
                one.rmdir()


def _entries(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The regular files of a folder; none where there is no folder."""
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # it went meanwhile
                    if entry.is_file(follow_symlinks=False):
                        yield entry.name, entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return
