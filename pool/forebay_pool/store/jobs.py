"""Jobs, their output and their schedules in the database. What a job becomes is decided by :mod:`forebay_pool.model.jobs`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from forebay_service.processes.leadership import reason
from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from forebay_pool.errors import JobConflict, StoreUnavailable
from forebay_pool.model.jobs import Job, JobLimits, NoticeKind, Program, Schedule, notice_kind
from forebay_pool.store.audit import AuditEntry
from forebay_pool.store.database import Store
from forebay_pool.store.job_output import KeptOutput, Piece
from forebay_pool.store.tables import JOB_NOTICES, JOB_OUTPUT, JOB_RUNS, JOBS, SCHEDULES

OUTPUT_PIECES_MAX = 200
"""Of one answer."""
NOTICES_MAX = 50
"""That are told at a time."""
_OVER = ("succeeded", "failed", "cancelled")


class JobStore:
    """Plain synchronous calls, each one transaction; those that write are made on the writer's thread.

    ``tells``: whether there is a billing that tells users of their jobs.
    """

    def __init__(self, store: Store, limits: JobLimits, tells: bool = False) -> None:
        self._store = store
        self._limits = limits
        self._output = KeptOutput(limits)
        self._waited: dict[int, int] = {}
        """By job, the run of which its user was told that it waits for a budget."""
        self._tells = tells

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """Raises StoreUnavailable."""
        try:
            with self._store.engine.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise StoreUnavailable(f"jobs cannot be read: {reason(error)}") from error

    # Jobs

    def add(self, tenant: str, user: str, program: Program, now_ns: int) -> Job:
        """A new job, queued. Raises JobConflict where the user has too many."""
        mine = (JOBS.c.tenant == tenant) & (JOBS.c.user == user)
        with self._store.writing() as connection:
            waiting = connection.execute(select(func.count()).where(mine, JOBS.c.state.not_in(_OVER))).scalar_one()
            if waiting >= self._limits.waiting_per_user_max:
                raise JobConflict(f"{user} has {waiting} jobs that are not over, and no more are taken; cancel one, or wait.")
            self._forget_old(connection, mine)
            return _add(connection, Job(0, tenant, user, program, now_ns, not_before_ns=now_ns, since_ns=now_ns))

    def _forget_old(self, connection: Connection, mine: ColumnElement[bool]) -> None:
        """Of the jobs that are over the newest are kept."""
        done = select(JOBS.c.id).where(mine, JOBS.c.state.in_(_OVER), JOBS.c.server.is_(False)).order_by(JOBS.c.id.desc())
        old = connection.execute(done.offset(self._limits.kept_per_user_max - 1)).scalars().all()
        for number in old:
            self._waited.pop(number, None)
        for table in (JOB_OUTPUT, JOB_RUNS):
            connection.execute(delete(table).where(table.c.job.in_(old)))
        connection.execute(delete(JOBS).where(JOBS.c.id.in_(old)))

    def change(self, number: int, decide: Callable[[Job], Job], deed: AuditEntry | None = None) -> Job | None:
        """Makes of a job what ``decide`` says; None where there is none. Raises what ``decide`` does, and changes nothing then."""
        with self._store.writing(deed) as connection:
            found = connection.execute(select(JOBS).where(JOBS.c.id == number)).one_or_none()
            if found is None:
                return None
            job = _job(found)
            news = decide(job)
            if news != job:
                connection.execute(update(JOBS).where(JOBS.c.id == number).values(_row(news)))
                kind = notice_kind(job, news)
                if kind is not None and self._tells:
                    _tell(connection, news, kind)
            return news

    def job(self, number: int) -> Job | None:
        with self._reading() as connection:
            found = connection.execute(select(JOBS).where(JOBS.c.id == number)).one_or_none()
        return None if found is None else _job(found)

    def jobs(self, tenant: str | None, user: str | None, most: int, before: int | None) -> list[Job]:
        """The newest first; None: of all tenants, or all users."""
        query = select(JOBS).order_by(JOBS.c.id.desc()).limit(most)
        for column, value in ((JOBS.c.tenant, tenant), (JOBS.c.user, user)):
            query = query if value is None else query.where(column == value)
        return self._read(query if before is None else query.where(JOBS.c.id < before))

    def with_servers(self) -> list[Job]:
        """Those that JupyterHub may have a server for."""
        return self._read(select(JOBS).where(JOBS.c.server.is_(True)).order_by(JOBS.c.id))

    def due(self, now_ns: int) -> list[Job]:
        """Those that may start, the oldest first."""
        waiting = (JOBS.c.state == "queued") & (JOBS.c.server.is_(False)) & (JOBS.c.not_before_ns <= now_ns)
        return self._read(select(JOBS).where(waiting).order_by(JOBS.c.id))

    def unfinished(self) -> list[Job]:
        """Those that are not over, of everybody."""
        return self._read(select(JOBS).where(JOBS.c.state.not_in(_OVER)).order_by(JOBS.c.id))

    def files_needed(self) -> dict[tuple[str, str], set[str]]:
        """By tenant and user, the lists of files with which jobs of theirs begin, or may begin again."""
        found: dict[tuple[str, str], set[str]] = {}
        with self._reading() as connection:
            for table, waiting in ((JOBS, JOBS.c.state.not_in(_OVER)), (SCHEDULES, SCHEDULES.c.files.is_not(None))):
                query = select(table.c.tenant, table.c.user, table.c.files).where(waiting, table.c.files.is_not(None))
                for row in connection.execute(query):
                    found.setdefault((row.tenant, row.user), set()).add(row.files)
        return found

    def _read(self, query: Any) -> list[Job]:
        with self._reading() as connection:
            return [_job(row) for row in connection.execute(query)]

    # Notices

    def notices(self) -> list[tuple[int, dict[str, Any]]]:
        """What users are still to be told, the oldest first."""
        with self._reading() as connection:
            query = select(JOB_NOTICES).order_by(JOB_NOTICES.c.id).limit(NOTICES_MAX)
            return [(row.id, json.loads(row.body)) for row in connection.execute(query)]

    def noticed(self, number: int) -> None:
        """That is told."""
        with self._store.writing() as connection:
            connection.execute(delete(JOB_NOTICES).where(JOB_NOTICES.c.id == number))

    # Output

    def append(self, number: int, decide: Callable[[Job], Job], pieces: Sequence[Piece], waits: bool = False) -> bool:
        """Keeps what a run printed, as far as it is not kept already; whether that is anything. Raises what ``decide`` does, and keeps
        nothing then.

        ``waits``: since it last spoke, the run has come to wait for a budget.
        """
        with self._store.writing() as connection:
            found = connection.execute(select(JOBS).where(JOBS.c.id == number)).one_or_none()
            if found is None:
                return False
            news = decide(_job(found))
            connection.execute(update(JOBS).where(JOBS.c.id == number).values(_row(news)))
            if waits and self._tells and self._waited.get(number) != news.attempt:
                _tell(connection, replace(news, reason="budget"), "budget")
                self._waited[number] = news.attempt
            return self._output.append(connection, news, pieces)

    def output(self, number: int, attempt: int, after: int) -> list[Piece]:
        """The next pieces of a run, in order."""
        query = select(JOB_OUTPUT.c.number, JOB_OUTPUT.c.text).order_by(JOB_OUTPUT.c.number).limit(OUTPUT_PIECES_MAX)
        here = (JOB_OUTPUT.c.job == number) & (JOB_OUTPUT.c.attempt == attempt) & (JOB_OUTPUT.c.number > after)
        with self._reading() as connection:
            return [Piece(row.number, row.text) for row in connection.execute(query.where(here))]

    # Schedules

    def add_schedule(self, tenant: str, user: str, program: Program, cron: str, zone: str, next_ns: int, now_ns: int) -> Schedule:
        """Raises JobConflict where the user has too many."""
        mine = (SCHEDULES.c.tenant == tenant) & (SCHEDULES.c.user == user)
        with self._store.writing() as connection:
            there = connection.execute(select(func.count()).where(mine)).scalar_one()
            if there >= self._limits.schedules_per_user_max:
                raise JobConflict(f"{user} has {there} schedules, and no more are taken; remove one.")
            schedule = Schedule(0, tenant, user, program, cron, zone, now_ns, next_ns, None)
            row = {**_row(schedule), **_program_row(program)}
            number = connection.execute(insert(SCHEDULES).values(row).returning(SCHEDULES.c.id)).scalar_one()
            return _schedule_at(connection, number)

    def schedules(self, tenant: str | None, user: str | None) -> list[Schedule]:
        query = select(SCHEDULES).order_by(SCHEDULES.c.id)
        for column, value in ((SCHEDULES.c.tenant, tenant), (SCHEDULES.c.user, user)):
            query = query if value is None else query.where(column == value)
        with self._reading() as connection:
            return [_schedule(row) for row in connection.execute(query)]

    def remove_schedule(self, number: int, deed: AuditEntry | None = None) -> None:
        """Its jobs stay."""
        with self._store.writing(deed) as connection:
            connection.execute(delete(SCHEDULES).where(SCHEDULES.c.id == number))

    def due_schedules(self, now_ns: int) -> list[Schedule]:
        with self._reading() as connection:
            return [_schedule(row) for row in connection.execute(select(SCHEDULES).where(SCHEDULES.c.next_ns <= now_ns))]

    def repeat(self, schedule: Schedule, next_ns: int, now_ns: int) -> Job | None:
        """The job of a schedule that came due, which comes due next at ``next_ns``. None where its job before is not over, or where
        somebody removed it, or another was quicker."""
        tenant, user, program = schedule.tenant, schedule.user, schedule.program
        busy = select(func.count()).where(JOBS.c.schedule == schedule.id, JOBS.c.state.not_in(_OVER))
        with self._store.writing() as connection:
            skipped = connection.execute(busy).scalar_one() > 0
            values = {"next_ns": next_ns} | ({"skipped_ns": schedule.next_ns} if skipped else {})
            as_read = (SCHEDULES.c.id == schedule.id) & (SCHEDULES.c.next_ns == schedule.next_ns)
            mine = connection.execute(update(SCHEDULES).where(as_read).values(values)).rowcount == 1
            if skipped or not mine:
                return None
            self._forget_old(connection, (JOBS.c.tenant == tenant) & (JOBS.c.user == user))
            return _add(connection, Job(0, tenant, user, program, now_ns, not_before_ns=now_ns, since_ns=now_ns, schedule=schedule.id))


def _tell(connection: Connection, job: Job, kind: NoticeKind) -> None:
    """Has the job's user told, unless that is not wanted."""
    program = job.program
    if program.notify == "none" or (program.notify == "failures" and kind not in ("failed", "budget")):
        return
    lasted_ns = 0 if job.started_ns is None else max(0, job.since_ns - job.started_ns)
    body = {
        "tenant": job.tenant, "user": job.user, "job": job.id, "attempt": job.attempt, "kind": kind, "label": job.label,
        "seconds": lasted_ns / 10**9, "notify": program.notify, "reason": job.reason, "exit_status": job.exit_status,
        "time_limit_seconds": program.time_limit_seconds,
    }  # fmt: skip
    connection.execute(insert(JOB_NOTICES).values(body=json.dumps(body)))


