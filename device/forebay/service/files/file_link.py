"""The client's end of the link by which files of jobs go and come: ``docs/wire.md``, Files of jobs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self, TypeVar

from forebay_wire.message_parts import Message
from forebay_wire.remote import folder, job_files
from forebay_wire.remote.frames import File, StreamError
from forebay_wire.remote.job_files import JobRun, Listed, Wanted
from websockets.exceptions import WebSocketException

from forebay.errors import ForebayError, PoolRefused, PoolUnreachable
from forebay.service import Service, pool_link
from forebay.service.files.copies import Copies

PATH = "api/job-files"
OPEN_SECONDS_MAX = 30.0
ANSWER_SECONDS_MAX = 600.0
TICK_SECONDS = 2.0

M = TypeVar("M", bound=Message)
Moved = Callable[[int, int], None]
"""Hears how many bytes of how many have gone, or come, and every few seconds that it goes on."""
Name = Callable[[File], str]
"""What a file is called that comes, in its folder."""


def contents_bytes(files: Iterable[File]) -> int:
    """What files hold, each contents counted once."""
    return sum({file.hash: file.size for file in files}.values())


class FileLink:
    """One list of files, one way. Raises PoolUnreachable, PoolRefused."""

    def __init__(self, service: Service, moved: Moved = lambda done, total: None) -> None:
        self._service = service
        self._moved = moved
        self._link = pool_link.connect(service, {}, OPEN_SECONDS_MAX, PATH, job_files.MESSAGE_BYTES_MAX)
        self._done = self._total = self._begun = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()

    # What goes

    def offer(self, files: Sequence[File], run: JobRun | None = None, left: Sequence[str] = ()) -> list[File]:
        """Those whose contents the pool wants, of which none is twice among them. Raises ForebayError."""
        offer = job_files.Offer(files=tuple(files), run=run, left=folder.shortened(left))
        text = offer.encode()
        if len(text.encode()) > job_files.MESSAGE_BYTES_MAX:
            raise ForebayError("The names of the files are too long together. Name what is not needed in .forebayignore.")
        self._send(text)
        wanted = self._hear(Wanted)
        self._begun = wanted.begun
        try:
            return wanted.of(tuple(files))
        except StreamError as error:
            raise self._service.misread(error) from None

    def send(self, wanted: Sequence[File], pieces: Callable[[File], Iterable[bytes]]) -> str:
        """Sends what is wanted; the name under which the list of files is kept."""
        self._done, self._total = 0, contents_bytes(wanted)
        for file in wanted:
            for piece in pieces(file):
                if rest := piece[self._begun :]:
                    self._send(rest)
                self._begun = max(0, self._begun - len(piece))
                self._count(len(piece))
        return self._hear(job_files.Kept).files

    # What comes

    def ask(self, job: int, which: str) -> Listed:
        """The files that a job began with (``sent``), or left (``results``)."""
        self._send(job_files.Ask.model_validate({"job": job, "which": which}).encode())
        return self._hear(Listed)

    def take(self, listed: Listed, places: Sequence[int], into: Path, name: Name) -> None:
        """Writes files into a folder, each whole or not at all. Raises ForebayError."""
        halves_first = sorted(places, key=lambda place: not (into / _half_of(listed.files[place])).is_file())
        wanted = Wanted(places=tuple(halves_first))
        files = wanted.of(listed.files)
        self._done, self._total = 0, sum(file.size for file in files)
        with _opened(into) as opened:
            for number, file in enumerate(files):
                self._take(opened, file, name(file), None if number else wanted)
            if not files:
                self._send(wanted.encode())

    def _take(self, opened: int, file: File, name: str, wanted: Wanted | None) -> None:
        """``wanted`` is still to be said, with how much of the file is here."""
        half = _half_of(file)
        try:
            written = folder.Written(opened, file.path, file.size, file.hash, file.executable)
            try:
                if wanted is not None:
                    begun = written.go_on(half.name)
                    self._send(wanted.model_copy(update={"begun": begun}).encode())
                    self._count(begun)
                while not written.complete:
                    piece = self._next()
                    if not isinstance(piece, bytes) or not piece:
                        raise self._service.misread(StreamError("a message where contents were awaited"))
                    written.add(piece)
                    self._count(len(piece))
                written.take_name(name)
            finally:
                written.drop(half.name)
        except (folder.NameRefused, folder.ContentsRefused) as error:
            raise ForebayError(f"What came is refused: {error}.") from None
        except OSError as error:
            raise ForebayError(f"{file.path} came and cannot be written: {error.strerror}.") from None

    # Both ways

    def _count(self, count: int) -> None:
        self._done += count
        self._moved(self._done, self._total)

    def _send(self, data: str | bytes) -> None:
        try:
            self._link.send(data)
        except (WebSocketException, OSError):
            raise self._broken() from None

    def _hear(self, kind: type[M]) -> M:
        """The message that is due."""
        text = self._next()
        try:
            if not isinstance(text, str):
                raise StreamError(f"contents where {kind.__name__} was awaited")
            message = job_files.from_pool(text)
            if not isinstance(message, kind):
                raise StreamError(f"{type(message).__name__} where {kind.__name__} was awaited")
        except StreamError as error:
            raise self._service.misread(error) from None
        return message

    def _next(self) -> str | bytes:
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while True:
            try:
                data = self._link.recv(TICK_SECONDS)
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise self._service.unreachable("it says nothing more") from None
                self._moved(self._done, self._total)
            except (WebSocketException, OSError):
                raise self._broken() from None
            else:
                self._check(data)
                return data

    def _check(self, data: str | bytes) -> None:
        """Raises PoolRefused where the pool says why it ends."""
        if isinstance(data, str) and data.startswith('{"type":"denied"'):
            message = job_files.from_pool(data)
            if isinstance(message, job_files.Denied):
                raise PoolRefused(message.why, "files")

    def _broken(self) -> PoolUnreachable | PoolRefused:
        """Why it ended, if that was said before."""
        try:
            while True:
                self._check(self._link.recv(0))
        except PoolRefused as refused:
            return refused
        except (OSError, TimeoutError, WebSocketException):
            return self._service.unreachable("the link broke; what has come is not sent again")


def _half_of(file: File) -> Path:
    """Where a file is, below the folder, of which some has come and the rest broke off."""
    return Path(file.path).with_name(f".forebay-{file.hash[:32]}.half")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A folder, which is made where it is not there. Raises ForebayError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ForebayError(f"{path} cannot be used: {error.strerror}.") from None
    try:
        yield opened
    finally:
        os.close(opened)


@contextlib.contextmanager
def opened(path: Path, bytes_max: int) -> Iterator[Copies]:
    """The files of a folder, as they are sent along. Raises ForebayError."""
    try:
        copies = Copies(path, bytes_max, job_files.FILES_MAX)
    except OSError as error:
        raise ForebayError(f"The folder {path} cannot be read: {error.strerror or error}.") from None
    try:
        yield copies
    finally:
        copies.close()
