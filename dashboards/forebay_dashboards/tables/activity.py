"""The tables of what the pool does now: leases, the queue, sessions and devices."""

from __future__ import annotations

from typing import Any

from forebay_service.languages import Text

from forebay_dashboards.live.pool_copy import PoolCopy
from forebay_dashboards.rows.pool import Device, Lease, Session
from forebay_dashboards.tables.table import Column, Page, Query, Table, select

LEASES: Table[Lease] = Table(
    name="leases",
    title=Text("Open leases"),
    topics=("leases",),
    columns=(
        Column("user", Text("Who"), lambda row: (row.user, row.tenant), "w-who"),
        Column("what", Text("What"), lambda row: row.span.label, "w-what"),
        Column("flavor", Text("Flavor"), lambda row: row.flavor, "w-flavor"),
        Column("device", Text("Device"), lambda row: (row.device_model, row.node), "w-device"),
        Column("opened", Text("Since"), lambda row: row.opened_at_ns, "w-when"),
        Column("time", Text("Device time"), lambda row: -row.opened_at_ns, "w-number", number=True),
        Column("price", Text("Cost so far"), lambda row: row.price_nano_per_hour, "w-number", number=True),
    ),
    first="opened",
    order="asc",
    hint=Text("user, tenant, notebook, flavor, model, node"),
    empty=Text("No device is held right now."),
)

QUEUE: Table[Session] = Table(
    name="queue",
    title=Text("Queue"),
    topics=("sessions",),
    columns=(
        Column("position", Text("Place"), lambda row: row.position, "w-short", number=True),
        Column("user", Text("Who"), lambda row: (row.user, row.tenant), "w-who"),
        Column("what", Text("What"), lambda row: row.span.label if row.span else row.process, "w-what"),
        Column("flavor", Text("Flavor"), lambda row: row.flavor, "w-flavor"),
        Column("reason", Text("Waits because"), lambda row: row.reason, "w-reason"),
        Column("since", Text("Since"), lambda row: row.since_ns, "w-when"),
        Column("estimate", Text("Estimate"), lambda row: row.estimate_seconds, "w-number", number=True),
    ),
    first="position",
    order="asc",
    hint=Text("user, tenant, notebook, flavor, reason"),
    empty=Text("Nobody waits."),
)

SESSIONS: Table[Session] = Table(
    name="sessions",
    title=Text("Sessions"),
    topics=("sessions",),
    columns=(
        Column("user", Text("Who"), lambda row: (row.user, row.tenant), "w-who"),
        Column("process", Text("Process"), lambda row: row.process, "w-what"),
        Column("flavor", Text("Flavor"), lambda row: row.flavor, "w-flavor"),
        Column("state", Text("State"), lambda row: row.state, "w-state"),
        Column("model", Text("On"), lambda row: row.device_model, "w-state"),
        Column("memory", Text("Memory"), lambda row: row.memory_bytes, "w-short", number=True),
        Column("since", Text("Since"), lambda row: row.since_ns, "w-when"),
        Column("act", Text("Act"), width="w-acts"),
    ),
    first="since",
    order="desc",
    hint=Text("user, tenant, process, notebook, flavor, model, state"),
    empty=Text("No process has a virtual device open."),
)

DEVICES: Table[Device] = Table(
    name="devices",
    title=Text("Devices"),
    topics=("devices",),
    columns=(
        Column("device", Text("Device"), lambda row: row.device, "w-what"),
        Column("node", Text("Node"), lambda row: (row.node, row.device), "w-who"),
        Column("model", Text("Model"), lambda row: row.model, "w-flavor"),
        Column("memory", Text("Memory"), lambda row: row.memory_bytes, "w-number", number=True),
        Column("state", Text("State"), lambda row: (row.state, row.cause or ""), "w-reason"),
        Column("temperature", Text("Temperature"), lambda row: row.temperature_celsius, "w-number", number=True),
        Column("held", Text("Held"), lambda row: len(row.leases), "w-short", number=True),
        Column("residents", Text("Residents"), lambda row: len(row.residents), "w-short", number=True),
        Column("act", Text("Act"), width="w-acts"),
    ),
    first="node",
    order="asc",
    hint=Text("device, node, model, vendor, state, cause, lease"),
    empty=Text("The pool has no devices, so no flavor can be served. List devices in the pool's configuration and restart it."),
)

TABLES: dict[str, Table[Any]] = {table.name: table for table in (LEASES, QUEUE, SESSIONS, DEVICES)}


def live_page(name: str, pool_copy: PoolCopy, query: Query) -> Page[Any]:
    """A page of the table as it is now."""
    match name:
        case "leases":
            return select(LEASES, pool_copy.seen_leases(), query)
        case "queue":
            return select(QUEUE, pool_copy.waiting(), query)
        case "sessions":
            return select(SESSIONS, pool_copy.seen_sessions(), query)
        case "devices":
            return select(DEVICES, pool_copy.seen_devices(), query)
    raise ValueError(f"there is no table {name!r}")
