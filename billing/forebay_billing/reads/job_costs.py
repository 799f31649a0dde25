"""What runs of jobs cost.

Spans of a job's programs begin with its number and the run's, ``job-17/2/``; where a client does not say them, the label tells the job.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from sqlalchemy import Connection, case, func, or_, select

from forebay_billing.ledger.access import Scope
from forebay_billing.reads.rated_rows import everything
from forebay_billing.reads.rollups import measures, sums_of, uncorrected
from forebay_billing.reads.usage import Window, visible, within
from forebay_billing.tables import schema

_SPAN = re.compile(r"job-([0-9]{1,18})/([0-9]{1,9})/")
_LABEL = re.compile(r"job ([0-9]{1,18}): ")
_ID_CHARS = 32
"""Of a span's own part of its id."""
_usage = schema.usage.c


@dataclass(frozen=True)
class JobCost:
    """What a run of a job has cost in a currency, in grains, at list prices; ``open_grains`` of it are of leases that are still open.

    ``attempt`` is None for usage of which nobody said the run.
    """

    job: int
    attempt: int | None
    currency: str
    duration_ns: int
    grains: int
    open_grains: int = 0


def run_of(span_id: str, label: str) -> tuple[int, int | None] | None:
    """The job's number and the run's; None for what is of no job."""
    if (told := _SPAN.match(span_id)) is not None:
        return int(told[1]), int(told[2])
    named = _LABEL.match(label)
    return None if named is None else (int(named[1]), None)


def job_costs(connection: Connection, scope: Scope, jobs: Collection[int], since_ns: int) -> list[JobCost]:
    """Of usage that was posted, began from then on, and was not corrected."""
    long = func.length(_usage.span_id) - _ID_CHARS
    told = _usage.span_id.like("job-%/%/" + "_" * _ID_CHARS)
    run = case((told, func.substr(_usage.span_id, 1, long)), else_="").label("run")
    of_jobs = or_(_usage.span_id.like("job-%"), _usage.span_label.like("job %: %"))
    conditions = (*visible(scope), *within(Window(since_ns, None)), of_jobs)
    piece = uncorrected(everything, (run, _usage.span_label), conditions)
    keys = (piece.run, piece.span_label, piece.currency)
    found = []
    for span, label, currency, *measured in connection.execute(select(*keys, *measures(piece)).group_by(*keys)):
        run_told, summed = run_of(span, label), sums_of(measured)
        if run_told is not None and run_told[0] in jobs:
            found.append(JobCost(*run_told, currency, summed.duration_ns, summed.grains))
    return merged(found)


def merged(costs: Iterable[JobCost]) -> list[JobCost]:
    """One for each run and currency, in their order."""
    found: dict[tuple[int, int | None, str], JobCost] = {}
    for one in costs:
        key = (one.job, one.attempt, one.currency)
        before = found.get(key)
        found[key] = one if before is None else replace(
            one,
            duration_ns=before.duration_ns + one.duration_ns,
            grains=before.grains + one.grains,
            open_grains=before.open_grains + one.open_grains,
        )  # fmt: skip
    return sorted(found.values(), key=lambda one: (one.job, one.attempt or 0, one.currency))
