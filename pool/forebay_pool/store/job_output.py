"""What runs of jobs print, as the database keeps it: within bounds of bytes, for each run, job and user and for the installation.

A piece counts with its bytes in UTF-8 and with what a row takes, so that many small pieces are bounded like few long ones.
Where a bound is reached the oldest output is dropped, and a line in its place says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update

from forebay_pool.model.jobs import Job, JobLimits
from forebay_pool.store.tables import JOB_OUTPUT, JOB_RUNS

ROW_BYTES = 64
"""What a piece takes beside its text."""
LINE_BYTES_MAX = 256
"""Of a line that stands for dropped output, its row included. A run that holds no more has nothing left to drop."""
PIECES_CUT = 64
"""Pieces that are looked at together when a run is cut."""
RUNS_LISTED = 64
"""Runs of a user that are looked at together when the installation is full."""
SLACK = 16
"""A full installation drops a sixteenth more than it must, since it is costly to find out who holds most."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of what a run printed, by its number from 1."""

    number: int
    text: str

    @property
    def cost_bytes(self) -> int:
        """What it counts."""
        return ROW_BYTES + len(self.text.encode())


@dataclass(frozen=True, slots=True)
class _Run:
    """What is kept of a run: how many bytes, and up to which piece."""

    job: int
    attempt: int
    bytes: int
    last: int


class KeptOutput:
    """Appends and drops, in the transactions of :class:`forebay_pool.store.jobs.JobStore`, which are made on one thread."""

    def __init__(self, limits: JobLimits) -> None:
        self._limits = limits
        self._total_bytes: int | None = None
        """At least what all runs hold; None before it was counted."""

    def append(self, connection: Connection, job: Job, pieces: Sequence[Piece]) -> bool:
        """Keeps the pieces of the job's present run that are new; whether there are any. Empty pieces are nothing."""
        run = (JOB_RUNS.c.job == job.id) & (JOB_RUNS.c.attempt == job.attempt)
        known = connection.execute(select(JOB_RUNS.c.last).where(run)).scalar_one_or_none()
        new = {piece.number: piece for piece in pieces if piece.text and piece.number > (known or 0)}
        if not new:
            return False
        added_bytes = sum(piece.cost_bytes for piece in new.values())
        here = {"job": job.id, "attempt": job.attempt}
        rows = [{**here, "number": piece.number, "text": piece.text, "bytes": piece.cost_bytes} for piece in new.values()]
        connection.execute(insert(JOB_OUTPUT), rows)
        if known is None:
            of = {"tenant": job.tenant, "user": job.user, "bytes": added_bytes, "last": max(new)}
            connection.execute(insert(JOB_RUNS).values(**here, **of))
        else:
            connection.execute(update(JOB_RUNS).where(run).values(bytes=JOB_RUNS.c.bytes + added_bytes, last=max(new)))
        self._hold_bounds(connection, job)
        self._hold_installation(connection, added_bytes)
        return True

    def _hold_bounds(self, connection: Connection, job: Job) -> None:
        """Of a job, and of a user, the earlier runs go first, and then the beginning of the present one."""
        limits, of_job = self._limits, JOB_RUNS.c.job == job.id
        of_user = (JOB_RUNS.c.tenant == job.tenant) & (JOB_RUNS.c.user == job.user)
        bounds: tuple[tuple[ColumnElement[bool], int, str], ...] = (
            (of_job & (JOB_RUNS.c.attempt == job.attempt), limits.output_run_bytes_max, "a run"),
            (of_job, limits.output_job_bytes_max, "a job"),
            (of_user, limits.output_user_bytes_max, "a user"),
        )
        for which, most_bytes, what in bounds:
            surplus_bytes = _held_bytes(connection, which) - most_bytes
            if surplus_bytes > 0:
                self._drop(connection, which, surplus_bytes, _line(what, most_bytes))

    def _drop(self, connection: Connection, which: ColumnElement[bool], surplus_bytes: int, line: str) -> None:
        for run in _runs(connection, which):
            freed_bytes = _drop_run(connection, run, line) if run.bytes <= surplus_bytes else _cut_run(connection, run, surplus_bytes, line)
            surplus_bytes -= freed_bytes
            if surplus_bytes <= 0:
                return

    def _hold_installation(self, connection: Connection, added_bytes: int) -> None:
        """The oldest output of those who hold most goes first: who prints little loses nothing by those who print much."""
        most_bytes = self._limits.output_bytes_max
        self._total_bytes = None if self._total_bytes is None else self._total_bytes + added_bytes
        if self._total_bytes is not None and self._total_bytes <= most_bytes:
            return
        sums = select(JOB_RUNS.c.tenant, JOB_RUNS.c.user, func.sum(JOB_RUNS.c.bytes)).group_by(JOB_RUNS.c.tenant, JOB_RUNS.c.user)
        held = {(tenant, user): int(size) for tenant, user, size in connection.execute(sums)}
        total_bytes = sum(held.values())
        goal_bytes = total_bytes if total_bytes <= most_bytes else most_bytes - most_bytes // SLACK
        line = _line("this installation", most_bytes)
        while held and total_bytes > goal_bytes:
            tenant, user = most = max(held, key=lambda one: held[one])
            runs = _runs(connection, (JOB_RUNS.c.tenant == tenant) & (JOB_RUNS.c.user == user), RUNS_LISTED)
            others_bytes = max((size for one, size in held.items() if one != most), default=0)
            for run in runs:
                freed_bytes = _drop_run(connection, run, line)
                total_bytes, held[most] = total_bytes - freed_bytes, held[most] - freed_bytes
                if total_bytes <= goal_bytes or held[most] < others_bytes:
                    break
            if not runs:
                del held[most]
        self._total_bytes = total_bytes


