"""The endpoints of jobs and schedules, and those that the runners of jobs speak to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from forebay_service.identity import COMPUTE, OPERATE, TENANT, Identity
from forebay_wire.texts import NAME_CHARS_MAX, ONE_LINE, Name
from pydantic import BaseModel, ConfigDict, Field, model_validator

from forebay_pool.errors import FilesRefused, JobConflict, RequestRefused
from forebay_pool.http.handler import Api, oversees, owns, whose
from forebay_pool.jobs.cron import next_time
from forebay_pool.jobs.dispatcher import Dispatcher
from forebay_pool.model import jobs as decisions
from forebay_pool.model.jobs import Job, Kind, Notify, Program
from forebay_pool.store.audit import AuditEntry
from forebay_pool.store.job_output import Piece
from forebay_pool.views.jobs import SENTENCES, OutputRow, job_row, output_row, schedule_row

ARGUMENTS_MAX = 256
ARGUMENT_CHARACTERS_MAX = 8_192
ARGUMENTS_CHARACTERS_MAX = 65_536
PATH_CHARACTERS_MAX = 1_024
RETRIES = 3
RETRIES_MAX = 20
TIME_LIMIT_SECONDS_MAX = 90 * 86_400
PIECES_MAX = 64
PIECE_CHARACTERS_MAX = 16_384
JOBS_ASKED_MAX = 500
WAIT_SECONDS_MAX = 20

_HomePath = Annotated[str, Field(max_length=PATH_CHARACTERS_MAX), ONE_LINE]
_Argument = Annotated[str, Field(max_length=ARGUMENT_CHARACTERS_MAX, pattern=r"^[^\x00]*$")]
_Environment = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]
"""As `forebay env` takes names; which there are only the user's home knows."""
_Files = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_Number = Annotated[int, Field(ge=0, lt=2**63)]

log = logging.getLogger(__name__)


class JobBody(BaseModel):
    """What ``POST api/jobs`` takes. ``folder`` is where it runs, ``file`` what: both from the user's home on, a module by its name.

    ``notify`` is of what the user is told: nothing, failures and budgets, or all; without it as the user prefers. ``label`` is what usage
    calls its work, so that budgets for that label hold for it too; without it the job's number and name. ``files`` names files that were
    sent (``GET api/job-files``): each run begins with them in a folder of its own, which stands in place of the home.
    """

    model_config = ConfigDict(extra="forbid")

    kind: Kind
    file: Annotated[_HomePath, Field(min_length=1)]
    arguments: Annotated[tuple[_Argument, ...], Field(max_length=ARGUMENTS_MAX)] = ()
    folder: _HomePath = ""
    name: Name | None = None
    flavor: Name | None = None
    retries_max: Annotated[int, Field(ge=0, le=RETRIES_MAX)] = RETRIES
    time_limit_seconds: Annotated[int, Field(ge=1, le=TIME_LIMIT_SECONDS_MAX)] | None = None
    notify: Notify | None = None
    environment: _Environment | None = None
    label: Name | None = None
    files: _Files | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for path in (self.folder, *((self.file,) if self.kind != "module" else ())):
            if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
                raise ValueError(f"{path} is not in your home: give it relative to that, without '..'")
        if self.kind == "notebook" and self.arguments:
            raise ValueError("a notebook takes no arguments")
        if sum(map(len, self.arguments)) > ARGUMENTS_CHARACTERS_MAX:
            raise ValueError(f"the arguments have more than {ARGUMENTS_CHARACTERS_MAX} characters")
        return self

    @property
    def program(self) -> Program:
        name = self.name or (PurePosixPath(self.file).name or self.file)[:NAME_CHARS_MAX]
        bounds = (self.flavor, self.retries_max, self.time_limit_seconds, self.notify, self.environment, self.label, self.files)
        return Program(self.kind, self.file, self.arguments, self.folder, name, *bounds)


class ScheduleBody(JobBody):
    """What ``POST api/schedules`` takes: ``cron`` has five fields, minute, hour, day of month, month, weekday, in ``zone``'s time."""

    cron: Annotated[str, Field(min_length=9, max_length=128)]
    zone: Annotated[str, Field(min_length=1, max_length=64)] = "UTC"


