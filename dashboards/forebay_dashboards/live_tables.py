"""The tables of what the pool does now: leases, the queue, sessions and devices."""

from __future__ import annotations

from typing import Any

from forebay_dashboards.mirror import Mirror
from forebay_dashboards.rows import Device, Lease, Session
from forebay_dashboards.tables import Column, Page, Query, Table, select

LEASES: Table[Lease] = Table(
    name="leases",
    title="Open leases",
    topics=("leases",),
    columns=(
        Column("user", "Who", lambda row: (row.user, row.tenant), "w-who"),
        Column("what", "What", lambda row: row.span.label, "w-what"),
        Column("flavor", "Flavor", lambda row: row.flavor, "w-flavor"),
        Column("device", "Device", lambda row: (row.device_model, row.node), "w-device"),
        Column("opened", "Since", lambda row: row.opened_at_ns, "w-when"),
        Column("time", "Device time", lambda row: -row.opened_at_ns, "w-number", number=True),
        Column("price", "Cost so far", lambda row: row.price_nano_per_second, "w-number", number=True),
    ),
    first="opened",
    order="asc",
    hint="user, tenant, notebook, flavor, model, node",
    empty="No device is held right now.",
)

QUEUE: Table[Session] = Table(
    name="queue",
    title="Queue",
    topics=("sessions",),
    columns=(
        Column("position", "Place", lambda row: row.position, "w-short", number=True),
        Column("user", "Who", lambda row: (row.user, row.tenant), "w-who"),
        Column("what", "What", lambda row: row.span.label if row.span else row.process, "w-what"),
        Column("flavor", "Flavor", lambda row: row.flavor, "w-flavor"),
        Column("reason", "Waits because", lambda row: row.reason, "w-reason"),
        Column("since", "Since", lambda row: row.since_ns, "w-when"),
        Column("estimate", "Estimate", lambda row: row.estimate_seconds, "w-number", number=True),
    ),
    first="position",
    order="asc",
    hint="user, tenant, notebook, flavor, reason",
    empty="Nobody waits.",
)

SESSIONS: Table[Session] = Table(
    name="sessions",
    title="Sessions",
    topics=("sessions",),
    columns=(
        Column("user", "Who", lambda row: (row.user, row.tenant), "w-who"),
        Column("process", "Process", lambda row: row.process, "w-what"),
        Column("flavor", "Flavor", lambda row: row.flavor, "w-flavor"),
        Column("state", "State", lambda row: row.state, "w-state"),
        Column("model", "On", lambda row: row.device_model, "w-state"),
        Column("memory", "Memory", lambda row: row.memory_bytes, "w-short", number=True),
        Column("since", "Since", lambda row: row.since_ns, "w-when"),
        Column("act", "Act", width="w-acts"),
    ),
    first="since",
    order="desc",
    hint="user, tenant, process, notebook, flavor, model, state",
    empty="No process has a virtual device open.",
)

DEVICES: Table[Device] = Table(
    name="devices",
    title="Devices",
    topics=("devices",),
    columns=(
        Column("device", "Device", lambda row: row.device, "w-what"),
        Column("node", "Node", lambda row: (row.node, row.device), "w-who"),
        Column("model", "Model", lambda row: row.model, "w-flavor"),
        Column("memory", "Memory", lambda row: row.memory_bytes, "w-number", number=True),
        Column("state", "State", lambda row: (row.state, row.cause or ""), "w-reason"),
        Column("temperature", "Temperature", lambda row: row.temperature_celsius, "w-number", number=True),
        Column("held", "Held", lambda row: len(row.leases), "w-short", number=True),
        Column("residents", "Residents", lambda row: len(row.residents), "w-short", number=True),
        Column("act", "Act", width="w-acts"),
    ),
    first="node",
    order="asc",
    hint="device, node, model, vendor, state, cause, lease",
    empty="The pool has no devices, so no flavor can be served. List devices in the pool's configuration and restart it.",
)

TABLES: dict[str, Table[Any]] = {table.name: table for table in (LEASES, QUEUE, SESSIONS, DEVICES)}


def live_page(name: str, mirror: Mirror, query: Query) -> Page[Any]:
    """A page of the table as it is now."""
    match name:
        case "leases":
            return select(LEASES, mirror.seen_leases(), query)
        case "queue":
            return select(QUEUE, mirror.waiting(), query)
        case "sessions":
            return select(SESSIONS, mirror.seen_sessions(), query)
        case "devices":
            return select(DEVICES, mirror.seen_devices(), query)
    raise ValueError(f"there is no table {name!r}")
