"""What Prometheus sees: rates, health, and what tenants use; no user. Bills are never made from these."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from forebay_billing.model.money import GRAINS_PER_UNIT
from forebay_billing.model.types import Cost, Payer
from forebay_billing.rules.budgets import Standing, State

disable_created_metrics()  # type: ignore[no-untyped-call] # a gauge beside each counter that nobody reads

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SECOND_NS = 10**9


@dataclass(frozen=True)
class Situation:
    """How the books stand, read for a scrape."""

    standings: tuple[Standing, ...] = ()
    revenue_grains: Mapping[str, int] = field(default_factory=dict)
    """Posted for the present month, by currency."""
    deliveries: Mapping[str, int] = field(default_factory=dict)
    """Deliveries of alerts that are not settled, by state."""
    records_behind: int = 0
    """Usage records that the sums by hour, day and month do not hold yet."""


class Metrics:
    """One registry per service, so that several can live in a process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.situation: Situation | None = None
        """None while the database does not say, and where another service on it tells."""
        self.leader = Gauge("forebay_billing_leader", "1 where this service does the periodic tasks", registry=self._registry)
        text = "Until the certificate ends that this service shows; infinite where it shows none"
        self.certificate_left = Gauge("forebay_billing_certificate_left_seconds", text, registry=self._registry)
        ProcessCollector(registry=self._registry)
        self._count_requests()
        self._count_usage()
        self._count_payments()
        self._registry.register(_SituationCollector(self))

    def _count_requests(self) -> None:
        self._requests = Counter(
            "forebay_billing_requests", "HTTP requests answered", ["endpoint", "method", "status"], registry=self._registry
        )
        self._request_seconds = Histogram(
            "forebay_billing_request_seconds", "Time to answer", ["endpoint"], buckets=_SECONDS, registry=self._registry
        )
        self._commit_seconds = Histogram(
            "forebay_billing_commit_seconds", "Time of a group commit", buckets=_SECONDS, registry=self._registry
        )
        self._commit_jobs = Histogram(
            "forebay_billing_commit_jobs", "Writes that shared a commit", buckets=(1, 2, 4, 8, 16, 32, 64), registry=self._registry
        )
        self._writes_waiting = Gauge("forebay_billing_writes_waiting", "Writes that wait for their commit", registry=self._registry)
        self.unavailable = Counter("forebay_billing_store_unavailable", "Requests answered 503", registry=self._registry)

    def _count_usage(self) -> None:
        self._records = Counter("forebay_billing_usage_records", "Usage records received", ["outcome"], registry=self._registry)
        labels = ["tenant", "flavor", "currency"]
        self._usage_seconds = Counter(
            "forebay_billing_usage_seconds", "Duration of accepted usage; of parked tensors under the flavor @parked", labels,
            registry=self._registry,
        )  # fmt: skip
        self._usage_cost = Counter(
            "forebay_billing_usage_cost_units", "Cost of accepted usage at list price, in currency units", labels, registry=self._registry
        )
        self._rows_aside = Counter(
            "forebay_billing_rows_set_aside", "Rows of a pool that cannot be kept as they came: metered under other text, or refused",
            ["kind", "outcome"], registry=self._registry,
        )  # fmt: skip
        for outcome in ("accepted", "duplicate"):
            self._records.labels(outcome)
        for kind in ("usage", "heartbeat"):
            for outcome in ("metered", "refused"):
                self._rows_aside.labels(kind, outcome)

    def _count_payments(self) -> None:
        self._payment_orders = Gauge(
            "forebay_billing_payment_orders", "Orders to Stripe that are not settled", ["state"], registry=self._registry
        )
        self._payment_sendings = Counter(
            "forebay_billing_payment_sendings", "Attempts to send an order to Stripe", ["outcome"], registry=self._registry
        )

    def paying(self, counts: Mapping[str, int], sent: int = 0, failed: int = 0) -> None:
        """How many orders to Stripe are in each state, and how many were just sent or failed."""
        for state in ("waiting", "dead"):
            self._payment_orders.labels(state).set(counts.get(state, 0))
        self._payment_sendings.labels("sent").inc(sent)
        self._payment_sendings.labels("failed").inc(failed)

    def watch_queue(self, waiting: Callable[[], int]) -> None:
        """Reads the gauge of waiting writes from ``waiting``."""
        self._writes_waiting.set_function(waiting)

    def answered(self, endpoint: str, method: str | None, status: int, seconds: float) -> None:
        """A request was answered. Anybody can invent methods: those that HTTP does not know count as one."""
        self._requests.labels(endpoint, method if method in _METHODS else "other", str(status)).inc()
        self._request_seconds.labels(endpoint).observe(seconds)

    def committed(self, jobs: int, seconds: float) -> None:
        """A group of ``jobs`` writes was made durable."""
        self._commit_jobs.observe(jobs)
        self._commit_seconds.observe(seconds)

    def accepted(self, accepted: int, duplicates: int, costs: Mapping[Payer, Cost]) -> None:
        """A batch was written."""
        self._records.labels("accepted").inc(accepted)
        self._records.labels("duplicate").inc(duplicates)
        for payer, cost in costs.items():
            labels = (payer.tenant, payer.flavor, payer.currency)
            self._usage_seconds.labels(*labels).inc(cost.duration_ns / _SECOND_NS)
            self._usage_cost.labels(*labels).inc(cost.grains / GRAINS_PER_UNIT)

    def set_aside(self, kind: str, outcome: str) -> None:
        """A row was put aside."""
        self._rows_aside.labels(kind, outcome).inc()

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self._registry)


