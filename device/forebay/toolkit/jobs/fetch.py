"""``forebay jobs fetch``: what a job wrote into the folder that it was given."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from forebay_wire.remote import folder
from forebay_wire.remote.frames import File

from forebay.errors import ForebayError
from forebay.service import Service
from forebay.toolkit import table
from forebay.toolkit.jobs.file_link import FileLink
from forebay.toolkit.jobs.transfer_progress import TransferProgress, size
from forebay.toolkit.remote.copies import in_words


def add_to(action: argparse.ArgumentParser) -> None:
    """Adds the subcommand's arguments."""
    action.add_argument("--into", type=Path, metavar="DIR", help="the folder to write into; without it job-NUMBER, which is made")


def fetch(service: Service, job: int, into: Path) -> int:
    """Writes what the job left into a folder; files that are there already with the same contents are not fetched. Raises ForebayError."""
    with FileLink(service, TransferProgress("fetching")) as link:
        listed = link.ask(job, "results")
        try:
            places = [place for place, file in enumerate(listed.files) if not _is_there(into, file)]
        except folder.NameRefused as refused:
            raise ForebayError(f"The pool told of what is no file of a folder: {refused}.") from None
        aside: list[str] = []

        def name_of(file: File) -> str:
            name = file.path.rpartition("/")[2]
            if not (into / file.path).is_symlink() and not (into / file.path).exists():
                return name
            aside.append(f"{file.path} is another file here, and stays; the job's is beside it as {name}.from-job-{job}")
            return f"{name}.from-job-{job}"

        link.take(listed, places, into, name_of)
    for told in (listed.left, aside):
        if told:
            sys.stderr.write(f"forebay: {in_words(told)}\n")
    count, had = table.counted(len(listed.files), "file"), len(listed.files) - len(places)
    already = f"; {had:,} were there already" if had else ""
    sys.stdout.write(f"Job {job} left {count}, {size(sum(file.size for file in listed.files))}, now in {into}{already}.\n")
    return 0


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
