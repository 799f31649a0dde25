"""The rows that the pool shows: ARCHITECTURE.md's tables of leases, sessions, the queue, quotas, devices, nodes, models and flavors.

Their types are what ``api/openapi.json`` describes: mypy holds each function to its row.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

from forebay_service.preconditions import tag_of
from forebay_wire.messages import Span, WaitCode
from forebay_wire.remote.runtimes import RUNTIMES, Runtime
from typing_extensions import TypedDict  # pydantic reads typing's own from Python 3.12 on

from forebay_pool.machine.base.eviction import parked_bytes
from forebay_pool.machine.base.refusals import why_not_runtime
from forebay_pool.model.catalogue import ACCELERATORS
from forebay_pool.model.causes import Cause
from forebay_pool.model.policies import Author, ImagePolicy, ModelPolicy
from forebay_pool.model.suggestions import Suggestion, is_accelerator, proposed_price
from forebay_pool.model.types import (
    BudgetState,
    DeviceState,
    Equivalent,
    Flavor,
    Kind,
    Lease,
    Node,
    NodeState,
    Price,
    Seat,
    Session,
    SessionState,
)
from forebay_pool.placement.fleet import Fleet
from forebay_pool.placement.lease_lengths import Outlook
from forebay_pool.placement.room import kept_bytes, residents
from forebay_pool.queue.accounts import Account
from forebay_pool.store.flavors import settings_of


class SpanRow(TypedDict):
    id: str
    kind: Literal["cell", "process"]
    label: str
    cell: int | None
    cell_id: str | None
    first_line: str | None


class LeaseRow(TypedDict):
    lease: str
    session: str
    tenant: str
    user: str
    flavor: str
    device_model: str
    node: str
    devices: int
    share_milli: int
    span: SpanRow
    opened_at_ns: int
    duration_ns: int
    price_nano_per_hour: int | None
    currency: str | None


class CauseRow(TypedDict):
    """``message`` is its English; ``code`` is None where somebody typed it. ``parts`` are causes that stand in its sentence."""

    message: str
    code: str | None
    values: dict[str, str | int]
    parts: list[CauseRow]


class StandingRow(TypedDict):
    """How a session that waits stands; all None while it does not."""

    position: int | None
    reason: str | None
    code: WaitCode | None
    detail: str | None
    """Which of the causes that the code may have, with its values and parts."""
    values: dict[str, str | int]
    parts: list[CauseRow]
    ahead: int | None
    ahead_tenant: int | None
    estimate_seconds: float | None
    """Half of those who are told so wait for less; most, for more than the low and less than the high one."""
    estimate_low_seconds: float | None
    estimate_high_seconds: float | None
    estimated_at_ns: int | None
    """When that was told, as Unix time; it counts from then."""
    running: int | None
    """Leases that held then what it waits for."""
    running_seconds: float | None
    """For how long the oldest of them had run."""


class ImageRow(TypedDict):
    bytes: int
    at_ns: int


class SessionRow(StandingRow):
    session: str
    tenant: str
    user: str
    flavor: str
    device_model: str | None
    state: SessionState
    span: SpanRow | None
    process: str
    memory_bytes: int
    image: ImageRow | None
    """The last one, from which the session goes on if its worker dies."""
    since_ns: int


class QueueRow(StandingRow):
    session: str
    tenant: str
    user: str
    flavor: str
    span: SpanRow
    priority: int
    since_ns: int


class QuotaRow(TypedDict):
    etag: str
    """Of what is set: see If-Match of the change."""
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
    origin: Author
    """Who set it; an owner changes only what an owner set, for a user."""
    held_milli: int
    parked_bytes_held: int
    used_device_seconds: float
    decayed_device_seconds: float
    budget: BudgetState


class ShareRow(TypedDict):
    """A tenant's part in the fair share: what it is entitled to by weight, and what it used, which counts less the longer ago it is."""

    tenant: str
    weight: int
    held_milli: int
    decayed_device_seconds: float


class DeviceRow(TypedDict):
    device: str
    node: str
    kind: Kind
    model: str
    vendor: str
    speed: int
    switch: str
    spot: bool
    """Whether its provider may take it back at short notice."""
    memory_bytes: int
    state: DeviceState
    cordoned: bool
    cause: str | None
    """All causes as one sentence."""
    causes: list[CauseRow]
    temperature_celsius: int | None
    free_milli: int
    lease: str | None
    leases: list[str]
    residents: list[str]


