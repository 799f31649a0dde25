"""The link by which the files of jobs go to the pool and come from it: ``docs/wire.md``, Files of jobs.

It is a WebSocket. Messages are text, in JSON. Contents are binary, in pieces of at most :data:`PIECE_BYTES`; the pieces of a file end where
its size is reached.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from forebay_wire.message_parts import Count, Hex256, Message, Text
from forebay_wire.remote import folder, frames
from forebay_wire.remote.frames import PIECE_BYTES, File, StreamError, message_of

FILES_MAX = 20_000
MESSAGE_BYTES_MAX = 8 * 2**20
"""Of one message; a list of files is the longest."""

__all__ = ["FILES_MAX", "MESSAGE_BYTES_MAX", "PIECE_BYTES", "Ask", "Denied", "JobRun", "Kept", "Listed", "Offer", "Wanted"]

_Files = Annotated[tuple[File, ...], Field(max_length=FILES_MAX)]
_Left = Annotated[tuple[Text, ...], Field(max_length=folder.LEFT_MAX)]


class Wanted(frames.Wanted):
    """As there; of the first of these files the first ``begun`` bytes are there already, and do not come."""

    begun: Count = 0

    def of(self, files: tuple[File, ...]) -> list[File]:
        """Raises StreamError for a place that the list does not have, and for more bytes than the first file has."""
        found = super().of(files)
        if self.begun > (found[0].size if found else 0):
            raise StreamError(f"{self.begun} bytes of a file that has fewer")
        return found


class JobRun(Message):
    """A run that leaves files: of the job with this number, by the runner that has it."""

    job: Count
    key: Annotated[str, Field(min_length=32, max_length=64, pattern="^[0-9a-f]+$")]


class Offer(Message):
    """The files of a folder; answered by :class:`Wanted`, and once all that is wanted has come by :class:`Kept`."""

    type: Literal["offer"] = "offer"
    files: _Files
    run: JobRun | None = None
    """Where these are what a run wrote; None: what a job is to begin with."""
    left: _Left = ()
    """What is not sent, and why, each a sentence."""


class Ask(Message):
    """Which files a job began with, or left; answered by :class:`Listed`."""

    type: Literal["ask"] = "ask"
    job: Count
    which: Literal["sent", "results"]


class Listed(Message):
    """The files that were asked for; answered by :class:`Wanted`, after which their contents come."""

    type: Literal["listed"] = "listed"
    files: _Files
    left: _Left = ()


class Kept(Message):
    """All contents are there. ``files`` names the list from now on, among those of the same member."""

    type: Literal["kept"] = "kept"
    files: Hex256


class Denied(Message):
    """The pool ends the link, and says why."""

    type: Literal["denied"] = "denied"
    why: Text


FromClient = Offer | Ask | Wanted
FromPool = Wanted | Kept | Listed | Denied

_FROM_CLIENT: TypeAdapter[FromClient] = TypeAdapter(Annotated[FromClient, Field(discriminator="type")])
_FROM_POOL: TypeAdapter[FromPool] = TypeAdapter(Annotated[FromPool, Field(discriminator="type")])


def from_client(text: str) -> FromClient:
    """Raises StreamError."""
    return message_of(_FROM_CLIENT, text)


def from_pool(text: str) -> FromPool:
    """Raises StreamError."""
    return message_of(_FROM_POOL, text)


def name_of(files: Iterable[File]) -> str:
    """The name of a list, whatever its order: SHA-256 of its files, each as JSON on a line."""
    lines = sorted(file.encode() for file in files)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def check(files: Iterable[File]) -> None:
    """Raises NameRefused for paths that lead out of the folder, and for two of which one would be in the place of the other."""
    seen: set[tuple[str, ...]] = set()
    for file in files:
        parts = tuple(folder.parts_of(file.path))
        if parts in seen:
            raise folder.NameRefused(f"{file.path} is there twice")
        seen.add(parts)
    for parts in seen:
        if any(parts[:end] in seen for end in range(1, len(parts))):
            raise folder.NameRefused(f"{'/'.join(parts)} is below what is a file")

