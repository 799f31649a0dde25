"""What the service ``pool`` answers, as typed rows. Written by ``dashboards/row_models.py`` from its OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from forebay_service.causes import Cause
from pydantic import Field

from forebay_dashboards.rows.bases import (
    AuditEntryBase,
    Count,
    Currency,
    DeviceBase,
    Equivalent,
    FlavorBase,
    JobBase,
    LeaseBase,
    NodeBase,
    Row,
    SessionBase,
    Tag,
)


class Span(Row):
    id: str
    kind: Literal["cell", "process"]
    label: str
    cell: Count | None = None
    cell_id: str | None = None
    first_line: str | None = None


class Flavor(FlavorBase):
    etag: Tag = None
    name: str
    memory_bytes: Count
    equivalents: tuple[Equivalent, ...] = ()
    residents_max: Count | None = None
    images: str | None = None
    images_kept: str | None = None
    runtimes: tuple[str, ...] | None = None
    runtimes_served: tuple[str, ...] | None = None
    egress: tuple[str, ...] | None = None
    servable: bool = False
    reason: str | None = None
    cause: Cause | None = None


class Suggestion(Row):
    name: str
    memory_bytes: Count
    equivalents: tuple[Equivalent, ...] = ()
    added: tuple[Equivalent, ...] = ()
    residents_max: Count | None = None
    images: str | None = None
    runtimes: tuple[str, ...] | None = None
    egress: tuple[str, ...] | None = None
    etag: Tag = None
    proposed_nano_per_hour: Count | None = None
    currency: Currency | None = None
    priced_as: str | None = None


class Lease(LeaseBase):
    lease: str
    session: str
    tenant: str
    user: str
    flavor: str
    device_model: str
    node: str = ""
    devices: Count = 1
    share_milli: Count = 1000
    span: Span
    opened_at_ns: Count
    duration_ns: Count
    price_nano_per_hour: Count | None = None
    currency: Currency | None = None


class Session(SessionBase):
    position: Count | None = None
    reason: str | None = None
    code: str | None = None
    detail: str | None = None
    values: dict[str, str | Count] = Field(default_factory=dict)
    parts: tuple[Cause, ...] = ()
    estimate_seconds: float | None = None
    estimate_low_seconds: float | None = None
    estimate_high_seconds: float | None = None
    estimated_at_ns: Count | None = None
    running: Count | None = None
    running_seconds: float | None = None
    session: str
    tenant: str
    user: str
    flavor: str
    device_model: str | None = None
    state: str
    span: Span | None = None
    process: str = ""
    memory_bytes: Count | None = None
    since_ns: Count


class Fault(Row):
    """What is wrong in what was sent; ``field`` is null where it is not one field's."""

    code: str
    field: str | None = None
    values: dict[str, Any] = Field(default_factory=dict)


class Device(DeviceBase):
    device: str
    node: str
    kind: str
    model: str
    vendor: str = ""
    memory_bytes: Count
    state: str
    cordoned: bool = False
    cause: str | None = None
    causes: tuple[Cause, ...] = ()
    temperature_celsius: int | None = None
    free_milli: Count = 0
    lease: str | None = None
    leases: tuple[str, ...] = ()
    residents: tuple[str, ...] = ()


class Node(NodeBase):
    node: str
    switch: str = ""
    state: str
    cause: str | None = None
    causes: tuple[Cause, ...] = ()
    devices: Count
    closed: Count = 0
    free_milli: Count = 0
    leases: Count = 0
    residents: Count = 0
    parked: Count = 0


class AuditEntry(AuditEntryBase):
    id: Count
    at_ns: Count
    who: str
    action: str
    subject: str
    before: dict[str, Any] | None = None
    after: dict[str, Any]


class AuditPage(Row):
    entries: tuple[AuditEntry, ...] = ()
    next: str | None = None


class Health(Row):
    troubles: dict[str, str] = Field(default_factory=dict)


