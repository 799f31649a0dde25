"""What runs of jobs have cost so far, as billing tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

from forebay.errors import ForebayError, NotConfigured
from forebay.toolkit import pool
from forebay.toolkit.billing import billing

Row = Mapping[str, Any]
ASKED_MAX = 200
"""Jobs in one question."""
DECIMALS_MIN = 2


def costs_of(jobs: Sequence[Row]) -> dict[int, list[Row]] | None:
    """Rows of runs, by job; None where no billing is known here. Raises ForebayError."""
    found: dict[int, list[Row]] = {int(job["id"]): [] for job in jobs}
    try:
        books = billing()
    except NotConfigured:
        return None
    for start in range(0, len(jobs), ASKED_MAX):
        asked = jobs[start : start + ASKED_MAX]
        query = [("since_ns", min(job["created_at_ns"] for job in asked)), *(("job", job["id"]) for job in asked)]
        users = {(job["tenant"], job["user"]) for job in asked}
        query += [*zip(("tenant", "user"), *users, strict=True)] if len(users) == 1 else []
        for row in pool.rows(books, f"api/job-costs?{urlencode(query)}"):
            found[int(row["job"])].append(row)
    return found


def total(runs: Sequence[Row]) -> str:
    """Exactly; different currencies are never added."""
    sums: dict[str, Decimal] = {}
    for run in runs:
        sums[run["currency"]] = sums.get(run["currency"], Decimal(0)) + Decimal(run["cost_exact"])
    return " + ".join(f"{amount(cost)} {currency}" for currency, cost in sorted(sums.items())) or "0"


def amount(cost: Decimal) -> str:
    """With all decimals that say something, and two at least."""
    whole, _, fraction = f"{cost:f}".partition(".")
    return f"{whole}.{fraction.rstrip('0').ljust(DECIMALS_MIN, '0')}"


def lines(job: Row) -> list[str]:
    """What a job has cost, and each of its runs where there are several; why that is not known, if it is not."""
    try:
        found = costs_of([job])
    except ForebayError as error:
        return [f"not known now: {error}"]
    if found is None:
        return []
    runs = found[int(job["id"])]
    so_far = " so far" if job["ended_at_ns"] is None else ""
    each = [f"run {'?' if run['attempt'] is None else run['attempt']}: {total([run])}" for run in runs]
    return [total(runs) + so_far, *(each if len(runs) > 1 else [])]
