"""The tools about the service: flavors, what runs and waits, and jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import anyio.to_thread
from mcp.server.mcpserver import Context
from pydantic import Field

from forebay.client import Client
from forebay.client.models.pool import JobRow, OutputRow
from forebay.errors import ForebayError
from forebay.toolkit.agents.experiments import Experiments, is_label, label_of, money, name_of
from forebay.toolkit.agents.kernel_tools import OUTPUT_CHARS_MAX
from forebay.toolkit.jobs.costs import amount
from forebay.toolkit.jobs.submit import in_home

ROWS_MAX = 100
WAIT_SECONDS = 2
"""How long the pool holds a question for output that is not there yet."""
FOLLOW_SECONDS_MAX = 3600
LINE_CHARS = 200
"""Of what was printed last, in news of progress."""

JobNumber = Annotated[int, Field(description="Number of the job, as submit_job and list_jobs tell it.", ge=1)]


@dataclass(frozen=True)
class FlavorInfo:
    """A size of the virtual GPU."""

    name: str
    memory_gib: float
    price_per_hour: str | None
    currency: str | None
    available: bool
    why_not: str | None
    waiting: int
    wait_seconds: float | None
    """What who comes now would wait; None: nobody knows."""


@dataclass(frozen=True)
class SessionInfo:
    """A process of an experiment with a virtual GPU."""

    experiment: str
    state: str
    flavor: str
    memory_mib: float
    position: int | None
    """In the queue."""
    why_it_waits: str | None


@dataclass(frozen=True)
class JobInfo:
    """A job and its state."""

    job: int
    name: str
    experiment: str | None
    """The one that pays."""
    state: str
    explanation: str | None
    run: int
    submitted: str
    started: str | None
    ended: str | None
    exit_status: int | None
    cost: dict[str, str] | None
    """By currency, exactly, what is open included; None where many are listed."""


@dataclass(frozen=True)
class JobOutput:
    """A piece of what a job printed."""

    job: int
    run: int
    text: str
    next: int
    """Pass it as ``after`` to read on."""
    over: bool
    """Whether the run is over and this was all of it."""
    state: str
    """Of the job."""


class _Pieces:
    """A page of what a run prints: whole pieces, of which the pool keeps none longer than 16,384 characters."""

    def __init__(self, after: int) -> None:
        self.text = ""
        self.last = after
        """Number of the last piece."""
        self.over = False

    def take(self, answer: OutputRow) -> bool:
        """Adds what has room; whether the page is full, or nothing more comes."""
        for piece in answer.pieces:
            if len(self.text) >= OUTPUT_CHARS_MAX:
                return True
            self.text += piece.text
            self.last = piece.number
        self.over = answer.over
        return self.over or len(self.text) >= OUTPUT_CHARS_MAX


class ServiceTools:
    """Each method is a tool; its docstring tells agents what it does."""

    def __init__(self, client: Client, experiments: Experiments) -> None:
        self._client = client
        self._experiments = experiments

    @property
    def tools(self) -> list[Callable[..., Any]]:
        found: list[Callable[..., Any]] = [self.list_flavors, self.list_sessions]
        return [*found, self.submit_job, self.list_jobs, self.show_job, self.follow_job, self.cancel_job]

    def list_flavors(self) -> list[FlavorInfo]:
        """List the sizes of virtual GPU: memory, price per hour of device time, and how long one would wait now."""
        return [
            FlavorInfo(
                name=row.name,
                memory_gib=round(row.memory_bytes / 2**30, 3),
                price_per_hour=None if row.price_nano_per_hour is None else money(row.price_nano_per_hour),
                currency=row.currency,
                available=row.servable,
                why_not=row.reason,
                waiting=row.waiting,
                wait_seconds=row.wait_seconds,
            )
            for row in self._client.flavors()[:ROWS_MAX]
        ]

    def list_sessions(self) -> list[SessionInfo]:
        """List the user's processes that compute for experiments: state, memory on the device, place in the queue and why they wait."""
        rows = [row for row in self._client.sessions() if is_label(row.process)]
        return [
            SessionInfo(
                experiment=name_of(row.process if row.span is None else row.span.label),
                state=row.state,
                flavor=row.flavor,
                memory_mib=round(row.memory_bytes / 2**20, 1),
                position=row.position,
                why_it_waits=row.reason,
            )
            for row in rows[:ROWS_MAX]
        ]

    def submit_job(
        self,
        file: Annotated[str, Field(description="A script (.py) or notebook (.ipynb) in the user's home.")],
        arguments: Annotated[list[str] | None, Field(description="Given to the script as they are.", max_length=100)] = None,
        name: Annotated[str | None, Field(description="What it is called in lists and in usage.")] = None,
        flavor: Annotated[str | None, Field(description="Size of its virtual GPU; see list_flavors.")] = None,
        time_limit_seconds: Annotated[int | None, Field(description="Longest that a run may take.", ge=1)] = None,
        retries_max: Annotated[int | None, Field(description="How often it is run again after a loss (3).", ge=0)] = None,
        experiment: Annotated[str | None, Field(description="The one that pays; without it the user's own budgets hold alone.")] = None,
    ) -> JobInfo:
        """Have a program run as a job: in a server of its own, which goes on when this one ends.

        The budget of its experiment holds for it as for runs of code. Where that is used up,
        the job waits with its tensors until it is raised, and then goes on.
        """
        if experiment is not None:
            self._experiments.check(experiment)
        if not Path(file).expanduser().is_file():
            raise ForebayError(f"There is no file {file}; give a script's or notebook's path.")
        path = in_home(Path(file).expanduser())
        folder = str(Path(path).parent)
        row = self._client.submit(
            path,
            arguments or (),
            kind="notebook" if path.endswith(".ipynb") else "script",
            folder="" if folder == "." else folder,
            name=name,
            flavor=flavor,
            time_limit_seconds=time_limit_seconds,
            retries_max=retries_max,
            label=None if experiment is None else label_of(experiment),
        )
        return _job(row)

    def list_jobs(self, limit: Annotated[int, Field(description="How many at most.", ge=1, le=ROWS_MAX)] = 20) -> list[JobInfo]:
        """List the user's jobs, the newest first."""
        return [_job(row) for row in self._client.jobs(limit=limit)]

    def show_job(self, job: JobNumber) -> JobInfo:
        """Show a job's state, and exactly what it has cost so far."""
        total: dict[str, Decimal] = {}
        for cost in self._client.job_costs([job]):
            total[cost.currency] = total.get(cost.currency, Decimal(0)) + cost.cost_exact
        return _job(self._client.job(job), {currency: amount(cost) for currency, cost in sorted(total.items())})

    async def follow_job(
        self,
        job: JobNumber,
        context: Context,
        run: Annotated[int | None, Field(description="Which of its runs; without it the newest.", ge=1)] = None,
        after: Annotated[int, Field(description="``next`` of the answer before, of the same run; 0 at first.", ge=0)] = 0,
        wait_seconds: Annotated[int, Field(description="How long to wait for more.", ge=0, le=FOLLOW_SECONDS_MAX)] = 30,
    ) -> JobOutput:
        """Read what a run of a job prints. Returns when the run is over, when there is a page full, or after wait_seconds."""
        began, pieces = time.monotonic(), _Pieces(after)
        while True:
            left = wait_seconds - (time.monotonic() - began)
            answer = await anyio.to_thread.run_sync(self._output_of, job, run, pieces.last, max(0, min(WAIT_SECONDS, int(left))))
            run = answer.attempt
            if pieces.take(answer) or left <= 0:
                break
            await context.report_progress(time.monotonic() - began, wait_seconds, pieces.text[-LINE_CHARS:])
        row = await anyio.to_thread.run_sync(self._client.job, job)
        return JobOutput(job, run, pieces.text, pieces.last, pieces.over, row.state)

    def _output_of(self, job: int, run: int | None, after: int, wait_seconds: int) -> OutputRow:
        return self._client.job_output(job, attempt=run, after=after, wait_seconds=wait_seconds)

    def cancel_job(self, job: JobNumber) -> JobInfo:
        """End a job, or have it never start."""
        return _job(self._client.cancel_job(job))


def _job(row: JobRow, cost: dict[str, str] | None = None) -> JobInfo:
    return JobInfo(
        job=row.id,
        name=row.name,
        experiment=name_of(row.label) if is_label(row.label) else None,
        state=row.state,
        explanation=row.sentence,
        run=row.attempt,
        submitted=_time(row.created_at_ns),
        started=None if row.started_at_ns is None else _time(row.started_at_ns),
        ended=None if row.ended_at_ns is None else _time(row.ended_at_ns),
        exit_status=row.exit_status,
        cost=cost,
    )


def _time(unix_ns: int) -> str:
    """In UTC, as ISO 8601 has it."""
    return datetime.fromtimestamp(unix_ns // 10**9, UTC).isoformat()
