"""What runs of jobs have cost so far."""

from __future__ import annotations

from dataclasses import dataclass

from forebay_dashboards.rows.billing import JobCost
from forebay_dashboards.rows.pool import Job


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
