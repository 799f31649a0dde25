"""What Prometheus sees: rates and health, no tenant or user. Bills are never made from these."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from forebay_billing.money import ATTO_PER_UNIT

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """One registry per service, so that several can live in a process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "forebay_billing_requests", "HTTP requests answered.", ["endpoint", "method", "status"], registry=self._registry
        )
        self.request_seconds = Histogram(
            "forebay_billing_request_seconds", "Time to answer.", ["endpoint"], buckets=_SECONDS, registry=self._registry
        )
        self.records = Counter("forebay_billing_usage_records", "Usage records received.", ["outcome"], registry=self._registry)
        self.accepted_units = Counter(
            "forebay_billing_accepted_cost_units", "Cost of accepted usage, in currency units.", ["currency"], registry=self._registry
        )
        self.commit_seconds = Histogram(
            "forebay_billing_commit_seconds", "Time of a group commit.", buckets=_SECONDS, registry=self._registry
        )
        self.commit_jobs = Histogram(
            "forebay_billing_commit_jobs", "Writes that shared a commit.", buckets=(1, 2, 4, 8, 16, 32, 64), registry=self._registry
        )
        self._writes_waiting = Gauge("forebay_billing_writes_waiting", "Writes that wait for their commit.", registry=self._registry)
        self.unavailable = Counter("forebay_billing_store_unavailable", "Requests answered 503.", registry=self._registry)

        self._payment_orders = Gauge(
            "forebay_billing_payment_orders", "Orders to Stripe that are not settled.", ["state"], registry=self._registry
        )

    def paying(self, counts: Mapping[str, int]) -> None:
        """How many orders to Stripe are in each state."""
        for state in ("waiting", "dead"):
            self._payment_orders.labels(state).set(counts.get(state, 0))

    def watch_queue(self, waiting: Callable[[], int]) -> None:
        """Reads the gauge of waiting writes from ``waiting``."""
        self._writes_waiting.set_function(waiting)

    def committed(self, jobs: int, seconds: float) -> None:
        """A group of ``jobs`` writes was made durable."""
        self.commit_jobs.observe(jobs)
        self.commit_seconds.observe(seconds)

    def accepted(self, accepted: int, duplicates: int, cost_atto: dict[str, int]) -> None:
        """A batch was written."""
        self.records.labels("accepted").inc(accepted)
        self.records.labels("duplicate").inc(duplicates)
        for currency, atto in cost_atto.items():
            self.accepted_units.labels(currency).inc(atto / ATTO_PER_UNIT)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self._registry)
