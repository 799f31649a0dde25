"""What the pool answers of jobs and schedules, as typed rows."""

from __future__ import annotations

from dataclasses import dataclass

from forebay_dashboards.rows.answers import Count, Currency, Row


class Job(Row):
    """A program that runs unattended. ``label`` is what usage calls it, ``attempt`` counts its runs; ``reason`` has a ``sentence``."""

    id: Count
    tenant: str
    user: str
    name: str
    file: str
    arguments: tuple[str, ...] = ()
    flavor: str | None = None
    environment: str | None = None
    state: str
    label: str
    attempt: Count
    retries_max: Count
    time_limit_seconds: Count | None = None
    notify: str | None = None
    created_at_ns: Count
    started_at_ns: Count | None = None
    ended_at_ns: Count | None = None
    exit_status: int | None = None
    reason: str | None = None
    sentence: str | None = None

    @property
    def cancellable(self) -> bool:
        return self.state in ("queued", "starting", "running")


class JobCost(Row):
    """What a run has cost so far, ``attempt`` of its job; None where nobody told the run."""

    job: Count
    attempt: Count | None = None
    currency: Currency
    duration_ns: int
    cost_nano: int


@dataclass(frozen=True)
class Costs:
    """What runs of jobs have cost so far; different currencies are never added."""

    runs: tuple[JobCost, ...]

    def of(self, job: Job) -> tuple[JobCost, ...]:
        """By run."""
        return tuple(run for run in self.runs if run.job == job.id)

    def total(self, job: Job) -> dict[str, int]:
        """In nano-units, by currency."""
        found: dict[str, int] = {}
        for run in self.of(job):
            found[run.currency] = found.get(run.currency, 0) + run.cost_nano
        return found


class Schedule(Row):
    """Runs a program again and again; ``skipped_at_ns``: when it last came due while its job before was not over."""

    id: Count
    name: str
    cron: str
    zone: str
    next_at_ns: Count
    skipped_at_ns: Count | None = None


class Piece(Row):
    """A part of what a run printed."""

    number: Count
    text: str


class JobOutput(Row):
    """What a run printed from a place on; ``next`` is the place where it goes on, unless it is ``over``."""

    attempt: Count
    pieces: tuple[Piece, ...]
    next: Count
    over: bool
