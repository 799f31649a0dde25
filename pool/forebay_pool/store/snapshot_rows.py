"""Sessions, workers and open leases as rows of the database."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from forebay_wire import messages as wire
from sqlalchemy import BigInteger, ColumnElement, Connection, Delete, Table, Update, bindparam, case, delete, select, update

from forebay_pool.model.metering import segment_number
from forebay_pool.model.records import Image, QueuePlace
from forebay_pool.model.snapshot import LeaseSnapshot, ParkingSnapshot, ReplaySnapshot, SessionSnapshot, Snapshot, WorkerSnapshot
from forebay_pool.model.types import Loss, Price, UsageRecord
from forebay_pool.store.batch import Batch
from forebay_pool.store.tables import OPEN_LEASES, PARKINGS, SEGMENTS, SESSIONS, WORKERS

NAMES_MAX = 500
"""How many names go into one SQL statement."""

# Statements are put together once: that takes longer than to write some rows.


@cache
def _upsert(insert: Any, table: Table) -> Any:
    statement = insert(table)
    news = {column.name: statement.excluded[column.name] for column in table.columns if column.name != "id"}
    return statement.on_conflict_do_update(index_elements=[table.c.id], set_=news)


@cache
def _removal(table: Table) -> Delete:
    return delete(table).where(table.c.id.in_(bindparam("names", expanding=True)))


def _progress_of(table: Table, **more: ColumnElement[int]) -> Update:
    """Sets how far the records say that it is metered."""
    return update(table).where(table.c.id == bindparam("name")).values(segment=bindparam("next"), metered_ns=_metered_ns(table), **more)


def _metered_ns(table: Table) -> ColumnElement[int]:
    return bindparam("ended_ns", type_=BigInteger) - table.c.opened_unix_ns


CONFIRM = update(OPEN_LEASES).where(OPEN_LEASES.c.id == bindparam("lease")).values(confirmed_ns=bindparam("held_ns"))
LEASE_GOES_ON = _progress_of(
    OPEN_LEASES,
    confirmed_ns=case((OPEN_LEASES.c.confirmed_ns < _metered_ns(OPEN_LEASES), _metered_ns(OPEN_LEASES)), else_=OPEN_LEASES.c.confirmed_ns),
)
PARKING_GOES_ON = _progress_of(PARKINGS)


def write(connection: Connection, insert: Any, batch: Batch, boot: str) -> None:
    """Writes all of the batch but its records; open leases are as far as the records say, and those that closed are removed."""
    _put(connection, insert, SESSIONS, {key: None if one is None else _session_row(one) for key, one in batch.sessions.items()})
    _put(connection, insert, WORKERS, {key: None if one is None else _worker_row(one) for key, one in batch.workers.items()})
    _put(connection, insert, OPEN_LEASES, {key: _lease_row(one, boot) for key, one in batch.leases.items()})
    _put(connection, insert, PARKINGS, {key: None if one is None else _parking_row(one, boot) for key, one in batch.parkings.items()})
    if batch.confirmed_ns:
        connection.execute(CONFIRM, [{"lease": lease, "held_ns": held_ns} for lease, held_ns in batch.confirmed_ns.items()])
    parked = [record for record in batch.records if record.parked_bytes is not None]
    leased = [record for record in batch.records if record.parked_bytes is None]
    _go_on(connection, [record for record in leased if not record.is_last])
    _stay_parked(connection, [record for record in parked if not record.is_last])
    _remove(connection, OPEN_LEASES, [record.lease for record in leased if record.is_last])
    _remove(connection, PARKINGS, [record.lease for record in parked if record.is_last])


def read(connection: Connection, boot: str, now_ns: int, now_unix_ns: int) -> Snapshot:
    """All that is kept, with times by the clock of the host whose boot this is."""
    leases = [(_lease(row), row.boot == boot) for row in connection.execute(select(OPEN_LEASES).order_by(OPEN_LEASES.c.id))]
    parkings = [(_parking(row), row.boot == boot) for row in connection.execute(select(PARKINGS).order_by(PARKINGS.c.id))]
    sessions = tuple(_session(row) for row in connection.execute(select(SESSIONS).order_by(SESSIONS.c.since_unix_ns, SESSIONS.c.id)))
    return Snapshot(
        sessions=sessions,
        workers=tuple(_worker(row) for row in connection.execute(select(WORKERS).order_by(WORKERS.c.id))),
        leases=tuple(lease.here(now_ns, now_unix_ns, same_clock) for lease, same_clock in leases),
        parkings=tuple(parking.here(now_ns, now_unix_ns, same_clock) for parking, same_clock in parkings),
        closed=_last_closed(connection, sessions),
    )


def _put(connection: Connection, insert: Any, table: Table, rows: Mapping[str, dict[str, Any] | None]) -> None:
    written = [row for row in rows.values() if row is not None]
    if written:
        connection.execute(_upsert(insert, table), written)
    _remove(connection, table, [key for key, row in rows.items() if row is None])


def _go_on(connection: Connection, records: Sequence[UsageRecord]) -> None:
    """Segments of leases that are open still: the next pool meters from there on."""
    if records:
        connection.execute(LEASE_GOES_ON, [_progress(record) for record in records])


def _stay_parked(connection: Connection, records: Sequence[UsageRecord]) -> None:
    """Segments of parked time that goes on."""
    if records:
        connection.execute(PARKING_GOES_ON, [_progress(record) for record in records])


def _progress(record: UsageRecord) -> dict[str, Any]:
    ended_ns = record.started_at_unix_ns + record.duration_ns
    return {"name": record.lease, "next": segment_number(record) + 1, "ended_ns": ended_ns}


def _remove(connection: Connection, table: Table, ids: Sequence[str]) -> None:
    for start in range(0, len(ids), NAMES_MAX):
        connection.execute(_removal(table), {"names": ids[start : start + NAMES_MAX]})


def _last_closed(connection: Connection, sessions: Sequence[SessionSnapshot]) -> dict[str, UsageRecord]:
    wanted = [f"{session.id}.{session.epoch}" for session in sessions if session.epoch]
    records: list[UsageRecord] = []
    for start in range(0, len(wanted), NAMES_MAX):
        rows = connection.execute(select(SEGMENTS).where(SEGMENTS.c.lease.in_(wanted[start : start + NAMES_MAX])))
        records += (_record(row) for row in rows)
    held_ns: Counter[str] = Counter()
    for record in records:
        held_ns[record.lease] += record.duration_ns
    return {record.session: replace(record, duration_ns=held_ns[record.lease]) for record in records if record.is_last}


def _session_row(session: SessionSnapshot) -> dict[str, Any]:
    return {
        "id": session.id,
        "secret": session.secret.hex(),
        "tenant": session.tenant,
        "user": session.user,
        "process": json.dumps(session.process),
        "flavor": session.flavor,
        "since_unix_ns": session.since_unix_ns,
        "epoch": session.epoch,
        "span": None if session.span is None else json.dumps(session.span.model_dump()),
        "worker": session.worker,
        "opened": int(session.opened),
        "reserved_bytes": session.reserved_bytes,
        "parked_bytes": session.parked_bytes,
        "priority": session.priority,
        "waits": None if session.waits is None else json.dumps(asdict(session.waits)),
        "left_worker": session.left or None,
        "replay": None if session.replay is None else json.dumps(asdict(session.replay)),
    }


def _session(row: Any) -> SessionSnapshot:
    return SessionSnapshot(
        id=row.id,
        secret=bytes.fromhex(row.secret),
        tenant=row.tenant,
        user=row.user,
        process=json.loads(row.process),
        flavor=row.flavor,
        since_unix_ns=row.since_unix_ns,
        epoch=row.epoch,
        span=None if row.span is None else wire.Span(**json.loads(row.span)),
        worker=row.worker,
        opened=bool(row.opened),
        reserved_bytes=row.reserved_bytes,
        parked_bytes=row.parked_bytes,
        priority=row.priority,
        waits=None if row.waits is None else QueuePlace(**json.loads(row.waits)),
        left=row.left_worker or "",
        replay=None if row.replay is None else _replay(json.loads(row.replay)),
    )


def _replay(kept: dict[str, Any]) -> ReplaySnapshot:
    loss, image = kept["loss"], kept["image"]
    possible = kept.get("possible", True)
    return ReplaySnapshot(kept["worked_ns"], None if loss is None else Loss(**loss), None if image is None else Image(**image), possible)


def _worker_row(worker: WorkerSnapshot) -> dict[str, Any]:
    return {name: getattr(worker, name) for name in WORKERS.columns.keys()} | {"devices": json.dumps(worker.devices)}


def _worker(row: Any) -> WorkerSnapshot:
    return WorkerSnapshot(row.id, tuple(json.loads(row.devices)), row.token, row.boot, row.pid, row.started)


def _lease_row(lease: LeaseSnapshot, boot: str) -> dict[str, Any]:
    price = lease.price
    return {
        "id": lease.id,
        "session": lease.session,
        "epoch": lease.epoch,
        "number": lease.number,
        "tenant": lease.tenant,
        "user": lease.user,
        "flavor": lease.flavor,
        "devices": json.dumps(lease.devices),
        "device_model": lease.device_model,
        "share_milli": lease.share_milli,
        "span": json.dumps(lease.span.model_dump()),
        "price_nano_per_hour": None if price is None else price.nano_per_hour,
        "currency": None if price is None else price.currency,
        "waited_ns": lease.waited_ns,
        "boot": boot,
        "opened_ns": lease.opened_ns,
        "opened_unix_ns": lease.opened_unix_ns,
        "confirmed_ns": lease.confirmed_ns,
        "segment": lease.segment,
        "metered_ns": lease.metered_ns,
    }


def _lease(row: Any) -> LeaseSnapshot:
    return LeaseSnapshot(
        id=row.id,
        session=row.session,
        epoch=row.epoch,
        number=row.number,
        tenant=row.tenant,
        user=row.user,
        flavor=row.flavor,
        devices=tuple(json.loads(row.devices)),
        device_model=row.device_model,
        share_milli=row.share_milli,
        span=wire.Span(**json.loads(row.span)),
        price=None if row.currency is None else Price(row.price_nano_per_hour, row.currency),
        waited_ns=row.waited_ns,
        opened_ns=row.opened_ns,
        opened_unix_ns=row.opened_unix_ns,
        confirmed_ns=row.confirmed_ns,
        segment=row.segment,
        metered_ns=row.metered_ns,
    )


def _parking_row(parking: ParkingSnapshot, boot: str) -> dict[str, Any]:
    own = {name: getattr(parking, name) for name in PARKINGS.columns.keys() if name != "boot"}
    return own | {"boot": boot, "span": json.dumps(parking.span.model_dump())}


def _parking(row: Any) -> ParkingSnapshot:
    values = {name: getattr(row, name) for name in PARKINGS.columns.keys() if name not in ("boot", "span")}
    return ParkingSnapshot(span=wire.Span(**json.loads(row.span)), **values)


def _record(row: Any) -> UsageRecord:
    return UsageRecord(
        id=row.id,
        tenant=row.tenant,
        user=row.user,
        session=row.session,
        lease=row.lease,
        span=wire.Span(**json.loads(row.span)),
        flavor=row.flavor,
        device_model=row.device_model,
        devices=row.devices,
        started_at_unix_ns=row.started_at_unix_ns,
        duration_ns=row.duration_ns,
        close_reason=row.close_reason,
        share_milli=row.share_milli,
    )
