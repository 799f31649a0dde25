"""``forebay jobs fetch``: what a job wrote into the folder that it was given."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from forebay.service import Service
from forebay.toolkit import table
from forebay.toolkit.jobs.transfer_progress import TransferProgress, size


def add_to(action: argparse.ArgumentParser) -> None:
    """Adds the subcommand's arguments."""
    action.add_argument("--into", type=Path, metavar="DIR", help="the folder to write into; without it job-NUMBER, which is made")


def fetch(service: Service, job: int, into: Path) -> int:
    """Writes what a job left into a folder, and says what that was. Raises ForebayError."""
    from forebay.service.files.copies import in_words
    from forebay.service.files.fetch import Fetch

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
