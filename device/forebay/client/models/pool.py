"""What the service ``pool`` answers to tenants. Written by ``device/client_models.py`` from its OpenAPI document."""

from __future__ import annotations

from typing import Literal

from forebay.client.row import Row


class CauseRow(Row):
    """``message`` is its English; ``code`` is None where somebody typed it. ``parts`` are causes that stand in its sentence."""

    message: str
    code: str | None
    values: dict[str, str | int]
    parts: list[CauseRow]


class Choice(Row):
    flavor: str


class EquivalentRow(Row):
    """``devices``: how many of the model there are here. ``speed``: the speed class of the slowest of them, 100 is the reference."""

    model: str
    count: int
    share_milli: int
    devices: int
    speed: int | None


class FlavorRow(Row):
    etag: str
    name: str
    memory_bytes: int
    equivalents: list[EquivalentRow]
    residents_max: int | None
    images: Literal["none", "process", "node", "disk"] | None
    images_kept: Literal["none", "process", "node", "disk"] | None
    runtimes: list[Literal["torch", "xla", "exec"]] | None
    runtimes_served: list[Literal["torch", "xla", "exec"]] | None
    egress: list[str] | None
    servable: bool
    reason: str | None
    cause: CauseRow | None
    price_nano_per_hour: int | None
    parked_nano_per_gib_hour: int | None
    currency: str | None
    waiting: int
    wait_seconds: float | None


class ImageRow(Row):
    bytes: int
    at_ns: int


class JobRow(Row):
    """``attempt`` counts its runs. ``reason`` is a word for programs, ``sentence`` says it to people."""

    id: int
    tenant: str
    user: str
    name: str
    kind: Literal["script", "module", "notebook"]
    file: str
    arguments: list[str]
    folder: str
    flavor: str | None
    retries_max: int
    time_limit_seconds: int | None
    notify: Literal["none", "failures", "all"] | None
    environment: str | None
    files: str | None
    created_at_ns: int
    state: Literal["queued", "starting", "running", "succeeded", "failed", "cancelling", "cancelled"]
    label: str
    attempt: int
    not_before_ns: int
    started_at_ns: int | None
    ended_at_ns: int | None
    exit_status: int | None
    reason: str | None
    sentence: str | None
    schedule: int | None


class NewSharedNotebookRow(Row):
    """``key`` goes into the link; it is told this once."""

    id: int
    tenant: str
    user: str
    name: str
    shared_at_ns: int
    expires_at_ns: int
    key: str


class NotebookPageRow(Row):
    """HTML that somebody else made: to be shown only where it can run nothing."""

    page: str


class PieceRow(Row):
    number: int
    text: str


class QuotaRow(Row):
    etag: str
    tenant: str
    user: str | None
    devices_milli: int | None
    device_seconds: int | None
    window_seconds: int | None
    on_exhausted: Literal["wait", "revoke"]
    priority_max: int | None
    weight: int
    parked_bytes: int | None
    on_parked_full: Literal["stay", "end"]
    origin: Literal["operator", "owner"]
    held_milli: int
    parked_bytes_held: int
    used_device_seconds: float
    decayed_device_seconds: float
    budget: Literal["open", "wait", "refuse", "drain"]


class ScheduleRow(Row):
    """``skipped_at_ns``: when it last came due while its job before was not over. ``label``: as it was given."""

    id: int
    tenant: str
    user: str
    name: str
    kind: Literal["script", "module", "notebook"]
    file: str
    arguments: list[str]
    folder: str
    flavor: str | None
    retries_max: int
    time_limit_seconds: int | None
    notify: Literal["none", "failures", "all"] | None
    environment: str | None
    files: str | None
    created_at_ns: int
    label: str | None
    cron: str
    zone: str
    next_at_ns: int
    skipped_at_ns: int | None


class SharedNotebookRow(Row):
    id: int
    tenant: str
    user: str
    name: str
    shared_at_ns: int
    expires_at_ns: int


class SignedReceiptRow(Row):
    text: str
    signature: str


class SpanRow(Row):
    id: str
    kind: Literal["cell", "process"]
    label: str
    cell: int | None
    cell_id: str | None
    first_line: str | None


class OutputRow(Row):
    """
    ``next`` is the number to ask for what comes after; where the first piece's number is higher than was asked for, some are dropped.

    ``over``: no more comes of this run, and no other run follows.
    """

    attempt: int
    pieces: list[PieceRow]
    next: int
    over: bool


class QueueRow(Row):
    position: int | None
    reason: str | None
    code: Literal["quota", "shortage", "fragmentation", "budget", "draining", "starting", "restoring", "store"] | None
    detail: str | None
    values: dict[str, str | int]
    parts: list[CauseRow]
    ahead: int | None
    ahead_tenant: int | None
    estimate_seconds: float | None
    estimate_low_seconds: float | None
    estimate_high_seconds: float | None
    estimated_at_ns: int | None
    running: int | None
    running_seconds: float | None
    session: str
    tenant: str
    user: str
    flavor: str
    span: SpanRow
    priority: int
    since_ns: int


class ReceiptPage(Row):
    key: str
    receipts: list[SignedReceiptRow]
    next: str | None


class SessionRow(Row):
    position: int | None
    reason: str | None
    code: Literal["quota", "shortage", "fragmentation", "budget", "draining", "starting", "restoring", "store"] | None
    detail: str | None
    values: dict[str, str | int]
    parts: list[CauseRow]
    ahead: int | None
    ahead_tenant: int | None
    estimate_seconds: float | None
    estimate_low_seconds: float | None
    estimate_high_seconds: float | None
    estimated_at_ns: int | None
    running: int | None
    running_seconds: float | None
    session: str
    tenant: str
    user: str
    flavor: str
    device_model: str | None
    state: Literal["idle", "queued", "active", "resident", "parked", "lost", "ended"]
    span: SpanRow | None
    process: str
    memory_bytes: int
    image: ImageRow | None
    since_ns: int


CauseRow.model_rebuild()