def _held_bytes(connection: Connection, which: ColumnElement[bool]) -> int:
    return int(connection.execute(select(func.coalesce(func.sum(JOB_RUNS.c.bytes), 0)).where(which)).scalar_one())


def _runs(connection: Connection, which: ColumnElement[bool], most: int | None = None) -> list[_Run]:
    """The runs that have something to drop, the oldest first."""
    columns = (JOB_RUNS.c.job, JOB_RUNS.c.attempt, JOB_RUNS.c.bytes, JOB_RUNS.c.last)
    query = select(*columns).where(which, JOB_RUNS.c.bytes > LINE_BYTES_MAX).order_by(JOB_RUNS.c.job, JOB_RUNS.c.attempt).limit(most)
    return [_Run(*row) for row in connection.execute(query)]


def _drop_run(connection: Connection, run: _Run, line: str) -> int:
    """All that is kept of the run; how many bytes that frees."""
    here = (JOB_OUTPUT.c.job == run.job) & (JOB_OUTPUT.c.attempt == run.attempt)
    connection.execute(delete(JOB_OUTPUT).where(here))
    return _put_line(connection, run, run.last, run.bytes, line)


def _cut_run(connection: Connection, run: _Run, surplus_bytes: int, line: str) -> int:
    """The first pieces of the run, but never the last one; how many bytes that frees."""
    here = (JOB_OUTPUT.c.job == run.job) & (JOB_OUTPUT.c.attempt == run.attempt) & (JOB_OUTPUT.c.number < run.last)
    line_bytes = Piece(0, line).cost_bytes
    first = select(JOB_OUTPUT.c.number, JOB_OUTPUT.c.bytes).where(here).order_by(JOB_OUTPUT.c.number).limit(PIECES_CUT)
    freed_bytes, cut = 0, 0
    while freed_bytes - line_bytes < surplus_bytes:
        found = connection.execute(first.where(JOB_OUTPUT.c.number > cut)).all()
        if not found:
            break
        for number, size in found:
            freed_bytes, cut = freed_bytes + size, number
            if freed_bytes - line_bytes >= surplus_bytes:
                break
    if not cut:
        return 0
    connection.execute(delete(JOB_OUTPUT).where(here, JOB_OUTPUT.c.number <= cut))
    return _put_line(connection, run, cut, freed_bytes, line)


def _put_line(connection: Connection, run: _Run, number: int, freed_bytes: int, line: str) -> int:
    """Has the line stand for what was dropped up to ``number``; how many bytes are free now."""
    piece = Piece(number, line)
    freed_bytes -= piece.cost_bytes
    row = {"job": run.job, "attempt": run.attempt, "number": number, "text": line, "bytes": piece.cost_bytes}
    connection.execute(insert(JOB_OUTPUT).values(**row))
    here = (JOB_RUNS.c.job == run.job) & (JOB_RUNS.c.attempt == run.attempt)
    connection.execute(update(JOB_RUNS).where(here).values(bytes=JOB_RUNS.c.bytes - freed_bytes))
    return freed_bytes


def _line(what: str, most_bytes: int) -> str:
    return f"[forebay: earlier output was dropped here, since the output of {what} is kept up to {most_bytes} bytes]\n"
