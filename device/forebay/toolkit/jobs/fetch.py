"""``forebay jobs fetch``: what a job wrote into the folder that it was given."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from forebay_wire.remote import folder
from forebay_wire.remote.frames import File
from forebay_wire.remote.job_files import Listed

from forebay.errors import ForebayError
from forebay.service import Service
from forebay.toolkit import table
from forebay.toolkit.jobs.file_link import FileLink, Moved
from forebay.toolkit.jobs.transfer_progress import TransferProgress, size
from forebay.toolkit.remote.copies import in_words


def add_to(action: argparse.ArgumentParser) -> None:
    """Adds the subcommand's arguments."""
    action.add_argument("--into", type=Path, metavar="DIR", help="the folder to write into; without it job-NUMBER, which is made")


def fetch(service: Service, job: int, into: Path) -> int:
    """Writes what a job left into a folder, and says what that was. Raises ForebayError."""
    found = Fetch(service, job, into, TransferProgress("fetching"))
    written = found.perform()
    for told in (found.listed.left, found.aside):
        if told:
            sys.stderr.write(f"forebay: {in_words(told)}\n")
    files = found.listed.files
    count, had = table.counted(len(files), "file"), len(files) - len(written)
    already = f"; {had:,} were there already" if had else ""
    sys.stdout.write(f"Job {job} left {count}, {size(sum(file.size for file in files))}, now in {into}{already}.\n")
    return 0


class Fetch:
    """What a job left, on its way into a folder. Files that are there already with the same contents are not fetched again."""

    def __init__(self, service: Service, job: int, into: Path, moved: Moved = lambda done, total: None) -> None:
        self._service, self._job, self._into, self._moved = service, job, into, moved
        self.listed = Listed(files=())
        """All that it left."""
        self.aside: list[str] = []
        """Where files are that could not have their own names, in sentences."""
        self._written: list[Path] = []

    def perform(self) -> list[Path]:
        """The files that were written. Raises ForebayError."""
        with FileLink(self._service, self._moved) as link:
            self.listed = link.ask(self._job, "results")
            try:
                places = [place for place, file in enumerate(self.listed.files) if not _is_there(self._into, file)]
            except folder.NameRefused as refused:
                raise ForebayError(f"The pool told of what is no file of a folder: {refused}.") from None
            link.take(self.listed, places, self._into, self._name_of)
        return self._written

    def _name_of(self, file: File) -> str:
        """A file that is another here stays."""
        path = self._into / file.path
        if path.is_symlink() or path.exists():
            path = path.with_name(f"{path.name}.from-job-{self._job}")
            self.aside.append(f"{file.path} is another file here, and stays; the job's is beside it as {path.name}")
        self._written.append(path)
        return path.name


def _is_there(into: Path, file: File) -> bool:
    """Whether the file has the job's contents here already. Raises NameRefused."""
    folder.parts_of(file.path)
    path = into / file.path
    try:
        if path.is_symlink() or path.stat().st_size != file.size:
            return False
        with path.open("rb") as opened:
            return folder.hash_of(opened.fileno(), file.size) == file.hash
    except OSError:
        return False
