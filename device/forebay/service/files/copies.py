"""The user's folder: what is sent of it, and what may be written into it of what comes back."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from forebay_wire.remote import folder
from forebay_wire.remote.folder import Mark, Written
from forebay_wire.remote.frames import FILES_MAX, File
from pathspec import GitIgnoreSpec

from forebay.errors import ForebayError, SessionEnded
from forebay.service.files.known_hashes import KnownHashes

IGNORE_FILE = ".forebayignore"
ALWAYS_LEFT = (".git/", "__pycache__/", ".ipynb_checkpoints/", ".venv/", "venv/", "node_modules/", ".forebay-*")
"""Unless the user's own patterns take them in again."""
ASIDE = ".from-exec"
"""The ending of a file that came back where the user had changed his own meanwhile."""
LEFT_SHOWN = 3


class Copies:
    """Of the regular files of a folder."""

    def __init__(self, path: Path, bytes_max: int, files_max: int = FILES_MAX, results: bool = False) -> None:
        """Reads all of them. ``results``: those that a job leaves, of which the user's patterns keep none back. Raises ForebayError,
        OSError."""
        self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._ignored = GitIgnoreSpec.from_lines(ALWAYS_LEFT) if results else _ignored(path)
        self._bytes_max, self._files_max = bytes_max, files_max
        self._marks: dict[str, Mark] = {}
        self.left: list[str] = []
        """What is not sent, and why, in sentences."""
        self._hashes = KnownHashes(path)
        self.files = tuple(self._read())
        if not results:
            self._hashes.keep()

    def _read(self) -> Iterator[File]:
        total = 0
        for number, (path, seen) in enumerate(folder.found_in(self._folder, self.is_ignored, self.left.append)):
            total += seen.st_size
            if total > self._bytes_max:
                limit = f"{self._bytes_max / 2**30:g} GiB"
                raise ForebayError(
                    f"The folder has more than {limit}. Name what is not needed in {IGNORE_FILE}, as in a .gitignore, or raise --limit."
                )
            if number == self._files_max:
                raise ForebayError(f"The folder has more than {self._files_max} files. Name what is not needed in {IGNORE_FILE}.")
            yield self._file(path)

    def _file(self, path: str) -> File:
        opened = folder.open_file(self._folder, path)
        try:
            seen = os.fstat(opened)
            self._marks[path] = mark = folder.mark_of(seen)
            made = self._hashes.of(path, mark)
            if made is None:
                made = folder.hash_of(opened, seen.st_size)
                self._note(path, mark, folder.mark_of(os.fstat(opened)), made)
            return File(path=path, size=seen.st_size, hash=made, executable=bool(seen.st_mode & stat.S_IXUSR))
        finally:
            os.close(opened)

    def _note(self, path: str, before: Mark, after: Mark, made: str) -> None:
        if before == after:
            self._hashes.note(path, before, made)

    def is_ignored(self, path: str, is_folder: bool) -> bool:
        """Whether a path below the folder is neither sent nor taken."""
        return self._ignored.match_file(f"{path}/" if is_folder else path)

    def pieces(self, file: File) -> Iterator[bytes]:
        """The contents of a file that was told of. Raises SessionEnded where it has changed since."""
        opened = folder.open_file(self._folder, file.path)
        try:
            if folder.mark_of(os.fstat(opened)) != self._marks[file.path]:
                raise SessionEnded(f"{file.path} changed while it was sent; run this again.")
            yield from folder.pieces_of(opened, file.size)
        finally:
            os.close(opened)

    # What comes back

    def wanted(self, files: Sequence[File]) -> list[int]:
        """The places of those that are taken. Raises ForebayError for names that lead out of the folder."""
        try:
            return [place for place, file in enumerate(files) if not self._is_below_ignored(folder.parts_of(file.path))]
        except folder.NameRefused as refused:
            raise ForebayError(f"The worker sent back what is no file of this folder: {refused}.") from None

    def _is_below_ignored(self, parts: list[str]) -> bool:
        path = "/".join(parts)
        return self.is_ignored(path, False) or any(self.is_ignored("/".join(parts[:end]), True) for end in range(1, len(parts)))

    def writing(self, file: File) -> Written:
        """Where a file goes that comes back. Raises ForebayError where it cannot be written."""
        try:
            return Written(self._folder, file.path, file.size, file.hash, file.executable)
        except OSError as error:
            raise ForebayError(f"{file.path} came back and cannot be written: {error.strerror}.") from None

    def name_of(self, file: File) -> str:
        """What it is called then: a file that has changed here since it was sent stays as it is."""
        name = file.path.rpartition("/")[2]
        return name if self._is_as_sent(file.path) else f"{name}{ASIDE}"

    def _is_as_sent(self, path: str) -> bool:
        with contextlib.suppress(OSError, folder.NameRefused):
            opened = folder.open_file(self._folder, path)
            try:
                return folder.mark_of(os.fstat(opened)) == self._marks.get(path)
            finally:
                os.close(opened)
        return path not in self._marks and not os.path.lexists(f"/proc/self/fd/{self._folder}/{path}")

    def close(self) -> None:
        os.close(self._folder)


def _ignored(path: Path) -> GitIgnoreSpec:
    """Raises ForebayError."""
    try:
        own = (path / IGNORE_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        own = []
    except (OSError, UnicodeDecodeError) as error:
        raise ForebayError(f"{IGNORE_FILE} cannot be read: {error}.") from None
    return GitIgnoreSpec.from_lines([*ALWAYS_LEFT, *own])


def in_words(left: Sequence[str]) -> str:
    """What was left out, shortened."""
    shown = "; ".join(left[:LEFT_SHOWN])
    more = len(left) - LEFT_SHOWN
    return f"{shown}; {more} more" if more > 0 else shown