class JobQuery(BaseModel):
    """``before`` is the id of the last job of the page before; ``everybody``: of the tenant, for its owners, or of all, for operators."""

    model_config = ConfigDict(extra="forbid")

    limit: Annotated[int, Field(ge=1, le=JOBS_ASKED_MAX)] = 50
    before: _Number | None = None
    everybody: bool = False


class ScheduleQuery(BaseModel):
    """``everybody``: as for jobs."""

    model_config = ConfigDict(extra="forbid")

    everybody: bool = False


class OutputQuery(BaseModel):
    """``attempt`` is the run, else the newest; ``after`` the number of the last piece that is known; nothing new is waited for so long."""

    model_config = ConfigDict(extra="forbid")

    attempt: Annotated[int, Field(ge=1, le=1_000)] | None = None
    after: _Number = 0
    wait_seconds: Annotated[int, Field(ge=0, le=WAIT_SECONDS_MAX)] = 0


class PieceBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    number: Annotated[int, Field(ge=1, lt=2**63)]
    text: Annotated[str, Field(max_length=PIECE_CHARACTERS_MAX, pattern=r"^[^\x00]*$")]


class RunnerBody(BaseModel):
    """What a runner says with all that it says: the key that it made up for itself."""

    model_config = ConfigDict(extra="forbid")

    key: Annotated[str, Field(min_length=32, max_length=64, pattern="^[0-9a-f]+$")]


class BeginBody(RunnerBody):
    """``takes_files``: whether the runner has its job begin with the files that were sent along."""

    takes_files: bool = False


class PrintedBody(RunnerBody):
    """What a run printed since; nothing, where it only says that it goes on. ``waits``: it has come to wait for a budget since."""

    pieces: Annotated[tuple[PieceBody, ...], Field(max_length=PIECES_MAX)] = ()
    waits: Literal["budget"] | None = None


class EndBody(RunnerBody):
    """How a run ended. ``exit_status`` is None where the program was never started."""

    exit_status: Annotated[int, Field(ge=-255, le=255)] | None
    reason: Literal["exit_status", "unstartable", "time_limit", "budget", "worker_lost", "server_stopped"] | None = None


class JobApi(Api):
    """What all of them share. A job of somebody else is told apart from none only by who may see it."""

    @property
    def dispatcher(self) -> Dispatcher:
        """Raises RequestRefused where there are no jobs."""
        if self.context.dispatcher is None:
            raise RequestRefused(503, "no_jobs", "This pool has no jobs: it belongs to no JupyterHub that would run them as their users.")
        return self.context.dispatcher

    async def member(self) -> tuple[Identity, str]:
        """Who computes, and for which tenant. Raises RequestRefused."""
        identity = await self.bearer(COMPUTE)
        if identity.kind != "user" or identity.tenant is None:
            raise RequestRefused(403, "no_tenant", f"{identity.name} belongs to no tenant that would pay; ask an operator for one.")
        return identity, identity.tenant

    async def job(self, identity: Identity, number: str) -> Job:
        """Raises RequestRefused."""
        job = await asyncio.to_thread(self.dispatcher.store.job, _number(number))
        if job is None or not (owns(identity, job) or oversees(identity, job)):
            raise RequestRefused(404, "no_job", f"There is no job {number} among those you may see.")
        return job

    async def decide(self, number: int, decide: Callable[[Job, int], Job], deed: AuditEntry | None = None) -> Job:
        """What becomes of the job now, by a function of :mod:`forebay_pool.model.jobs`. Raises RequestRefused, JobConflict."""
        store, now_ns = self.dispatcher.store, self.dispatcher.clock_ns()
        job = await self.context.write(lambda: store.change(number, lambda job: decide(job, now_ns), deed))
        return self.told(number, job)

    def told(self, number: int, job: Job | None) -> Job:
        """The job, of which there is news. Raises RequestRefused where it is there no more."""
        if job is None:
            raise RequestRefused(404, "no_job", f"There is no job {number} any more.")
        self.dispatcher.told(job)
        return job

    def check_flavor(self, name: str | None) -> None:
        """Raises RequestRefused."""
        fleet = self.shell.machine.fleet
        if name is None:
            return
        if name not in fleet.flavors:
            raise RequestRefused(400, "unknown_flavor", f"There is no flavor {name!r}; there are {', '.join(fleet.flavors)}.")
        why_not = fleet.why_not(fleet.flavors[name])
        if why_not is not None:
            raise RequestRefused(409, "not_servable", why_not)


    async def check_files(self, tenant: str, user: str, name: str | None) -> None:
        """Raises FilesRefused."""
        transfers = self.dispatcher.files
        if name is not None and (transfers is None or not await transfers.do(transfers.files.use, tenant, user, name)):
            raise FilesRefused("The files of this job are not there, or no longer: send them again.")


