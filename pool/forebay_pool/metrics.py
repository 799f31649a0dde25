"""The pool's Prometheus metrics: base units, and labels that cannot grow without bound (no users, no sessions)."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator
from typing import Any, get_args

from forebay_wire.messages import WaitCode
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from forebay_pool.state_machine import StateMachine
from forebay_pool.types import Lease, UsageRecord

WAIT_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
SESSION_STATES = ("idle", "queued", "active", "resident", "parked")
WORKER_STATES = ("starting", "warm", "assigning", "bound", "ending")
DEVICE_STATES = ("free", "placing", "leased", "draining", "cordoned", "lost")


class Metrics:
    """Counts what happened; :class:`StateCollector` reads how things stand when it is asked."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leases_opened = self._counter("forebay_pool_leases_opened_total", "Leases opened", "tenant", "flavor")
        self.leases_closed = self._counter("forebay_pool_leases_closed_total", "Leases closed", "tenant", "flavor", "reason")
        self.lease_seconds = self._counter("forebay_pool_lease_seconds_total", "Time metered of leases", "tenant", "flavor")
        self.wait_seconds = Histogram(
            "forebay_pool_lease_wait_seconds",
            "From a request to its grant",
            ("flavor",),
            registry=self.registry,
            buckets=WAIT_BUCKETS_SECONDS,
        )
        self.refusals = self._counter("forebay_pool_refusals_total", "Requests of clients that were refused", "code")
        self.events = self._counter("forebay_pool_events_total", "Events that the state machine handled")
        self.bad_messages = self._counter("forebay_pool_bad_messages_total", "Messages that broke the protocol", "link")
        self.workers_failed = self._counter("forebay_pool_workers_failed_total", "Workers that died before their session ended")
        self.device_alerts = self._counter("forebay_pool_device_alerts_total", "Devices whose health an operator should look at", "model")
        self.sessions_lost = self._counter("forebay_pool_sessions_lost_total", "Sessions whose tensors were lost")
        self.store_failures = self._counter("forebay_pool_store_failures_total", "Writes that the database did not take")
        self.records_written = self._counter("forebay_pool_records_written_total", "Usage records written durably")
        self.records_delivered = self._counter("forebay_pool_records_delivered_total", "Usage records that billing took")
        self.records_refused = self._counter("forebay_pool_records_refused_total", "Usage records that billing refused")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def lease_opened(self, lease: Lease) -> None:
        self.leases_opened.labels(lease.session.tenant, lease.flavor.name).inc()
        self.wait_seconds.labels(lease.flavor.name).observe(lease.waited_ns / 1e9)

    def metered(self, record: UsageRecord) -> None:
        if record.is_last:
            self.leases_closed.labels(record.tenant, record.flavor, record.close_reason).inc()
        self.lease_seconds.labels(record.tenant, record.flavor).inc(record.duration_ns / 1e9)

    def delivered(self, count: int, taken: bool) -> None:
        (self.records_delivered if taken else self.records_refused).inc(count)


class StateCollector(Collector):
    """How sessions, devices, workers, the queue and the backlog stand."""

    def __init__(self, machine: StateMachine, backlog: Callable[[], int]) -> None:
        self._machine = machine
        self._backlog = backlog

    def collect(self) -> Iterator[Any]:
        machine, fleet = self._machine, self._machine.fleet
        sessions: Tally[str] = Tally(session.state for session in machine.sessions.values())
        yield _gauge("forebay_pool_sessions", "Sessions, by state", ("state",), {(s,): sessions[s] for s in SESSION_STATES})
        workers: Tally[str] = Tally(worker.state for worker in fleet.workers.values())
        yield _gauge("forebay_pool_workers", "Worker processes, by state", ("state",), {(s,): workers[s] for s in WORKER_STATES})
        models = {seat.device.model for seat in fleet.seats.values()}
        seats: Tally[tuple[str, str]] = Tally((seat.device.model, seat.state) for seat in fleet.seats.values())
        devices = {(model, state): seats[(model, state)] for model in sorted(models) for state in DEVICE_STATES}
        yield _gauge("forebay_pool_devices", "Devices, by model and state", ("model", "state"), devices)
        capacity: Tally[tuple[str, ...]] = Tally()
        reserved: Tally[tuple[str, ...]] = Tally()
        for seat in fleet.seats.values():
            capacity[(seat.device.model,)] += seat.device.memory_bytes
            reserved[(seat.device.model,)] += seat.reserved_bytes
        yield _gauge("forebay_pool_device_memory_bytes", "Memory of the devices", ("model",), capacity)
        yield _gauge("forebay_pool_device_memory_reserved_bytes", "Device memory set aside for sessions", ("model",), reserved)
        waits = [session.request.told for session in machine.sessions.values() if session.request is not None]
        codes: Tally[str] = Tally(told.code for told in waits if told is not None)
        reasons = {(code,): codes[code] for code in get_args(WaitCode)}
        yield _gauge("forebay_pool_waiting_requests", "Requests that are not granted yet, by reason", ("reason",), reasons)
        yield _gauge("forebay_pool_queue_requests", "Requests that wait for a device", (), {(): len(machine.line)})
        yield _gauge("forebay_pool_unwritten_records", "Usage records that are not on disk yet", (), {(): self._backlog()})
        yield _gauge("forebay_pool_accepting", "0 while no lease is opened, 1 otherwise", (), {(): int(machine.accepting)})


def _gauge(name: str, text: str, labels: tuple[str, ...], values: Any) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family
