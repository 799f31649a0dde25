"""Unattended runs: what a job is, and every way that it can go from one state to the next. Pure.

A job runs in a server of its own that JupyterHub starts as its user (``job-ID``). Whether that server may still be there is kept apart from
the job's state (``Job.server``): a job is not run again before JupyterHub has said that its server is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from forebay_pool.errors import JobConflict

JobState = Literal["queued", "starting", "running", "succeeded", "failed", "cancelled"]
Kind = Literal["script", "module", "notebook"]
JobReason = Literal[
    "exit_status", "unstartable", "time_limit", "budget", "refused", "older_release", "by_user", "by_other",
    "worker_lost", "server_lost", "server_stopped", "not_started", "silent",
]  # fmt: skip
"""Why a job is not running any more, or is to run again."""
Notify = Literal["none", "failures", "all"]
"""Of what becomes of a job its user is told: of nothing; that it failed, or is stopped by a budget; of its end and of repeated runs too."""
NoticeKind = Literal["ended", "failed", "budget", "retried"]
LOSSES: tuple[JobReason, ...] = ("worker_lost", "server_lost", "server_stopped", "not_started", "silent")
"""What is no fault of the program's: it is run again."""

RETRY_SECONDS_FIRST = 10
RETRY_SECONDS_MAX = 600
"""The pause before a run is repeated doubles from the first to the longest."""
HUB_AWAY_SECONDS = 5
"""A job that JupyterHub could not be told of waits so long."""
START_SECONDS_MAX = 180
"""A server whose runner has not asked for its job by then is given up: JupyterHub's own limits are shorter."""
SILENCE_SECONDS_MAX = 120
"""A runner that says nothing for so long is given up; it speaks every few seconds."""
_NS = 10**9


@dataclass(frozen=True, slots=True)
class Program:
    """What a job runs. ``folder`` and ``file`` are relative to the user's home; a module's ``file`` is its name."""

    kind: Kind
    file: str
    arguments: tuple[str, ...]
    folder: str
    name: str
    flavor: str | None
    retries_max: int
    """How often it is run again after a loss."""
    time_limit_seconds: int | None
    """Of each run."""
    notify: Notify | None = None
    """None: as the user prefers."""
    environment: str | None = None
    """Whose packages it has, of those in the user's home; None: of a notebook that of its kernel, else the one in use there."""
    label: str | None = None
    """What usage calls its work; None: the job, by its number and name."""
    files: str | None = None
    """The list of files that it begins with, in a folder of its own in place of the user's home; None: it runs in the home."""


