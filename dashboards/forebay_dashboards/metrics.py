"""What Prometheus reads of this service."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

disable_created_metrics()  # type: ignore[no-untyped-call] # a gauge beside each counter that nobody reads
REQUESTS = Counter("forebay_dashboards_requests_total", "Requests answered, by page and status", ["page", "status"])
REQUEST_SECONDS = Histogram(
    "forebay_dashboards_request_seconds",
    "Time to answer a request that is not an event stream",
    ["page"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
CERTIFICATE_LEFT = Gauge(
    "forebay_dashboards_certificate_left_seconds", "Until the certificate ends that this service shows; infinite where it shows none"
)
UPSTREAM_CALLS = Counter("forebay_dashboards_upstream_calls_total", "Calls to pool and billing, by outcome", ["service", "outcome"])
BROWSERS = Gauge("forebay_dashboards_browsers", "Open event streams of browsers", ["view"])
BROWSERS_DROPPED = Counter("forebay_dashboards_browsers_dropped_total", "Event streams ended because the browser did not read")
UPDATES = Counter("forebay_dashboards_updates_total", "Changes told to browsers, by topic", ["topic"])
FEED_CONNECTED = Gauge("forebay_dashboards_feed_connected", "1 while the pool's event stream is open")
FEED_EVENTS = Counter("forebay_dashboards_feed_events_total", "Events received from the pool", ["event"])
FEED_RECONNECTS = Counter("forebay_dashboards_feed_reconnects_total", "Attempts to open the pool's event stream after the first")
RECORD_SECONDS = Histogram(
    "forebay_dashboards_record_seconds",
    "From a lease's end to its usage record being known to the dashboards",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
RECORDS_LATE = Counter("forebay_dashboards_records_late_total", "Usage records that did not appear in time after their lease ended")
