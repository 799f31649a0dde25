"""The pool's Prometheus metrics: base units, and labels that cannot grow without bound: tenants and flavors, no users, no sessions."""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from forebay_wire.messages import Heartbeat
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from forebay_pool.machine.state_machine import StateMachine
from forebay_pool.model.trends import bucket_of
from forebay_pool.model.types import WHOLE_MILLI, Lease, Seat, Session, UsageRecord
from forebay_pool.placement.fleet import Fleet
from forebay_pool.placement.room import residents
from forebay_pool.views.device_metrics import Readings, device_families

disable_created_metrics()  # type: ignore[no-untyped-call] # a gauge beside each counter that nobody reads

WAIT_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
SESSION_STATES = ("idle", "queued", "active", "resident", "parked")
WORKER_STATES = ("starting", "warm", "assigning", "bound", "ending")
DEVICE_STATES = ("free", "idle", "placing", "leased", "draining", "cordoned", "lost")
"""As the API says it, but that a free device on which tensors of resident sessions wait is ``idle``."""
SECOND_NS = 10**9


class Metrics:
    """Counts what happened; :class:`StateCollector` reads how things stand when it is asked."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.readings = Readings()
        ProcessCollector(registry=self.registry)
        self._count_leases()
        self._count_faults()
        self._count_records()
        self.waits: Tally[int] = Tally()
        """Those that ended since the last sample of the trends was taken, by bucket."""
        self._worked_ns: dict[str, tuple[int, int]] = {}
        """By worker: for how long it computed, and how many commands, when it said so last."""

    def _count_leases(self) -> None:
        self.leases_opened = self._counter("forebay_pool_leases_opened_total", "Leases opened", "tenant", "flavor")
        self.leases_closed = self._counter("forebay_pool_leases_closed_total", "Leases closed", "tenant", "flavor", "reason")
        self.lease_seconds = self._counter(
            "forebay_pool_lease_seconds_total",
            "Time metered of leases: in segments, once an hour and at their ends",
            *("tenant", "flavor"),
        )
        self.device_seconds = self._counter(
            "forebay_pool_device_seconds_total",
            "Device time metered of leases: a gang counts each device, a share its part",
            *("tenant", "flavor", "model"),
        )
        self.energy = self._counter(
            "forebay_pool_energy_joules_total", "What devices drew in leases, where their drivers tell", "tenant", "flavor", "model"
        )
        self.busy_seconds = self._counter(
            "forebay_pool_worker_busy_seconds_total", "Time for which workers executed commands, by their heartbeats", "tenant", "flavor"
        )
        self.commands = self._counter(
            "forebay_pool_worker_commands_total", "Commands that workers executed, by their heartbeats", "tenant", "flavor"
        )
        self.wait_seconds = Histogram(
            "forebay_pool_lease_wait_seconds",
            "From a request to its grant",
            ("flavor",),
            registry=self.registry,
            buckets=WAIT_BUCKETS_SECONDS,
        )
        self.refusals = self._counter("forebay_pool_refusals_total", "Requests of clients that were refused", "code")

    def _count_faults(self) -> None:
        self.events = self._counter("forebay_pool_events_total", "Events that the state machine handled")
        self.bad_messages = self._counter("forebay_pool_bad_messages_total", "Messages that broke the protocol", "link")
        self.workers_failed = self._counter("forebay_pool_workers_failed_total", "Workers that died before their session ended")
        self.heartbeats_lost = self._counter(
            "forebay_pool_heartbeats_lost_total", "Workers and clients that were silent for too long; they may be heard again", "link"
        )
        self.device_alerts = self._counter("forebay_pool_device_alerts_total", "Devices whose health an operator should look at", "model")
        self.sessions_lost = self._counter("forebay_pool_sessions_lost_total", "Sessions whose tensors were lost")
        self.store_failures = self._counter("forebay_pool_store_failures_total", "Writes that the database did not take")
        for link in ("worker", "session"):
            self.heartbeats_lost.labels(link)
            self.bad_messages.labels(link)

    def _count_records(self) -> None:
        self.records_written = self._counter("forebay_pool_records_written_total", "Usage records written durably")
        self.records_delivered = self._counter("forebay_pool_records_delivered_total", "Usage records that billing took")
        self.records_refused = self._counter("forebay_pool_records_refused_total", "Usage records that billing refused")
        self.deliveries_failed = self._counter(
            "forebay_pool_deliveries_failed_total", "Attempts to deliver usage records that failed, and are made again"
        )
        self.billing_heartbeats = self._counter("forebay_pool_billing_heartbeats_total", "Heartbeats to billing, by outcome", "outcome")
        self.heartbeat_leases_refused = self._counter(
            "forebay_pool_heartbeat_leases_refused_total", "Open leases that billing refuses to hear of, and that heartbeats leave out"
        )
        for outcome in ("taken", "failed"):
            self.billing_heartbeats.labels(outcome)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def lease_opened(self, lease: Lease) -> None:
        self.leases_opened.labels(lease.session.tenant, lease.flavor.name).inc()
        self.wait_seconds.labels(lease.flavor.name).observe(lease.waited_ns / SECOND_NS)
        self.waits[bucket_of(lease.waited_ns)] += 1

    def metered(self, record: UsageRecord) -> None:
        if record.is_last:
            self.leases_closed.labels(record.tenant, record.flavor, record.close_reason).inc()
        seconds = record.duration_ns / SECOND_NS
        self.lease_seconds.labels(record.tenant, record.flavor).inc(seconds)
        devices = record.devices * record.share_milli / WHOLE_MILLI
        self.device_seconds.labels(record.tenant, record.flavor, record.device_model).inc(seconds * devices)
        if record.energy_mj is not None:
            self.energy.labels(record.tenant, record.flavor, record.device_model).inc(record.energy_mj / 1_000)

    def delivered(self, count: int, taken: bool) -> None:
        (self.records_delivered if taken else self.records_refused).inc(count)

    def worker_started(self, worker: str) -> None:
        """From here on all counts that it does; of a worker that another pool started, what it does after its first heartbeat here."""
        self._worked_ns[worker] = (0, 0)

    def worker_gone(self, worker: str) -> None:
        self._worked_ns.pop(worker, None)

    def beat(self, worker: str, session: Session | None, heartbeat: Heartbeat) -> None:
        """A worker says what it did since it started."""
        now = (heartbeat.busy_ns, heartbeat.commands)
        busy_ns, commands = self._worked_ns.get(worker, now)
        self._worked_ns[worker] = now
        if session is not None:
            self.busy_seconds.labels(session.tenant, session.flavor).inc(max(0, now[0] - busy_ns) / SECOND_NS)
            self.commands.labels(session.tenant, session.flavor).inc(max(0, now[1] - commands))


@dataclass(frozen=True, slots=True)
class Backlog:
    """Usage records that are not with billing."""

    unwritten: int
    """Not on disk yet."""
    waiting: int | None = None
    """On disk, and not sent yet; None while the database does not say."""
    refused: int | None = None
    oldest_unix_ns: int | None = None
    """When the oldest of those that wait ended; None where none waits."""


class StateCollector(Collector):
    """How sessions, devices, workers, the queue and the backlog stand. ``clock_ns`` is the state machine's, ``unix_ns`` the world's."""

    def __init__(
        self,
        machine: StateMachine,
        readings: Readings,
        backlog: Callable[[], Backlog],
        clock_ns: Callable[[], int],
        unix_ns: Callable[[], int],
    ) -> None:
        self._machine = machine
        self._readings = readings
        self._backlog = backlog
        self._clock_ns = clock_ns
        self._unix_ns = unix_ns

    def collect(self) -> Iterator[Metric]:
        machine = self._machine
        yield leader_family(True)
        yield _gauge("forebay_pool_accepting", "0 while no lease is opened, 1 otherwise", (), {(): int(machine.accepting)})
        yield from _session_families(machine.sessions.values())
        workers: Tally[str] = Tally(worker.state for worker in machine.fleet.workers.values())
        yield _gauge("forebay_pool_workers", "Worker processes, by state", ("state",), {(s,): workers[s] for s in WORKER_STATES})
        yield from _seat_families(machine.fleet.seats.values())
        yield from _growth_families(machine.fleet)
        yield _gauge("forebay_pool_queue_requests", "Requests that wait for a device", (), {(): len(machine.queue)})
        yield from _waiting_families(machine.sessions.values(), self._clock_ns())
        yield from _backlog_families(self._backlog(), self._unix_ns())
        yield from device_families(self._readings, machine.fleet.seats)


def tell_certificate(registry: CollectorRegistry, seconds_left: Callable[[], float]) -> None:
    """Has the registry tell when the certificate ends."""
    text = "Until the certificate ends that this service shows; infinite where it shows none"
    Gauge("forebay_pool_certificate_left_seconds", text, registry=registry).set_function(seconds_left)


def tell_job_files(registry: CollectorRegistry, count_bytes: Callable[[], float]) -> None:
    """What the files of jobs take."""
    text = "What files of jobs take on disk, as last looked at"
    Gauge("forebay_pool_job_files_bytes", text, registry=registry).set_function(count_bytes)


def leader_family(leads: bool) -> GaugeMetricFamily:
    """Of several pools one leads; those that wait tell nothing else."""
    return _gauge("forebay_pool_leader", "1 where this pool leads, 0 where it waits to take over", (), {(): int(leads)})


def _session_families(sessions: Iterable[Session]) -> Iterator[Metric]:
    states: Tally[str] = Tally()
    leases: Tally[tuple[str, ...]] = Tally()
    held: dict[tuple[str, ...], float] = defaultdict(float)
    parked: Tally[tuple[str, ...]] = Tally()
    for session in sessions:
        states[session.state] += 1
        if session.lease is not None:
            owner = (session.tenant, session.lease.flavor.name)
            leases[owner] += 1
            held[owner] += session.lease.held_milli / WHOLE_MILLI
        holder = session.parked_at
        if holder is not None:
            parked[(session.tenant,)] += holder.parked_bytes or 0
    yield _gauge("forebay_pool_sessions", "Sessions, by state", ("state",), {(s,): states[s] for s in SESSION_STATES})
    owners = ("tenant", "flavor")
    yield _gauge("forebay_pool_leases", "Leases that are open", owners, leases)
    yield _gauge("forebay_pool_held_devices", "Devices that leases hold: a gang counts each device, a share its part", owners, held)
    yield _gauge("forebay_pool_parked_bytes", "Tensors of sessions that are parked, off devices", ("tenant",), parked)


def _seat_families(seats: Iterable[Seat]) -> Iterator[Metric]:
    states: Tally[tuple[str, ...]] = Tally()
    closed: Tally[tuple[str, ...]] = Tally()
    capacity: Tally[tuple[str, ...]] = Tally()
    reserved: Tally[tuple[str, ...]] = Tally()
    for seat in seats:
        place = (seat.device.node, seat.device.model)
        states.update({(*place, state): 0 for state in DEVICE_STATES})
        states[(*place, "idle" if seat.state == "free" and residents(seat) else seat.state)] += 1
        closed[place] += not seat.is_open
        capacity[place] += seat.device.memory_bytes
        reserved[place] += seat.reserved_bytes
    places = ("node", "model")
    yield _gauge("forebay_pool_devices", "Devices, by what they do", (*places, "state"), states)
    yield _gauge("forebay_pool_closed_devices", "Devices that no lease opens on, whatever they still do", places, closed)
    yield _gauge("forebay_pool_device_memory_bytes", "Memory of the devices", places, capacity)
    yield _gauge("forebay_pool_device_memory_reserved_bytes", "Device memory set aside for sessions", places, reserved)


def _growth_families(fleet: Fleet) -> Iterator[Metric]:
    groups = fleet.growth.values()
    counts: dict[tuple[str, ...], float] = {
        ("wanted",): sum(one.wanted for one in groups),
        ("starting",): sum(len(one.asked_ns) for one in groups),
    }
    yield _gauge("forebay_pool_elastic_nodes", "Nodes of groups that come and go, wanted and on their way", ("state",), counts)


def _waiting_families(sessions: Iterable[Session], now_ns: int) -> Iterator[Metric]:
    waiting: Tally[tuple[str, ...]] = Tally()
    oldest: dict[tuple[str, ...], float] = {}
    for session in sessions:
        if session.request is not None:
            told = session.request.told
            kind = (session.flavor, "new" if told is None else told.code)
            waiting[(session.tenant, *kind)] += 1
            oldest[kind] = max(oldest.get(kind, 0.0), (now_ns - session.request.arrived_ns) / SECOND_NS)
    labels = ("tenant", "flavor", "reason")
    yield _gauge("forebay_pool_waiting_requests", "Requests that are not granted yet, by what their client was told", labels, waiting)
    text = "For how long the oldest request waits that is not granted yet"
    yield _gauge("forebay_pool_oldest_request_seconds", text, ("flavor", "reason"), oldest)


def _backlog_families(backlog: Backlog, now_unix_ns: int) -> Iterator[Metric]:
    yield _gauge("forebay_pool_unwritten_records", "Usage records that are not on disk yet", (), {(): backlog.unwritten})
    if backlog.waiting is None or backlog.refused is None:
        return
    counts: dict[tuple[str, ...], float] = {("waiting",): backlog.waiting, ("refused",): backlog.refused}
    text = "Usage records on disk that billing has not taken: they wait, or were refused and set aside"
    yield _gauge("forebay_pool_undelivered_records", text, ("state",), counts)
    age = 0.0 if backlog.oldest_unix_ns is None else max(0.0, (now_unix_ns - backlog.oldest_unix_ns) / SECOND_NS)
    yield _gauge("forebay_pool_undelivered_oldest_seconds", "Since the usage ended that waits longest for billing", (), {(): age})


def _gauge(name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family
