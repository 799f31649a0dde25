"""Contents of one user's files that this host keeps, by their hashes: what has not changed since the last run is not sent again."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from forebay_wire.remote import folder
from forebay_wire.remote.folder import Written
from forebay_wire.remote.frames import File

from forebay_worker.libraries import Libraries

BYTES_MAX = 8 * 2**30
"""On one host. Those that were not used for longest make room."""
FILES_MAX = 100_000
NAME = "contents"
SHARED_MODES = (0o2770, 0o660)
"""Of folder and files where workers of several accounts serve the user: whoever else is of their group does not know the folder's name."""


class Contents:
    """In a folder that only workers for this user know. Whatever is taken from it is hashed once more on its way."""

    def __init__(self, parent: Path, bytes_max: int = BYTES_MAX) -> None:
        """Raises OSError."""
        above = Libraries(parent).folder
        self._shared = bool(above.stat().st_mode & 0o070)
        self._folder = above / NAME
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if self._shared and self._folder.stat().st_uid == os.geteuid():
            self._folder.chmod(SHARED_MODES[0])
        self._bytes_max = bytes_max

    def copy(self, file: File, written: Written) -> bool:
        """Writes a file's contents, if they are here and are what their name says; whether they were."""
        try:
            opened = os.open(self._folder / file.hash, folder.READ)
        except OSError:
            return False
        with open(opened, "rb"):
            if os.fstat(opened).st_size != file.size:
                return False
            written.copy(opened)
            with contextlib.suppress(OSError):  # it may be another worker's
                os.utime(opened)
        return True

    def keep(self, file: File, opened: int) -> None:
        """Copies the contents of an open file, whose hash was checked. Raises OSError."""
        made, name = tempfile.mkstemp(prefix=".", dir=self._folder)
        try:
            with open(made, "wb"):
                left = file.size
                while left and (count := os.sendfile(made, opened, file.size - left, left)):
                    left -= count
                if self._shared:
                    os.fchmod(made, SHARED_MODES[1])
            os.replace(name, self._folder / file.hash)
        except BaseException:
            os.unlink(name)
            raise

    def drop(self, file: File) -> None:
        """They are not what their name says."""
        (self._folder / file.hash).unlink(missing_ok=True)

    def make_room(self) -> None:
        """Removes those that were not used for longest, beyond what may be here."""
        total = 0
        for number, (_, size, path) in enumerate(sorted(self._all(), reverse=True)):
            total += size
            if total > self._bytes_max or number >= FILES_MAX:
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def _all(self) -> list[tuple[int, int, str]]:
        found = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    seen = entry.stat(follow_symlinks=False)
                    found.append((seen.st_mtime_ns, seen.st_size, entry.path))
        return found