class Jobs(JobApi):
    """``GET`` and ``POST api/jobs``."""

    async def get(self) -> None:
        identity = await self.bearer(COMPUTE, TENANT, OPERATE)
        asked = self.query(JobQuery)
        tenant, user = whose(identity, asked.everybody)
        found = await asyncio.to_thread(self.dispatcher.store.jobs, tenant, user, asked.limit, asked.before)
        self.write_json([job_row(job) for job in found])

    async def post(self) -> None:
        identity, tenant = await self.member()
        dispatcher, program = self.dispatcher, self.body(JobBody).program
        self.check_flavor(program.flavor)
        await self.check_files(tenant, identity.name, program.files)
        job = await self.context.write(lambda: dispatcher.store.add(tenant, identity.name, program, dispatcher.clock_ns()))
        fields = {"action": "job_submitted", "job": job.id, "tenant": tenant, "user": identity.name, "kind": program.kind}
        log.info("job %d of %s is queued", job.id, identity.name, extra=fields)
        dispatcher.told(job)
        self.set_status(201)
        self.write_json(job_row(job))


class JobItem(JobApi):
    """``GET api/jobs/{job}``."""

    async def get(self, number: str) -> None:
        self.write_json(job_row(await self.job(await self.bearer(COMPUTE, TENANT, OPERATE), number)))


class Cancellation(JobApi):
    """``POST api/jobs/{job}/cancel``."""

    async def post(self, number: str) -> None:
        identity = await self.bearer(COMPUTE, TENANT, OPERATE)
        seen = await self.job(identity, number)
        mine = owns(identity, seen)
        subject, before = f"{seen.tenant}/{seen.user}/#{seen.id}", {"state": seen.state}
        what = AuditEntry(identity.name, "job.cancel", subject, before, {"state": "cancelled"})
        job = await self.decide(seen.id, lambda job, now_ns: decisions.cancelled(job, mine, now_ns), None if mine else what)
        fields = {"action": "job_cancelled", "job": job.id, "tenant": job.tenant, "user": identity.name}
        log.info("job %d is cancelled by %s", job.id, identity.name, extra=fields)
        self.set_status(202)
        self.write_json(job_row(job))


class Output(JobApi):
    """``GET api/jobs/{job}/output``: for its user alone."""

    async def get(self, number: str) -> None:
        identity = await self.bearer(COMPUTE)
        asked = self.query(OutputQuery)
        job = await self.job(identity, number)
        if not owns(identity, job):
            raise RequestRefused(403, "not_yours", "What a job prints is for its user alone.")
        dispatcher = self.dispatcher
        news = dispatcher.news_of(job.id)
        answer = await self._read(job.id, asked)
        if asked.wait_seconds and not answer["pieces"] and not answer["over"]:
            await dispatcher.wait(news, asked.wait_seconds)
            answer = await self._read(job.id, asked)
        self.write_json(answer)

    async def _read(self, number: int, asked: OutputQuery) -> OutputRow:
        store = self.dispatcher.store
        job = await asyncio.to_thread(store.job, number)
        if job is None:
            raise RequestRefused(404, "no_job", f"There is no job {number} any more.")
        attempt = asked.attempt or max(1, job.attempt)
        return output_row(job, attempt, await asyncio.to_thread(store.output, number, attempt, asked.after), asked.after)