class Forecast(Row):
    """What to expect for a flavor."""

    flavor: str
    offered_devices: float
    rival_devices: float
    devices: float
    utilisation: float | None = None
    missing_devices: float
    wait_probability: float


class Quota(Row):
    etag: Tag = None
    tenant: str
    user: str | None = None
    devices_milli: Count | None = None
    device_seconds: Count | None = None
    window_seconds: Count | None = None
    on_exhausted: str = "wait"
    priority_max: int | None = None
    weight: Count = 1
    parked_bytes: Count | None = None
    on_parked_full: str = "stay"
    origin: Literal["operator", "owner"] = "operator"
    held_milli: Count = 0
    parked_bytes_held: Count = 0
    used_device_seconds: float = 0.0


class ShareRow(Row):
    """A tenant's part in the fair share: what it is entitled to by weight, and what it used, which counts less the longer ago it is."""

    tenant: str
    weight: Count
    held_milli: Count
    decayed_device_seconds: float


class Model(Row):
    etag: Tag = None
    model: str
    devices: Count
    free: Count
    closed: Count
    tenants: tuple[str, ...] | None = None


class Job(JobBase):
    """``attempt`` counts its runs. ``reason`` is a word for programs, ``sentence`` says it to people."""

    id: Count
    tenant: str
    user: str
    name: str
    file: str
    arguments: tuple[str, ...] = ()
    flavor: str | None = None
    retries_max: Count
    time_limit_seconds: Count | None = None
    notify: str | None = None
    environment: str | None = None
    files: str | None = None
    created_at_ns: Count
    state: str
    label: str
    attempt: Count
    started_at_ns: Count | None = None
    ended_at_ns: Count | None = None
    exit_status: int | None = None
    reason: str | None = None
    sentence: str | None = None


class Schedule(Row):
    """``skipped_at_ns``: when it last came due while its job before was not over. ``label``: as it was given."""

    id: Count
    name: str
    files: str | None = None
    cron: str
    zone: str
    next_at_ns: Count
    skipped_at_ns: Count | None = None


class Piece(Row):
    number: Count
    text: str


class JobOutput(Row):
    """
    ``next`` is the number to ask for what comes after; where the first piece's number is higher than was asked for, some are dropped.

    ``over``: no more comes of this run, and no other run follows.
    """

    attempt: Count
    pieces: tuple[Piece, ...] = ()
    next: Count
    over: bool


class SharedNotebook(Row):
    id: Count
    user: str
    name: str
    shared_at_ns: Count
    expires_at_ns: Count


class NotebookPage(Row):
    """HTML that somebody else made: to be shown only where it can run nothing."""

    page: str


class Trend(Row):
    """A stretch of time. Devices, requests and efficiency are means over it; waits are of leases that were granted in it."""

    start_ns: Count
    held: float
    idle: float
    free: float
    closed: float
    waiting: float
    waiting_max: Count
    grants: Count
    wait_p50_seconds: float | None = None
    wait_p95_seconds: float | None = None
    efficiency: float | None = None


class Trends(Row):
    """``rows`` oldest first; a stretch of which nothing is known, as while the pool stood still, is left out."""

    step_seconds: Count
    until_ns: Count
    rows: tuple[Trend, ...] = ()


class Holder(Row):
    """Whose lease it was, and for what."""

    lease: str
    tenant: str
    user: str
    flavor: str
    span: Span


class Stretch(Row):
    """``leases`` of them held the device for ``held_ns`` from ``started_ns`` to ``ended_ns``; ``holder`` is told where it is one."""

    device: str
    lane: Count
    started_ns: Count
    ended_ns: Count
    held_ns: Count
    leases: Count
    is_open: bool
    holder: Holder | None = None


class Timeline(Row):
    """Stretches by device and time; with ``more`` there was too much to read, and the oldest of it is not there."""

    since_ns: Count
    until_ns: Count
    more: bool
    stretches: tuple[Stretch, ...] = ()