class NodeRow(TypedDict):
    node: str
    switch: str
    state: NodeState
    cause: str | None
    """Why it was given up, else why it runs no processes of ``forebay exec`` although its devices could."""
    causes: list[CauseRow]
    devices: int
    closed: int
    free_milli: int
    leases: int
    residents: int
    parked_bytes: int
    """What these take."""
    moving: int
    """How many of them are on their way to another host."""
    releases: bool
    """Whether it drains because it is needed no more."""
    parked: int
    """Sessions whose tensors lie in this host's memory or on its disk, off its devices: they are lost with the host."""


class ModelRow(TypedDict):
    etag: str
    """Of what is set: see If-Match of the change."""
    model: str
    devices: int
    free: int
    closed: int
    tenants: list[str] | None


class EquivalentRow(TypedDict):
    """``devices``: how many of the model there are here. ``speed``: the speed class of the slowest of them, 100 is the reference."""

    model: str
    count: int
    share_milli: int
    devices: int
    speed: int | None


class FlavorRow(TypedDict):
    etag: str
    """Of what is set: see If-Match of the change."""
    name: str
    memory_bytes: int
    equivalents: list[EquivalentRow]
    residents_max: int | None
    images: ImagePolicy | None
    """What is set; None: what the pool's setting says."""
    images_kept: ImagePolicy | None
    """Where images of its sessions are kept; null is for pools of older releases."""
    runtimes: list[Runtime] | None
    """What it offers; None: all that its hosts serve."""
    runtimes_served: list[Runtime] | None
    """What can be had of it here; null is for pools of older releases."""
    egress: list[str] | None
    """Places that its processes may reach; None: those of the pool's setting."""
    servable: bool
    reason: str | None
    """In English."""
    cause: CauseRow | None
    price_nano_per_hour: int | None
    parked_nano_per_gib_hour: int | None
    """What a GiB costs in an hour in which it is parked, or in an image of its sessions."""
    currency: str | None
    waiting: int
    wait_seconds: float | None


class SuggestionRow(TypedDict):
    name: str
    memory_bytes: int
    equivalents: list[EquivalentRow]
    """All that would serve it."""
    added: list[EquivalentRow]
    """What of them is new."""
    residents_max: int | None
    images: ImagePolicy | None
    runtimes: list[Runtime] | None
    egress: list[str] | None
    etag: str | None
    """Of the flavor that is there by now, which this one adds to; None where there is none of the name."""
    proposed_nano_per_hour: int | None
    """A price by memory, as ``priced_as`` has; None where the flavor is there, or none has a price."""
    currency: str | None
    priced_as: str | None


def span_row(span: Span) -> SpanRow:
    return {
        "id": span.id,
        "kind": span.kind,
        "label": span.label,
        "cell": span.cell,
        "cell_id": span.cell_id,
        "first_line": span.first_line,
    }


def lease_row(lease: Lease, now_ns: int) -> LeaseRow:
    return {
        "lease": lease.id,
        "session": lease.session.id,
        "tenant": lease.session.tenant,
        "user": lease.session.user,
        "flavor": lease.flavor.name,
        "device_model": lease.device.model,
        "node": lease.device.node,
        "devices": len(lease.place.devices),
        "share_milli": lease.place.share_milli,
        "span": span_row(lease.span),
        "opened_at_ns": lease.opened_unix_ns,
        "duration_ns": lease.duration_ns if lease.state == "closed" else now_ns - lease.opened_ns,
        "price_nano_per_hour": None if lease.price is None else lease.price.nano_per_hour,
        "currency": None if lease.price is None else lease.price.currency,
    }


def session_row(session: Session) -> SessionRow:
    image = session.replay.image
    span = session.lease.span if session.lease is not None else session.request.span if session.request is not None else session.span
    return {
        "session": session.id,
        "tenant": session.tenant,
        "user": session.user,
        "flavor": session.flavor,
        "device_model": device_of(session),
        "state": session.state,
        "span": None if span is None else span_row(span),
        "process": session.process,
        "memory_bytes": session.worker.memory_bytes if session.worker is not None else 0,
        "image": None if image is None else {"bytes": image.bytes, "at_ns": image.at_unix_ns},
        **_standing(session),
        "since_ns": session.since_unix_ns,
    }


