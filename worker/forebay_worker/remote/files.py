"""The user's files on this host: those that come before the process starts, and those that it leaves."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from forebay_wire.remote import folder
from forebay_wire.remote.folder import Mark, Written
from forebay_wire.remote.frames import FILES_MAX, File

from forebay_worker.remote.contents import Contents

BLOCK_BYTES = 512


@dataclass
class Files:
    """The copies in one process's folder of work."""

    work: int
    """The open folder."""
    owner: int | None
    """Who they are given to; None: this process's own account."""
    contents: Contents | None
    """What the host keeps; None: nothing."""
    _known: dict[str, tuple[Mark, File]] = field(default_factory=dict)

    def take_kept(self, told: Sequence[File]) -> list[int]:
        """Writes those whose contents this host has; the places of the others. Raises ValueError for a name that is refused, OSError."""
        return [place for place, file in enumerate(told) if not self._is_kept(file)]

    def _is_kept(self, file: File) -> bool:
        if self.contents is None:
            return False
        written = self._written(file)
        try:
            if not self.contents.copy(file, written):
                return False
            self._note(file, written)
        except folder.ContentsRefused:
            self.contents.drop(file)
            return False
        finally:
            written.drop()
        return True

    async def take(self, file: File, pieces: AsyncIterator[bytes]) -> None:
        """Writes a file's contents as they come. Raises ValueError for a name or contents that are refused, OSError."""
        written = self._written(file)
        try:
            while not written.complete:
                written.add(await anext(pieces))
            self._note(file, written)
        finally:
            written.drop()
        if self.contents is not None:
            await asyncio.to_thread(self._keep, file, self.contents)

    def _keep(self, file: File, contents: Contents) -> None:
        opened = folder.open_file(self.work, file.path)
        with open(opened, "rb"):
            contents.keep(file, opened)

    def _written(self, file: File) -> Written:
        return Written(self.work, file.path, file.size, file.hash, file.executable, self.owner)

    def _note(self, file: File, written: Written) -> None:
        self._known[file.path] = (folder.mark_of(written.take_name()), file)

    def changed(self, bytes_max: int) -> tuple[list[File], tuple[str, ...]]:
        """What is new or other than it came, once nothing writes there any more; and what is left out, in sentences."""
        found: list[File] = []
        left: list[str] = []
        total = 0
        for path, seen in folder.found_in(self.work, lambda _path, _is_folder: False, left.append):
            file = self._changed_file(path, seen, left)
            if file is None:
                continue
            if total + file.size > bytes_max or len(found) == FILES_MAX:
                left.append(f"{path} is beyond the limit of {bytes_max / 2**30:g} GiB, or of {FILES_MAX} files")
                continue
            total += file.size
            found.append(file)
        return found, folder.shortened(left)

    def _changed_file(self, path: str, seen: os.stat_result, left: list[str]) -> File | None:
        known = self._known.get(path)
        if known is not None and known[0] == folder.mark_of(seen):
            return None
        try:
            opened = folder.open_file(self.work, path)
        except (OSError, ValueError) as error:
            left.append(f"{path} cannot be read: {error}")
            return None
        try:
            seen = os.fstat(opened)
            if seen.st_size > seen.st_blocks * BLOCK_BYTES + folder.HOLES_BYTES_MAX:
                left.append(f"{path} is a sparse file of {seen.st_size} bytes")
                return None
            made = folder.hash_of(opened, seen.st_size)
            file = File(path=path, size=seen.st_size, hash=made, executable=bool(seen.st_mode & stat.S_IXUSR))
        finally:
            os.close(opened)
        return None if known is not None and known[1] == file else file
