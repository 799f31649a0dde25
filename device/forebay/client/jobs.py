"""What runs without its user being there: jobs, what they print, and schedules that repeat them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from forebay.client.calls import Calls, refusals, segment
from forebay.client.models.pool import JobRow, OutputRow, ScheduleRow

Kind = Literal["script", "module", "notebook"]
Notify = Literal["none", "failures", "all"]
WAIT_SECONDS = 8
"""How long the pool holds a question for output that is not there yet; less than an answer may take."""


class JobCalls(Calls):
    """Calls to the pool."""

    def jobs(self, *, limit: int = 50, before: int | None = None, everybody: bool = False) -> list[JobRow]:
        """Jobs, the newest first. ``before`` is the id of the last one of the page before; ``everybody``: all of the tenant's, for its
        owners, or all there are, for operators."""
        return self._read(list[JobRow], self._pool, "api/jobs", limit=limit, before=before, everybody=everybody)

    def job(self, job: int) -> JobRow:
        """A job."""
        return self._read(JobRow, self._pool, f"api/jobs/{segment(job)}")

    def submit(
        self, file: str, arguments: Sequence[str] = (), *, kind: Kind = "script", folder: str = "", name: str | None = None,
        flavor: str | None = None, retries_max: int | None = None, time_limit_seconds: int | None = None, notify: Notify | None = None,
        environment: str | None = None, label: str | None = None,
        files: str | None = None,
    ) -> JobRow:  # fmt: skip
        """Has a program run once. ``file`` is a script or notebook, and ``folder`` where it runs, both relative to the user's home; of a
        module ``file`` is its name. ``environment`` is one of the user's own; without it that of a notebook's kernel, else the one in use
        there. After a loss it is run again, at most ``retries_max`` times (3). ``notify``: of what the user's channels are told; None as
        they prefer. ``label``: what usage calls its work, for which budgets of that label hold; None: its number and name.
        ``files``: what :meth:`send_files` answered, and the paths are relative to that folder then."""
        bounds = {"retries_max": retries_max, "time_limit_seconds": time_limit_seconds, "notify": notify, "environment": environment}
        more = {"name": name, "flavor": flavor, "label": label, "files": files}
        body = _program(file, arguments, kind=kind, folder=folder, **more, **bounds)
        return self._change(JobRow, self._pool, "POST", "api/jobs", body)

    def send_files(self, folder: Path | str = ".", *, bytes_max: int = 2 * 2**30) -> str:
        """Sends the files of a folder that jobs are to begin with, as `forebay submit --upload` does; their name for :meth:`submit`."""
        from forebay.service.files.file_link import FileLink, opened  # what few programs need

        with refusals(), opened(Path(folder), bytes_max) as copies, FileLink(self._pool) as link:
            return link.send(link.offer(copies.files), copies.pieces)

    def fetch_files(self, job: int, into: Path | str) -> list[Path]:
        """Writes what a job left that began with :meth:`send_files` into a folder, which is made. The files that were not there yet: one
        that is another there stays, and the job's is beside it."""
        from forebay.service.files.fetch import Fetch  # as above

        with refusals():
            return Fetch(self._pool, job, Path(into)).perform()

    def cancel_job(self, job: int) -> JobRow:
        """Ends a job, or has it never start."""
        return self._change(JobRow, self._pool, "POST", f"api/jobs/{segment(job)}/cancel", {})

    def job_output(self, job: int, *, attempt: int | None = None, after: int = 0, wait_seconds: int = 0) -> OutputRow:
        """The next pieces that a run printed, the newest run if none is named; where there are none they are waited for so long, 8 s at
        most. ``after`` is ``next`` of the answer before."""
        asked = {"attempt": attempt, "after": after, "wait_seconds": wait_seconds}
        return self._read(OutputRow, self._pool, f"api/jobs/{segment(job)}/output", **asked)

    def follow_job(self, job: int, *, attempt: int | None = None) -> Iterator[str]:
        """What a run prints, as it does, until it is over."""
        after, over = 0, False
        while not over:
            answer = self.job_output(job, attempt=attempt, after=after, wait_seconds=WAIT_SECONDS)
            yield from (piece.text for piece in answer.pieces)
            attempt, after, over = answer.attempt, answer.next, answer.over

    def schedules(self, *, everybody: bool = False) -> list[ScheduleRow]:
        """What is run again and again; ``everybody`` as for :meth:`jobs`."""
        return self._read(list[ScheduleRow], self._pool, "api/schedules", everybody=everybody)

    def schedule(
        self, cron: str, file: str, arguments: Sequence[str] = (), *, zone: str = "UTC", kind: Kind = "script", folder: str = "",
        name: str | None = None, flavor: str | None = None, retries_max: int | None = None, time_limit_seconds: int | None = None,
        notify: Notify | None = None, environment: str | None = None, label: str | None = None,
        files: str | None = None,
    ) -> ScheduleRow:  # fmt: skip
        """Has a program run at the times of ``cron`` (minute, hour, day of month, month, weekday) in the time zone ``zone``; the rest as
        for :meth:`submit`."""
        bounds = {"retries_max": retries_max, "time_limit_seconds": time_limit_seconds, "notify": notify, "environment": environment}
        more = {"name": name, "flavor": flavor, "label": label, "files": files}
        body = _program(file, arguments, kind=kind, folder=folder, **more, **bounds)
        return self._change(ScheduleRow, self._pool, "POST", "api/schedules", {**body, "cron": cron, "zone": zone})

    def remove_schedule(self, schedule: int) -> None:
        """Has it start nothing more; a job of it that runs goes on."""
        self._change(type(None), self._pool, "DELETE", f"api/schedules/{segment(schedule)}", None)


def _program(file: str, arguments: Sequence[str], **more: Any) -> dict[str, Any]:
    return {"file": file, "arguments": list(arguments), **more}