class _SituationCollector(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        found = self._metrics.situation
        if found is None:
            return
        yield from _budget_families(found.standings)
        revenue = {(currency,): grains / GRAINS_PER_UNIT for currency, grains in found.revenue_grains.items()}
        text = "Revenue posted for the present month (UTC) at list price, corrections taken off, in currency units"
        yield _gauge("forebay_billing_month_revenue_units", text, ("currency",), revenue)
        deliveries = {(state,): found.deliveries.get(state, 0) for state in ("waiting", "dead")}
        yield _gauge("forebay_billing_alert_deliveries", "Messages of budget alerts that are not settled", ("state",), deliveries)
        text = "Usage records that the sums by hour, day and month do not hold yet"
        yield _gauge("forebay_billing_rollups_behind_records", text, (), {(): found.records_behind})


def _budget_families(standings: Iterable[Standing]) -> Iterator[Metric]:
    """Budgets of whole tenants one by one; those of users and notebooks only by their number, for the labels' sake."""
    labels = ("tenant", "currency", "window", "origin")
    used: dict[tuple[str, ...], float] = {}
    limits: dict[tuple[str, ...], float] = {}
    ratios: dict[tuple[str, ...], float] = {}
    states: Tally[tuple[str, ...]] = Tally()
    for standing in standings:
        budget = standing.budget
        tenant = budget.subject.tenant
        states.update({(tenant, state): 0 for state in get_args(State)})
        states[(tenant, standing.state)] += 1
        if budget.subject.user is None:
            key = (tenant, budget.currency, budget.window, budget.origin)
            used[key], limits[key] = standing.used_grains / GRAINS_PER_UNIT, budget.limit_grains / GRAINS_PER_UNIT
            ratios[key] = standing.used_grains / budget.limit_grains if budget.limit_grains else 1.0
    yield _gauge("forebay_billing_budget_used_units", "What counts against the budget of a tenant, with what runs", labels, used)
    yield _gauge("forebay_billing_budget_limit_units", "Limit of the budget of a tenant, in currency units", labels, limits)
    yield _gauge("forebay_billing_budget_used_ratio", "Part of the budget of a tenant that is used: 1 is all of it", labels, ratios)
    text = "Budgets of a tenant, its users and their notebooks, by what they do to leases"
    yield _gauge("forebay_billing_budgets", text, ("tenant", "state"), states)


def _gauge(name: str, text: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family