def _standing(session: Session) -> StandingRow:
    told = None if session.request is None else session.request.told
    estimate = None if told is None else told.estimate
    why = cause_row("" if told is None else told.reason)
    return {
        "position": None if told is None else told.position,
        "reason": None if told is None else told.reason,
        "code": None if told is None else told.code,
        "detail": why["code"],
        "values": why["values"],
        "parts": why["parts"],
        "ahead": None if told is None else told.position - 1,
        "ahead_tenant": None if told is None else told.ahead_tenant,
        "estimate_seconds": None if estimate is None else estimate.middle,
        "estimate_low_seconds": None if estimate is None else estimate.low,
        "estimate_high_seconds": None if estimate is None else estimate.high,
        "estimated_at_ns": None if estimate is None else estimate.made_unix_ns,
        "running": None if estimate is None else estimate.running,
        "running_seconds": None if estimate is None else estimate.running_seconds,
    }


def queue_row(session: Session) -> QueueRow:
    """A session that waits, its request's times and rank."""
    request = session.request
    if request is None:
        raise ValueError(f"session {session.id} does not wait")
    return {
        "session": session.id,
        "tenant": session.tenant,
        "user": session.user,
        "flavor": session.flavor,
        "span": span_row(request.span),
        "priority": request.priority,
        **_standing(session),
        "since_ns": request.arrived_unix_ns,
    }


def quota_row(account: Account, now_ns: int, fleet: Fleet) -> QuotaRow:
    """A quota, and how much of it is held and used."""
    quota = account.quota
    used = 0 if account.window is None else account.window.used(now_ns)
    return {
        "etag": tag_of(asdict(quota)),
        "tenant": account.tenant,
        "user": account.user,
        "devices_milli": quota.devices_milli,
        "device_seconds": quota.device_seconds,
        "window_seconds": quota.window_seconds,
        "on_exhausted": quota.on_exhausted,
        "priority_max": quota.priority_max,
        "weight": quota.weight,
        "parked_bytes": quota.parked_bytes,
        "on_parked_full": quota.on_parked_full,
        "origin": quota.origin,
        "held_milli": account.held_milli,
        "parked_bytes_held": parked_bytes(account, fleet.serving),
        "used_device_seconds": used / 1e12,
        "decayed_device_seconds": account.usage.device_seconds(now_ns),
        "budget": account.budget,
    }


def share_row(account: Account, now_ns: int) -> ShareRow:
    """Of a tenant's account."""
    used = account.usage.device_seconds(now_ns)
    return {"tenant": account.tenant, "weight": account.quota.weight, "held_milli": account.held_milli, "decayed_device_seconds": used}


def device_of(session: Session) -> str | None:
    """The model of the device that its tensors are on, or that it is being given; None while it has none."""
    if session.worker is not None:
        return session.worker.device.model
    place = session.request.place if session.request is not None else None
    return None if place is None else place.devices[0].model


def cause_row(why: str) -> CauseRow:
    if isinstance(why, Cause):
        return {"message": why, "code": why.code, "values": dict(why.values), "parts": [cause_row(part) for part in why.parts]}
    return {"message": why, "code": None, "values": {}, "parts": []}


def _causes(seat: Seat) -> tuple[str, ...]:
    """Why the device is closed; else what its last reading makes an operator look at."""
    if seat.cordon is not None:
        return seat.cordon.causes
    return () if seat.warning is None else (seat.warning,)


def device_row(seat: Seat) -> DeviceRow:
    leases = [session.lease.id for session in seat.holders if session.lease is not None]
    return {
        "device": seat.device.id,
        "node": seat.device.node,
        "kind": seat.device.kind,
        "model": seat.device.model,
        "vendor": seat.device.vendor,
        "speed": seat.device.speed,
        "switch": seat.device.switch,
        "spot": seat.device.spot,
        "memory_bytes": seat.device.memory_bytes,
        "state": seat.state,
        "cordoned": seat.cordon is not None,
        "cause": seat.cordon.cause if seat.cordon is not None else seat.warning,
        "causes": [cause_row(cause) for cause in _causes(seat)],
        "temperature_celsius": seat.temperature_celsius,
        "free_milli": seat.open_milli,
        "lease": leases[0] if leases else None,
        "leases": leases,
        "residents": [w.session.id for w in seat.workers.values() if w.session is not None and w.session.state == "resident"],
    }