def _add(connection: Connection, job: Job) -> Job:
    row = {**_row(job), **_program_row(job.program)}
    number = connection.execute(insert(JOBS).values(row).returning(JOBS.c.id)).scalar_one()
    return _job(connection.execute(select(JOBS).where(JOBS.c.id == number)).one())


def _row(of: Job | Schedule) -> dict[str, Any]:
    """Its columns beside the number and the program."""
    return {name: value for name, value in asdict(of).items() if name not in ("id", "program")}


def _program_row(program: Program) -> dict[str, Any]:
    return {**asdict(program), "arguments": json.dumps(program.arguments)}


def _program(row: Any) -> Program:
    bounds = (row.flavor, row.retries_max, row.time_limit_seconds, row.notify, row.environment, row.label, row.files)
    return Program(row.kind, row.file, tuple(json.loads(row.arguments)), row.folder, row.name, *bounds)


def _job(row: Any) -> Job:
    times = {"not_before_ns": row.not_before_ns, "since_ns": row.since_ns, "started_ns": row.started_ns, "heard_ns": row.heard_ns}
    run = {"server": row.server, "key": row.key, "reason": row.reason, "exit_status": row.exit_status, "schedule": row.schedule}
    return Job(row.id, row.tenant, row.user, _program(row), row.created_ns, row.state, row.attempt, **times, **run)


def _schedule(row: Any) -> Schedule:
    times = (row.created_ns, row.next_ns, row.skipped_ns)
    return Schedule(row.id, row.tenant, row.user, _program(row), row.cron, row.zone, *times)


def _schedule_at(connection: Connection, number: int) -> Schedule:
    return _schedule(connection.execute(select(SCHEDULES).where(SCHEDULES.c.id == number)).one())
