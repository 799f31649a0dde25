"""What each run of a job has cost, to the last decimal, while it runs too; and what devices drew by hour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from forebay_billing.model.types import Span, UsageRecord
from forebay_billing.reads.job_costs import run_of
from running_billing import Running
from test_budgets_http import HOUR_NS, SECOND_NS, beat, price_of

Usage = Callable[..., UsageRecord]
LABEL = "job 17: train.py"


def of_run(record: UsageRecord, job: int, attempt: int | None, label: str = LABEL) -> UsageRecord:
    """As a program of the run has it used; without a run as one whose client does not tell it."""
    own = f"{record.id:0>32}"
    return replace(record, span=Span(own if attempt is None else f"job-{job}/{attempt}/{own}", "process", label, None))


def costs(running: Running, caller: str, *jobs: int, **more: Any) -> list[tuple[Any, ...]]:
    rows = running.request(caller, "GET", "/api/job-costs", params={"job": list(jobs), **more}).json()
    return [(row["job"], row["attempt"], row["currency"], Decimal(row["cost_exact"]), row["duration_ns"]) for row in rows]


def test_each_run_of_a_job_costs_what_its_leases_do_to_the_last_decimal(running_anywhere: Running, usage: Usage) -> None:
    running = running_anywhere
    assert running.set_price("small.64gb", price_nano_per_hour=3_600_000_001, currency="USD", valid_from_ns=0).status_code == 200
    first, again = (of_run(usage(f"l-{n}/1", duration_ns=7 * SECOND_NS + n), 17, 1) for n in range(2))
    second = of_run(usage("l-2/1", duration_ns=SECOND_NS), 17, 2, "a name of its own")
    untold = of_run(usage("l-3/1", duration_ns=2 * SECOND_NS), 17, None)
    other = of_run(usage("l-4/1"), 170, 1, "job 170: train.py")
    wrong = of_run(usage("l-5/1"), 17, 1)
    running.post_usage(first, again, second, untold, other, wrong, usage("l-6/1"))
    correction = {"source": wrong.source, "id": wrong.id, "reason": "a test"}
    assert running.request("operator", "POST", "/api/corrections", json=correction).status_code == 200
    of_ns = Decimal(3_600_000_001) / Decimal(3_600 * SECOND_NS) / 10**9
    expected = [(None, 2 * SECOND_NS), (1, 14 * SECOND_NS + 1), (2, SECOND_NS)]
    found = costs(running, "acme-member", 17)
    assert [(attempt, ns) for _, attempt, _, _, ns in found] == expected
    assert [cost for _, _, _, cost, _ in found] == [round(ns * of_ns, 18) for _, ns in expected]
    assert {row[2] for row in found} == {"USD"} and len(costs(running, "acme-owner", 17, 170)) == 4
    assert costs(running, "acme-member", 17, since_ns=running.clock()) == [], "all of it began before"
    assert costs(running, "globex-owner", 17) == costs(running, "acme-member") == []
    assert running.get("globex-owner", "/api/job-costs", job=17, tenant="acme").status_code == 403


def test_a_run_costs_while_it_runs_and_nothing_twice(running: Running, usage: Usage) -> None:
    price, minute = price_of(running), 60 * SECOND_NS
    running.post_usage(of_run(usage("r/1", started_at_ns=running.clock() - 2 * minute, duration_ns=minute), 17, 2))
    goes_on = of_run(usage("r/2", started_at_ns=running.clock() - minute, duration_ns=minute), 17, 2)
    others = of_run(usage("s/1", tenant="globex", user="globex-owner", duration_ns=minute), 17, 2)
    beat(running, goes_on, others)
    (row,) = running.get("acme-member", "/api/job-costs", job=17).json()
    assert (row["cost_nano"], row["open_nano"], row["attempt"]) == (120 * price, 60 * price, 2)
    running.post_usage(goes_on)
    (row,) = running.get("acme-member", "/api/job-costs", job=17).json()
    assert (row["cost_nano"], row["open_nano"]) == (120 * price, 0)


@pytest.mark.parametrize(
    ("span", "label", "run"),
    [
        ("job-17/2/" + "a" * 32, "anything", (17, 2)),
        ("a" * 32, "job 17: train.py", (17, None)),
        ("job-x/2/" + "a" * 32, "train.py", None),
        ("a" * 32, "my job 17: x", None),
    ],
)
def test_a_run_is_told_by_its_spans_else_by_the_label(span: str, label: str, run: object) -> None:
    assert run_of(span, label) == run


def test_what_a_span_is_called_breaks_nothing(running_anywhere: Running, usage: Usage) -> None:
    strange = [replace(usage(f"l-{n}/1"), span=Span(id, "cell", "x", 1)) for n, id in enumerate(("job-1/1/", "job-", "job-1/1/%_"))]
    running_anywhere.post_usage(*strange)
    assert [row[:2] for row in costs(running_anywhere, "acme-member", 1)] in ([], [(1, None)])


def test_energy_is_told_by_hour_as_far_as_drivers_tell_it(running_anywhere: Running, usage: Usage) -> None:
    running = running_anywhere
    start_ns = usage().started_at_ns
    told = [usage(f"e-{n}/1", started_at_ns=start_ns + n * HOUR_NS // 2, energy_mj=1_000 * (n + 1)) for n in range(3)]
    running.post_usage(*told, usage("e-9/1", started_at_ns=start_ns + 5 * HOUR_NS), replace(told[0], id="e-8/1", tenant="globex"))
    rows = running.get("operator", "/api/energy", since_ns=start_ns - start_ns % HOUR_NS).json()
    assert [(row["hour_ns"] - start_ns, row["energy_mj"], row["duration_ns"] // SECOND_NS) for row in rows] == [
        (0, 4_000, 180), (HOUR_NS, 3_000, 60), (5 * HOUR_NS, None, 60),
    ]  # fmt: skip
    assert [row["energy_duration_ns"] // SECOND_NS for row in rows] == [180, 60, 0] and {row["co2_mg"] for row in rows} == {None}
    assert running.get("acme-owner", "/api/energy", since_ns=0).status_code == 403
