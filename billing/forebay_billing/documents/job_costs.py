"""What runs of jobs cost, as rows of the HTTP interface."""

from __future__ import annotations

from typing_extensions import TypedDict

from forebay_billing.documents.rows import Exact
from forebay_billing.model.money import exact_text, nano_of
from forebay_billing.reads.job_costs import JobCost


class JobCostRow(TypedDict):
    """``attempt`` is None for usage of which no run was told; ``open_nano`` of the cost are of leases that are open."""

    job: int
    attempt: int | None
    currency: str
    duration_ns: int
    cost_nano: int
    cost_exact: Exact
    open_nano: int


def job_cost_json(one: JobCost) -> JobCostRow:
    """What a run has cost so far."""
    return {
        "job": one.job,
        "attempt": one.attempt,
        "currency": one.currency,
        "duration_ns": one.duration_ns,
        "cost_nano": nano_of(one.grains),
        "cost_exact": exact_text(one.grains),
        "open_nano": nano_of(one.open_grains),
    }
