"""Jobs, their output and their schedules as rows of the HTTP interface."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from forebay_pool.model.jobs import Job, JobReason, Kind, Notify, Program, Schedule
from forebay_pool.store.job_output import Piece

ShownState = Literal["queued", "starting", "running", "succeeded", "failed", "cancelling", "cancelled"]

SENTENCES: dict[JobReason, str] = {
    "exit_status": "The program ended with status {exit_status}.",
    "unstartable": "The program could not be started; what the run printed says why.",
    "time_limit": "It ran for {time_limit_seconds} s, the longest that it was to run, and was ended.",
    "budget": "A budget is used up.",
    "worker_lost": "The worker that held its tensors was lost.",
    "server_lost": "The process that ran it is gone, as after a host was lost.",
    "server_stopped": "The server that it ran in was stopped.",
    "not_started": "JupyterHub could not start a server for it.",
    "silent": "The process that ran it was not heard of any more.",
    "refused": "JupyterHub starts no server for this user any more.",
    "older_release": "Its server's forebay is of an older release, which takes no files along; `forebay update` in a notebook helps.",
    "by_user": "Its user cancelled it.",
    "by_other": "An owner of the tenant, or an operator, cancelled it.",
}


class ProgramRow(TypedDict):
    """``folder`` and ``file`` are relative to the user's home, where ``environment`` is looked for; ``label`` is what usage calls it, and
    ``notify`` is null where the user's preference says it. Where ``files`` is not null, it has a folder of its own in place of the home, in
    which the files of that list are."""

    id: int
    tenant: str
    user: str
    name: str
    kind: Kind
    file: str
    arguments: list[str]
    folder: str
    flavor: str | None
    retries_max: int
    time_limit_seconds: int | None
    notify: Notify | None
    environment: str | None
    files: str | None
    created_at_ns: int


class JobRow(ProgramRow):
    """``attempt`` counts its runs. ``reason`` is a word for programs, ``sentence`` says it to people."""

    state: ShownState
    label: str
    attempt: int
    not_before_ns: int
    started_at_ns: int | None
    ended_at_ns: int | None
    exit_status: int | None
    reason: str | None
    sentence: str | None
    schedule: int | None


class ScheduleRow(ProgramRow):
    """``skipped_at_ns``: when it last came due while its job before was not over. ``label``: as it was given."""

    label: str | None
    cron: str
    zone: str
    next_at_ns: int
    skipped_at_ns: int | None


class PieceRow(TypedDict):
    number: int
    text: str


class OutputRow(TypedDict):
    """``next`` is the number to ask for what comes after; where the first piece's number is higher than was asked for, some are dropped.

    ``over``: no more comes of this run, and no other run follows.
    """

    attempt: int
    pieces: list[PieceRow]
    next: int
    over: bool


def _program_row(of: Job | Schedule) -> ProgramRow:
    program: Program = of.program
    return {
        "id": of.id,
        "tenant": of.tenant,
        "user": of.user,
        "name": program.name,
        "kind": program.kind,
        "file": program.file,
        "arguments": list(program.arguments),
        "folder": program.folder,
        "flavor": program.flavor,
        "retries_max": program.retries_max,
        "time_limit_seconds": program.time_limit_seconds,
        "notify": program.notify,
        "environment": program.environment,
        "files": program.files,
        "created_at_ns": of.created_ns,
    }


def sentence_of(reason: JobReason | None, exit_status: int | None, time_limit_seconds: int | None) -> str | None:
    """Why a job is not running, or is to run again."""
    return None if reason is None else SENTENCES[reason].format(exit_status=exit_status, time_limit_seconds=time_limit_seconds)


def job_row(job: Job) -> JobRow:
    return {
        **_program_row(job),
        "state": "cancelling" if job.state == "cancelled" and job.server else job.state,
        "label": job.label,
        "attempt": job.attempt,
        "not_before_ns": job.not_before_ns,
        "started_at_ns": job.started_ns,
        "ended_at_ns": job.since_ns if job.over else None,
        "exit_status": job.exit_status,
        "reason": job.reason,
        "sentence": sentence_of(job.reason, job.exit_status, job.program.time_limit_seconds),
        "schedule": job.schedule,
    }


def schedule_row(schedule: Schedule) -> ScheduleRow:
    return {
        **_program_row(schedule),
        "label": schedule.program.label,
        "cron": schedule.cron,
        "zone": schedule.zone,
        "next_at_ns": schedule.next_ns,
        "skipped_at_ns": schedule.skipped_ns,
    }


def output_row(job: Job, attempt: int, pieces: list[Piece], after: int) -> OutputRow:
    rows: list[PieceRow] = [{"number": piece.number, "text": piece.text} for piece in pieces]
    over = not pieces and (attempt < job.attempt or (job.over and not (job.state == "cancelled" and job.server)))
    return {"attempt": attempt, "pieces": rows, "next": pieces[-1].number if pieces else after, "over": over}
