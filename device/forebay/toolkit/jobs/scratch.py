"""The folder of a job that brought its files: made from them for its first run, kept from run to run, removed once the job is over."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from forebay_wire.remote import job_files
from forebay_wire.remote.frames import File
from forebay_wire.remote.job_files import JobRun, Listed
from pydantic import ValidationError

from forebay.errors import ForebayError, PoolRefused, PoolUnreachable
from forebay.service import Service
from forebay.service.files.copies import Copies
from forebay.service.files.file_link import FileLink

RESULT_BYTES_MAX = 2**40
"""The pool's own bound is lower."""
REMOVED_MAX = 50
OVER = ("succeeded", "failed", "cancelling", "cancelled")


def folders() -> Path:
    """Where they are, in the home of the user whose jobs they are."""
    return Path.home() / ".forebay" / "jobs"


class Scratch:
    """Of one job. ``tick`` is called again and again while files go or come."""

    def __init__(self, job: Mapping[str, Any], service: Service, tick: Callable[[], None]) -> None:
        self._number, self._service = int(job["id"]), service
        self._moved = lambda done, total: tick()
        self._above = folders() / str(self._number)
        self._list = self._above / "sent.json"
        self.path = self._above / "files"

    def fill(self) -> None:
        """Has the files of the job be there; what an earlier run wrote stays. Raises ForebayError."""
        self._forget_others()
        if self._sent() is not None:
            return
        try:
            shutil.rmtree(self._above, ignore_errors=True)
            self._above.mkdir(mode=0o700, parents=True)
            self.path.mkdir()
            with FileLink(self._service, self._moved) as link:
                listed = link.ask(self._number, "sent")
                link.take(listed, range(len(listed.files)), self.path, lambda file: file.path.rpartition("/")[2])
            made = self._list.with_suffix(".new")
            made.write_text(listed.encode(), encoding="utf-8")
            made.replace(self._list)
        except OSError as error:
            raise ForebayError(f"The job's folder {self._above} cannot be made: {error.strerror}.") from None

    def _sent(self) -> Listed | None:
        """What the job began with, once all of that has come."""
        try:
            return Listed.model_validate_json(self._list.read_text(encoding="utf-8"))
        except (OSError, ValidationError):
            return None

    def _forget_others(self) -> None:
        """Removes the folders of jobs that came to their end without their runner."""
        with contextlib.suppress(OSError):
            others = [path for path in folders().iterdir() if path.name.isdecimal() and path != self._above]
            for path in sorted(others)[:REMOVED_MAX]:
                if self._is_over(int(path.name)):
                    shutil.rmtree(path, ignore_errors=True)

    def _is_over(self, number: int) -> bool:
        try:
            return self._service.get(f"api/jobs/{number}")["state"] in OVER
        except PoolRefused as error:
            return error.status == 404
        except (PoolUnreachable, KeyError, TypeError):
            return False

    def send_back(self, key: str) -> int:
        """Sends what a run wrote, files that are new or other than they came; how many. Raises ForebayError."""
        sent = self._sent()
        before = {} if sent is None else {file.path: file for file in sent.files}
        try:
            copies = Copies(self.path, RESULT_BYTES_MAX, job_files.FILES_MAX + len(before), results=True)
        except OSError as error:
            raise ForebayError(f"{self.path} cannot be read: {error.strerror}.") from None
        try:
            changed = [file for file in copies.files if before.get(file.path) != file]
            self._send(copies, changed, key)
        finally:
            copies.close()
        return len(changed)

    def _send(self, copies: Copies, changed: list[File], key: str) -> None:
        if len(changed) > job_files.FILES_MAX:
            raise ForebayError(f"There are more than {job_files.FILES_MAX} of them.")
        with FileLink(self._service, self._moved) as link:
            wanted = link.offer(changed, JobRun(job=self._number, key=key), copies.left)
            link.send(wanted, copies.pieces)

    def remove(self) -> None:
        """Once the job is over, and what it wrote is sent."""
        shutil.rmtree(self._above, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(folders())