def node_row(node: Node) -> NodeRow:
    why = node.lost or node.unconfined
    return {
        "node": node.name,
        "switch": node.switch,
        "state": node.state,
        "cause": why,
        "causes": [] if why is None else [cause_row(why)],
        "devices": len(node.seats),
        "closed": sum(not seat.is_open for seat in node.seats),
        "free_milli": sum(seat.open_milli for seat in node.seats),
        "leases": sum(session.lease is not None for seat in node.seats for session in seat.holders),
        "residents": sum(len(residents(seat)) for seat in node.seats),
        "parked_bytes": kept_bytes(node),
        "moving": node.moving,
        "releases": node.releases,
        "parked": len({worker.id for seat in node.seats for worker in seat.workers.values() if worker.parked_bytes is not None}),
    }


def model_row(model: str, fleet: Fleet) -> ModelRow:
    index, policy = fleet.indexes.get(model), fleet.policy.models.get(model, ModelPolicy(model))
    if index is not None:
        index.refresh()
    return {
        "model": model,
        "devices": 0 if index is None else index.count,
        "free": 0 if index is None else index.free,
        "closed": 0 if index is None else index.closed,
        "etag": tag_of(policy.settings),
        "tenants": policy.settings["tenants"],
    }


def flavor_row(flavor: Flavor, fleet: Fleet, tenant: str, outlook: Outlook, processes: bool) -> FlavorRow:
    """``processes``: whether the pool allows any."""
    why_not, price = fleet.why_not(flavor), fleet.tariff.price_of(flavor.name, tenant)
    runtimes = [runtime for runtime in RUNTIMES if processes or runtime != "exec"]
    return {
        "etag": tag_of(settings_of(flavor)),
        "name": flavor.name,
        "memory_bytes": flavor.memory_bytes,
        "equivalents": [_equivalent_row(equivalent, fleet) for equivalent in flavor.equivalents],
        "residents_max": flavor.residents_max,
        "images": flavor.images,
        "images_kept": fleet.policy.images_of(flavor.images),
        "runtimes": None if flavor.runtimes is None else list(flavor.runtimes),
        "runtimes_served": [one for one in runtimes if why_not_runtime(flavor, one, tenant, fleet) is None],
        "egress": None if flavor.egress is None else list(flavor.egress),
        "servable": why_not is None,
        "reason": why_not,
        "cause": None if why_not is None else cause_row(why_not),
        "price_nano_per_hour": None if price is None else price.nano_per_hour,
        "parked_nano_per_gib_hour": fleet.tariff.parked_price_of(tenant),
        "currency": None if price is None else price.currency,
        "waiting": outlook.waiting,
        "wait_seconds": outlook.wait_seconds,
    }


def suggestion_row(suggestion: Suggestion, fleet: Fleet, tenant: str) -> SuggestionRow:
    """With a price in the currency that the tenant is billed in."""
    flavor, present = suggestion.flavor, suggestion.present
    proposal = None if present is not None else proposed_price(flavor.memory_bytes, _prices_of_accelerators(fleet, tenant))
    return {
        "name": flavor.name,
        "memory_bytes": flavor.memory_bytes,
        "equivalents": [_equivalent_row(equivalent, fleet) for equivalent in flavor.equivalents],
        "added": [_equivalent_row(equivalent, fleet) for equivalent in suggestion.added],
        "residents_max": flavor.residents_max,
        "images": flavor.images,
        "runtimes": None if flavor.runtimes is None else list(flavor.runtimes),
        "egress": None if flavor.egress is None else list(flavor.egress),
        "etag": None if present is None else tag_of(settings_of(present)),
        "proposed_nano_per_hour": None if proposal is None else proposal.nano_per_hour,
        "currency": None if proposal is None else proposal.currency,
        "priced_as": None if proposal is None else proposal.flavor,
    }


def _prices_of_accelerators(fleet: Fleet, tenant: str) -> list[tuple[Flavor, Price]]:
    """Prices of flavors that are not for development devices alone."""
    models = {one.name for one in ACCELERATORS} | {seat.device.model for seat in fleet.seats.values() if is_accelerator(seat.device)}
    flavors = [flavor for flavor in fleet.flavors.values() if any(one.model in models for one in flavor.equivalents)]
    prices = [(flavor, fleet.tariff.price_of(flavor.name, tenant)) for flavor in flavors]
    return [(flavor, price) for flavor, price in prices if price is not None]


def _equivalent_row(equivalent: Equivalent, fleet: Fleet) -> EquivalentRow:
    index = fleet.indexes.get(equivalent.model)
    return {
        "model": equivalent.model,
        "count": equivalent.count,
        "share_milli": equivalent.share_milli,
        "devices": 0 if index is None else index.count,
        "speed": None if index is None else index.slowest,
    }