@dataclass(frozen=True, slots=True)
class Job:
    """Times are Unix time. ``key`` is the secret of the runner that has the job, so that no earlier one speaks for it."""

    id: int
    tenant: str
    user: str
    program: Program
    created_ns: int
    state: JobState = "queued"
    attempt: int = 0
    """Which run this is, from 1; 0 before the first."""
    not_before_ns: int = 0
    since_ns: int = 0
    """When it came into its state."""
    started_ns: int | None = None
    """When its first run began."""
    heard_ns: int | None = None
    """When its runner last spoke."""
    server: bool = False
    """Whether JupyterHub may have a server for it."""
    key: str | None = None
    reason: JobReason | None = None
    exit_status: int | None = None
    schedule: int | None = None

    @property
    def server_name(self) -> str:
        return f"job-{self.id}"

    @property
    def label(self) -> str:
        """What usage calls it."""
        return self.program.label or f"job {self.id}: {self.program.name}"

    @property
    def over(self) -> bool:
        return self.state in ("succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Schedule:
    """Repeats a program at the times of ``cron`` in the time zone ``zone``."""

    id: int
    tenant: str
    user: str
    program: Program
    cron: str
    zone: str
    created_ns: int
    next_ns: int
    skipped_ns: int | None
    """When it last came due while its job before was not over."""


@dataclass(frozen=True, slots=True)
class JobLimits:
    """How many jobs there may be."""

    running_max: int
    running_per_user_max: int
    waiting_per_user_max: int
    schedules_per_user_max: int
    kept_per_user_max: int
    output_run_bytes_max: int
    output_job_bytes_max: int
    output_user_bytes_max: int
    output_bytes_max: int


@dataclass(frozen=True, slots=True)
class FileLimits:
    """What files that go along with jobs, and those that jobs leave, may take."""

    user_bytes_max: int
    keep_seconds: float
    """For how long stays what a job left, and what was sent and no job needs."""
    free_bytes_min: int
    """Of the disk that they are on."""


def started(job: Job, now_ns: int) -> Job:
    """JupyterHub is asked for a server."""
    return replace(job, state="starting", attempt=job.attempt + 1, since_ns=now_ns, server=True, key=None, heard_ns=None, exit_status=None)


def put_back(job: Job, now_ns: int) -> Job:
    """JupyterHub could not be asked; whether it has heard of the server is found out before the next try."""
    later_ns = now_ns + HUB_AWAY_SECONDS * _NS
    return replace(job, state="queued", attempt=job.attempt - 1, since_ns=now_ns, not_before_ns=later_ns)


def begun(job: Job, key: str, now_ns: int) -> Job:
    """A runner takes the job; it may say so twice. Raises JobConflict."""
    if job.state == "running" and job.key == key:
        return job
    if job.state != "starting":
        raise JobConflict(f"Job {job.id} is {job.state}: no runner is expected.")
    first_ns = now_ns if job.started_ns is None else job.started_ns
    return replace(job, state="running", key=key, since_ns=now_ns, started_ns=first_ns, heard_ns=now_ns, reason=None)


def outdated(job: Job, now_ns: int) -> Job:
    """The runner that came for it is of a release that would run it without its files."""
    return closed(job, "failed", "older_release", now_ns) if job.state == "starting" else job


def heard(job: Job, key: str, now_ns: int) -> Job:
    """Its runner speaks. Raises JobConflict for any other."""
    if job.key != key or not job.server:
        raise JobConflict(f"This run of job {job.id} is over.")
    return replace(job, heard_ns=now_ns)


def ended(job: Job, key: str, exit_status: int | None, reason: JobReason | None, now_ns: int) -> Job:
    """Its runner says how the program ended. Raises JobConflict."""
    job = heard(job, key, now_ns)
    if job.state != "running":  # cancelled meanwhile, or said twice
        return job
    job = replace(job, exit_status=exit_status)
    if reason in LOSSES:
        return lost(job, reason, now_ns)
    return closed(job, "succeeded" if exit_status == 0 and reason is None else "failed", reason, now_ns)


def lost(job: Job, reason: JobReason, now_ns: int) -> Job:
    """A run was lost: the job is queued again, or has failed where it was lost too often."""
    if job.attempt > job.program.retries_max:
        return replace(closed(job, "failed", reason, now_ns), key=None)
    pause_seconds = min(RETRY_SECONDS_MAX, RETRY_SECONDS_FIRST * 2 ** (job.attempt - 1))
    return replace(job, state="queued", reason=reason, key=None, since_ns=now_ns, not_before_ns=now_ns + pause_seconds * _NS)


def cancelled(job: Job, by_owner: bool, now_ns: int) -> Job:
    """Somebody wants it no more. Raises JobConflict where it is over."""
    if job.over:
        raise JobConflict(f"Job {job.id} has {job.state} already." if job.state != "cancelled" else f"Job {job.id} is cancelled already.")
    return closed(job, "cancelled", "by_user" if by_owner else "by_other", now_ns)


def closed(job: Job, state: JobState, reason: JobReason | None, now_ns: int) -> Job:
    """It is over; its server, if it has one, is still to be stopped."""
    return replace(job, state=state, reason=reason, since_ns=now_ns)


def gone(job: Job) -> Job:
    """JupyterHub says that its server is there no more."""
    return replace(job, server=False)


def notice_kind(before: Job, after: Job) -> NoticeKind | None:
    """What its user may want to be told of, where a job became another; what they did themselves is known to them."""
    if after.over and not before.over:
        if after.state == "cancelled":
            return None if after.reason == "by_user" else "failed"
        return "ended" if after.state == "succeeded" else "budget" if after.reason == "budget" else "failed"
    again = before.state in ("starting", "running") and after.state == "queued" and after.attempt == before.attempt
    return "retried" if again else None


def overdue(job: Job, silent_seconds: float) -> bool:
    """Whether its runner has been silent for too long."""
    if job.state == "starting":
        return silent_seconds > START_SECONDS_MAX
    return job.state == "running" and silent_seconds > SILENCE_SECONDS_MAX


class Silences:
    """For how long runners have said nothing, by looks now and then and a clock that only runs forward; what somebody wrote down is a
    date, and dates may be set. A runner is silent from the first look on that finds no news of it."""

    def __init__(self, clock_seconds: Callable[[], float]) -> None:
        self._clock_seconds = clock_seconds
        self._last: dict[int, tuple[tuple[object, ...], float]] = {}
        """By job, what it was last found to be, and since when."""

    def of(self, job: Job) -> float:
        """For how long nothing was heard of the job's runner, in seconds."""
        found, now = (job.state, job.attempt, job.since_ns, job.heard_ns), self._clock_seconds()
        known = self._last.get(job.id)
        if known is None or known[0] != found:
            known = self._last[job.id] = (found, now)
        return now - known[1]

    def forget_but(self, jobs: Iterable[Job]) -> None:
        """Others are over."""
        kept = {job.id for job in jobs}
        self._last = {id: known for id, known in self._last.items() if id in kept}