class Schedules(JobApi):
    """``GET`` and ``POST api/schedules``."""

    async def get(self) -> None:
        identity = await self.bearer(COMPUTE, TENANT, OPERATE)
        found = await asyncio.to_thread(self.dispatcher.store.schedules, *whose(identity, self.query(ScheduleQuery).everybody))
        self.write_json([schedule_row(schedule) for schedule in found])

    async def post(self) -> None:
        identity, tenant = await self.member()
        dispatcher, body = self.dispatcher, self.body(ScheduleBody)
        program, now_ns = body.program, dispatcher.clock_ns()
        self.check_flavor(program.flavor)
        await self.check_files(tenant, identity.name, program.files)
        when = (body.cron, body.zone, next_time(body.cron, body.zone, now_ns), now_ns)
        schedule = await self.context.write(lambda: dispatcher.store.add_schedule(tenant, identity.name, program, *when))
        fields = {"action": "schedule_set", "schedule": schedule.id, "tenant": tenant, "user": identity.name}
        log.info("schedule %d of %s is set", schedule.id, identity.name, extra=fields)
        self.set_status(201)
        self.write_json(schedule_row(schedule))


class ScheduleItem(JobApi):
    """``DELETE api/schedules/{schedule}``."""

    async def delete(self, number: str) -> None:
        identity = await self.bearer(COMPUTE, TENANT, OPERATE)
        store = self.dispatcher.store
        found = [one for one in await asyncio.to_thread(store.schedules, None, None) if one.id == _number(number)]
        if not found or not (owns(identity, found[0]) or oversees(identity, found[0])):
            raise RequestRefused(404, "no_schedule", f"There is no schedule {number} among those you may remove.")
        one, after = found[0], {"removed": True}
        deed = AuditEntry(identity.name, "schedule.remove", f"{one.tenant}/{one.user}/schedule #{one.id}", {"cron": one.cron}, after)
        await self.context.write(lambda: store.remove_schedule(one.id, None if owns(identity, one) else deed))
        log.info("schedule %d is removed by %s", one.id, identity.name, extra={"action": "schedule_removed", "user": identity.name})
        self.set_status(204)


# What runners of jobs say


class RunnerApi(JobApi):
    """A runner has a token of its user's, and a key that nobody else knows."""

    async def own(self, number: str) -> int:
        """The job's number. Raises RequestRefused."""
        identity = await self.bearer(COMPUTE)
        job = await self.job(identity, number)
        if not owns(identity, job):
            raise RequestRefused(404, "no_job", f"There is no job {number} of yours.")
        return job.id


class Beginning(RunnerApi):
    """``POST api/jobs/{job}/begin``: the runner takes the job."""

    async def post(self, number: str) -> None:
        own, body = await self.own(number), self.body(BeginBody)

        def begin(job: Job, now_ns: int) -> Job:
            if job.program.files is not None and not body.takes_files:
                return decisions.outdated(job, now_ns)
            return decisions.begun(job, body.key, now_ns)

        job = await self.decide(own, begin)
        if job.reason == "older_release":
            raise JobConflict(SENTENCES["older_release"])
        self.write_json(job_row(job))


class Printed(RunnerApi):
    """``POST api/jobs/{job}/printed``: what the run printed, and that it goes on."""

    body_bytes_max = 2 * 2**20

    async def post(self, number: str) -> None:
        own, body, dispatcher = await self.own(number), self.body(PrintedBody), self.dispatcher
        pieces = [Piece(piece.number, piece.text) for piece in body.pieces]
        now_ns = dispatcher.clock_ns()
        waits = body.waits is not None
        store = dispatcher.store
        if await self.context.write(lambda: store.append(own, lambda job: decisions.heard(job, body.key, now_ns), pieces, waits)):
            dispatcher.printed(own)
        self.set_status(204)


class Ending(RunnerApi):
    """``POST api/jobs/{job}/end``: how the run ended."""

    async def post(self, number: str) -> None:
        own, body = await self.own(number), self.body(EndBody)
        job = await self.decide(own, lambda job, now_ns: decisions.ended(job, body.key, body.exit_status, body.reason, now_ns))
        fields = {"action": "job_ended", "job": job.id, "tenant": job.tenant, "user": job.user, "state": job.state}
        log.info("a run of job %d of %s ended: it is %s", job.id, job.user, job.state, extra=fields)
        self.set_status(204)


def _number(text: str) -> int:
    """Raises RequestRefused."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise RequestRefused(404, "no_job", f"{text!r} is no number of a job or a schedule.")
    return int(text)
