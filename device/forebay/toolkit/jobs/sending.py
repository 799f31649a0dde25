"""What `forebay submit` does with the files of the folder: asks where they are many, and sends those that the pool does not have."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from forebay_wire.remote.frames import File

from forebay.errors import ForebayError
from forebay.service import Service
from forebay.service.files.copies import IGNORE_FILE, in_words
from forebay.service.files.file_link import FileLink, contents_bytes, opened
from forebay.toolkit import table
from forebay.toolkit.jobs.transfer_progress import TransferProgress, size

ASKED_BYTES = 200 * 10**6
"""What goes without a question."""


def send(service: Service, path: Path, bytes_max: int, program: str | None, agreed: bool) -> str:
    """Sends the files of a folder; the name under which they are kept. Raises ForebayError.

    ``program`` is the file below it that a job is to run, if it is one. ``agreed``: nobody is asked.
    """
    with opened(path, bytes_max) as copies:
        if program is not None and program not in (file.path for file in copies.files):
            raise ForebayError(f"{program} is not sent: {IGNORE_FILE} names it, or it is no regular file.")
        if copies.left:
            sys.stderr.write(f"forebay: not sent: {in_words(copies.left)}\n")
        with FileLink(service, TransferProgress("sending")) as link:
            wanted = link.offer(copies.files)
            _ask(wanted, agreed)
            name = link.send(wanted, copies.pieces)
        files, sent = table.counted(len(copies.files), "file"), size(contents_bytes(wanted))
        sys.stderr.write(f"forebay: {files} of this folder go along; {sent} had to be sent.\n")
        return name


def _ask(wanted: Sequence[File], agreed: bool) -> None:
    """Raises ForebayError where somebody would have to agree, and does not."""
    count = contents_bytes(wanted)
    if agreed or count <= ASKED_BYTES:
        return
    largest = ", ".join(f"{file.path} ({size(file.size)})" for file in sorted(wanted, key=lambda file: -file.size)[:3])
    what = f"{size(count)} would be sent, of which most in {largest}"
    if not sys.stdin.isatty():
        raise ForebayError(f"{what}. Name what is not needed in {IGNORE_FILE}, or say --yes.")
    sys.stderr.write(f"forebay: {what}.\nSend it? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ForebayError(f"Nothing is sent, and nothing submitted. Name what is not needed in {IGNORE_FILE}.")
