"""The pool's database: flavors, choices, lease segments, usage outbox, and what a successor needs to go on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from importlib import import_module
from typing import Any, Literal

from forebay_service.audit import Entry, Wanted, entries
from forebay_service.errors import OTHER_RELEASE, Fault, Forbidden, SettingsError
from forebay_service.preconditions import ANYHOW, MISMATCH, Precondition, tag_of
from forebay_wire.remote.runtimes import RUNTIMES
from sqlalchemy import Connection, Engine, create_engine, delete, event, func, insert, select, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from forebay_pool import failpoints
from forebay_pool.errors import ChangedMeanwhile, Deposed, StoreUnavailable
from forebay_pool.hosts.process_identity import boot_id
from forebay_pool.model.policies import Author, ModelPolicy
from forebay_pool.model.snapshot import Snapshot
from forebay_pool.model.types import WHOLE_MILLI, Equivalent, Flavor, Quota, UsageRecord
from forebay_pool.store import audit, history_rows, snapshot_rows
from forebay_pool.store.batch import Batch
from forebay_pool.store.flavors import settings_of
from forebay_pool.store.new_schema import make_schema
from forebay_pool.store.tables import AUDIT, CHOICES, CLOSURES, FLAVORS, HOLDINGS, LEADERSHIP, MODEL_POLICIES, OUTBOX, QUOTAS, SEGMENTS

BUSY_SECONDS = 2.0
"""How long a statement waits for a locked database before it fails (and is tried again)."""
CONNECT_SECONDS = 5
"""PostgreSQL: how long a server is waited for."""
ADVISORY_LOCK = 0x464F524542
"""PostgreSQL: two pools do not migrate one database at a time."""


@dataclass(frozen=True, slots=True)
class Undelivered:
    """A row of the outbox with what billing must be told."""

    seq: int
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OutboxCount:
    """How many records billing has not taken."""

    waiting: int
    refused: int
    oldest_unix_ns: int | None
    """When the oldest of those that wait ended."""


class Store:
    """Plain synchronous calls, each one transaction; :class:`forebay_pool.store.writer.Writer` makes them on its thread.

    Once this store leads, each of its writes holds only while no other has led since: raises Deposed otherwise.
    """

    def __init__(self, url: str) -> None:
        self.engine = _engine(url)
        self.epoch: int | None = None
        """The epoch of its leadership; None before it leads."""
        self._insert: Any = import_module(f"sqlalchemy.dialects.{self.engine.dialect.name}").insert
        self._add_segment = self._insert(SEGMENTS).on_conflict_do_nothing()
        self._add_holding = self._insert(HOLDINGS).on_conflict_do_nothing()
        self._file = self._insert(OUTBOX).on_conflict_do_nothing()

    def migrate(self) -> None:
        """Brings the schema to this version. Raises SettingsError where the database is of a later one, StoreUnavailable."""
        try:
            if self.engine.dialect.name == "sqlite" and make_schema(self.engine):
                return
        except SQLAlchemyError as error:
            raise StoreUnavailable(f"the database {self.engine.url!r} cannot be opened: {error}") from error
        from alembic import command
        from alembic.config import Config
        from alembic.util import CommandError

        config = Config()
        config.set_main_option("script_location", "forebay_pool:migrations")
        config.set_main_option("path_separator", "os")
        try:
            with self.engine.begin() as connection:
                if self.engine.dialect.name == "postgresql":
                    connection.exec_driver_sql(f"select pg_advisory_xact_lock({ADVISORY_LOCK})")
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        except CommandError as error:
            raise SettingsError(OTHER_RELEASE.format(service="pool", error=error)) from None
        except SQLAlchemyError as error:
            raise StoreUnavailable(f"the database {self.engine.url!r} cannot be opened: {error}") from error

    def close(self) -> None:
        self.engine.dispose()

    # Leadership

    def lead(self, url: str) -> int:
        """From here on this store's writes count, and no other's that led before; the epoch. Raises StoreUnavailable."""
        try:
            with self.engine.begin() as connection:
                raised = update(LEADERSHIP).where(LEADERSHIP.c.id == 1).values(epoch=LEADERSHIP.c.epoch + 1, url=url)
                connection.execute(raised)
                self.epoch = int(connection.execute(select(LEADERSHIP.c.epoch)).scalar_one())
        except SQLAlchemyError as error:
            raise StoreUnavailable(f"the database {self.engine.url!r} cannot be written: {error}") from error
        return self.epoch

    def still_leads(self) -> bool:
        """Whether no other pool has led since :meth:`lead`. Raises SQLAlchemyError."""
        with self.engine.connect() as connection:
            return bool(connection.execute(select(LEADERSHIP.c.epoch)).scalar_one() == self.epoch)

    def leader_url(self) -> str:
        """Where the pool serves that led last. Raises SQLAlchemyError."""
        with self.engine.connect() as connection:
            return str(connection.execute(select(LEADERSHIP.c.url)).scalar_one())

    @contextmanager
    def writing(self, deed: audit.AuditEntry | None = None) -> Iterator[Connection]:
        """A transaction that is undone if another pool has led since: the row is locked until it ends. The deed is written down in it."""
        with self.engine.begin() as connection:
            yield connection
            if deed is not None:
                audit.append(connection, deed)
            if self.epoch is not None:
                leading = connection.execute(select(LEADERSHIP.c.epoch).with_for_update(read=True)).scalar_one()
                if leading != self.epoch:
                    raise Deposed(f"this pool led with epoch {self.epoch}, and another leads with {leading}: it may write no more")
            failpoints.reach("commit.before")
        failpoints.reach("commit.after")

    # Flavors

    def seed_flavors(self, flavors: Sequence[Flavor]) -> None:
        """Adds the flavors that are not there yet."""
        with self.writing() as connection:
            connection.execute(self._insert(FLAVORS).on_conflict_do_nothing(), [_flavor_row(flavor) for flavor in flavors])

    def set_flavor(self, flavor: Flavor, who: str, expected: Precondition = ANYHOW) -> None:
        """Writes it, and who did, if what stands is as expected. Raises ChangedMeanwhile."""
        row = _flavor_row(flavor)
        statement = self._insert(FLAVORS).values(row)
        with self.writing() as connection:
            found = connection.execute(select(FLAVORS).where(FLAVORS.c.name == flavor.name, ~FLAVORS.c.removed)).one_or_none()
            before = None if found is None else settings_of(_flavor(found))
            _check_expected(expected, None if before is None else tag_of(before))
            connection.execute(statement.on_conflict_do_update(index_elements=[FLAVORS.c.name], set_=row))
            audit.append(connection, audit.AuditEntry(who, "flavor.set", flavor.name, before, settings_of(flavor)))

    def remove_flavor(self, name: str, who: str, expected: Precondition = ANYHOW) -> None:
        """Has it be no more, nor anybody's choice, if what stands is as expected. Raises ChangedMeanwhile."""
        with self.writing() as connection:
            found = connection.execute(select(FLAVORS).where(FLAVORS.c.name == name, ~FLAVORS.c.removed)).one_or_none()
            before = None if found is None else settings_of(_flavor(found))
            _check_expected(expected, None if before is None else tag_of(before))
            connection.execute(update(FLAVORS).where(FLAVORS.c.name == name).values(removed=True))
            connection.execute(delete(CHOICES).where(CHOICES.c.flavor == name))
            audit.append(connection, audit.AuditEntry(who, "flavor.remove", name, before, {"removed": True}))

    def flavors(self) -> dict[str, Flavor]:
        with self.engine.connect() as connection:
            rows = connection.execute(select(FLAVORS).where(~FLAVORS.c.removed).order_by(FLAVORS.c.memory_bytes, FLAVORS.c.name)).all()
        return {row.name: _flavor(row) for row in rows}

    # Nodes, devices and models

    def set_closed(self, kind: Literal["node", "device"], name: str, cause: str | None, deed: audit.AuditEntry | None = None) -> None:
        """Remembers that an operator closed it, and why, or with None that it is open."""
        key = (CLOSURES.c.kind == kind) & (CLOSURES.c.name == name)
        with self.writing(deed) as connection:
            connection.execute(delete(CLOSURES).where(key))
            if cause is not None:
                connection.execute(insert(CLOSURES).values(kind=kind, name=name, cause=cause))

    def closures(self) -> list[tuple[str, str, str]]:
        """Kind, name and cause of what is closed."""
        with self.engine.connect() as connection:
            return [(row.kind, row.name, row.cause) for row in connection.execute(select(CLOSURES).order_by(CLOSURES.c.name))]

    def set_model(self, policy: ModelPolicy, who: str, expected: Precondition = ANYHOW) -> None:
        """Writes it, and who did, if what stands is as expected: nothing is what everybody may have. Raises ChangedMeanwhile."""
        tenants = None if policy.tenants is None else json.dumps(sorted(policy.tenants))
        row = {"model": policy.model, "tenants": tenants}
        statement = self._insert(MODEL_POLICIES).values(row)
        with self.writing() as connection:
            found = connection.execute(select(MODEL_POLICIES).where(MODEL_POLICIES.c.model == policy.model)).one_or_none()
            before = ModelPolicy(policy.model) if found is None else _policy(found)
            _check_expected(expected, tag_of(before.settings))
            connection.execute(statement.on_conflict_do_update(index_elements=[MODEL_POLICIES.c.model], set_=row))
            was = None if found is None else before.settings
            audit.append(connection, audit.AuditEntry(who, "model.set", policy.model, was, policy.settings))

    def models(self) -> dict[str, ModelPolicy]:
        with self.engine.connect() as connection:
            rows = connection.execute(select(MODEL_POLICIES)).all()
        return {row.model: _policy(row) for row in rows}

    # Choices

    def set_choice(self, tenant: str, user: str, flavor: str) -> None:
        row = {"tenant": tenant, "user": user, "flavor": flavor}
        statement = self._insert(CHOICES).values(row)
        with self.writing() as connection:
            connection.execute(statement.on_conflict_do_update(index_elements=[CHOICES.c.tenant, CHOICES.c.user], set_=row))

    def choices(self) -> dict[tuple[str, str], str]:
        with self.engine.connect() as connection:
            return {(row.tenant, row.user): row.flavor for row in connection.execute(select(CHOICES))}

    def set_quota(
        self, tenant: str, user: str | None, quota: Quota, who: str, expected: Precondition = ANYHOW, author: Author = "operator"
    ) -> None:
        """Writes it, and who did, if what stands is as expected, and the author may replace it. Raises ChangedMeanwhile, Forbidden.

        Nobody can write between the look and the write: a leader's writes come one after another, and another leader's undo this one.
        """
        row = {"tenant": tenant, "user": user or "", **asdict(quota)}
        whose = select(QUOTAS).where(QUOTAS.c.tenant == tenant, QUOTAS.c.user == (user or ""))
        statement = self._insert(QUOTAS).values(row)
        with self.writing() as connection:
            found = connection.execute(whose).one_or_none()
            before = Quota() if found is None else _quota(found)
            _check_expected(expected, tag_of(asdict(before)))
            if author == "owner" and before.origin == "operator" and before != Quota():
                fault = Fault("operators_quota", values={"user": user or tenant})
                raise Forbidden(f"An operator set what {user or tenant} is held to; ask an operator to change it.", fault)
            connection.execute(statement.on_conflict_do_update(index_elements=[QUOTAS.c.tenant, QUOTAS.c.user], set_=row))
            was = None if before == Quota() else asdict(before)
            audit.append(connection, audit.AuditEntry(who, "quota.set", f"{tenant}/{user}" if user else tenant, was, asdict(quota)))

    def quotas(self) -> list[tuple[str, str | None, Quota]]:
        """Each quota with its tenant and, if it is a user's, the user."""
        with self.engine.connect() as connection:
            rows = connection.execute(select(QUOTAS)).all()
        return [(row.tenant, row.user or None, _quota(row)) for row in rows]

    # What operators did

    def append_audit(self, deed: audit.AuditEntry) -> None:
        """Writes down what is done to something that is in no table of its own."""
        with self.writing(deed):
            pass

    def audit_entries(self, wanted: Wanted, limit: int, before_id: int | None) -> list[Entry]:
        """At most so many, newest first. Raises StoreUnavailable."""
        try:
            with self.engine.connect() as connection:
                return entries(connection, AUDIT, AUDIT.c.at_unix_ns, wanted, limit, before_id)
        except SQLAlchemyError as error:
            raise StoreUnavailable(f"the database {self.engine.url!r} cannot be read: {error}") from error

    # Usage

    def write(self, batch: Batch, deliver: bool) -> None:
        """Writes it all durably or nothing, and files records for delivery; records that are there already stay as they are."""
        with self.writing() as connection:
            if batch.records:
                rows = [_segment_row(record) for record in batch.records]
                connection.execute(self._add_segment, rows)
                held = [_holding_row(record, device) for record in batch.records for device in record.held]
                if held:
                    connection.execute(self._add_holding, held)
            if batch.records and deliver:
                connection.execute(self._file, [{"segment": record.id} for record in batch.records])
            snapshot_rows.write(connection, self._insert, batch, boot_id())

    def kept(self, half_life_seconds: float = 0.0) -> Snapshot:
        """What the pool that led before left, and what was used lately: within some half-lives of the fair share, and quotas' windows."""
        quotas, now_ns, now_unix_ns = self.quotas(), time.monotonic_ns(), time.time_ns()
        with self.engine.connect() as connection:
            kept = snapshot_rows.read(connection, boot_id(), now_ns, now_unix_ns)
            used = history_rows.read(connection, half_life_seconds, quotas, now_unix_ns)
        return replace(kept, history=used.later(now_ns - now_unix_ns))

    def undelivered(self, source: str, most: int) -> list[Undelivered]:
        """The oldest records that billing has not taken, in order."""
        joined = select(OUTBOX.c.seq, SEGMENTS).join(SEGMENTS, SEGMENTS.c.id == OUTBOX.c.segment)
        with self.engine.connect() as connection:
            rows = connection.execute(joined.where(OUTBOX.c.refused.is_(None)).order_by(OUTBOX.c.seq).limit(most)).all()
        return [Undelivered(row.seq, _payload(source, row)) for row in rows]

    def count_undelivered(self) -> OutboxCount:
        """What the outbox holds."""
        ended = func.min(SEGMENTS.c.started_at_unix_ns + SEGMENTS.c.duration_ns)
        waiting = select(func.count(), ended).select_from(OUTBOX).join(SEGMENTS, SEGMENTS.c.id == OUTBOX.c.segment)
        with self.engine.connect() as connection:
            count, oldest = connection.execute(waiting.where(OUTBOX.c.refused.is_(None))).one()
            refused = connection.execute(select(func.count(OUTBOX.c.refused))).scalar_one()
        return OutboxCount(count, refused, None if oldest is None else int(oldest))

    def delivered(self, seqs: Sequence[int]) -> None:
        with self.writing() as connection:
            connection.execute(delete(OUTBOX).where(OUTBOX.c.seq.in_(seqs)))

    def retry_refused(self) -> int:
        """Files the records that billing refused for delivery again; how many there are."""
        with self.writing() as connection:
            return connection.execute(update(OUTBOX).where(OUTBOX.c.refused.is_not(None)).values(refused=None)).rowcount

    def refused(self, seq: int, answer: str) -> None:
        with self.writing() as connection:
            connection.execute(update(OUTBOX).where(OUTBOX.c.seq == seq).values(refused=answer))


def _engine(url: str) -> Engine:
    if make_url(url).get_backend_name() != "sqlite":
        bounds = {"connect_timeout": CONNECT_SECONDS, "options": f"-c lock_timeout={int(1000 * BUSY_SECONDS)}"}
        return create_engine(url, pool_pre_ping=True, hide_parameters=True, connect_args=bounds)
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False}, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def _durable(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    return engine


def _flavor_row(flavor: Flavor) -> dict[str, Any]:
    equivalents = json.dumps([_parts(e) for e in flavor.equivalents])
    bounds = {"memory_bytes": flavor.memory_bytes, "residents_max": flavor.residents_max, "images": flavor.images}
    runtimes = None if flavor.runtimes is None else " ".join(flavor.runtimes)
    egress = None if flavor.egress is None else " ".join(flavor.egress)
    return {"name": flavor.name, **bounds, "runtimes": runtimes, "egress": egress, "equivalents": equivalents, "removed": False}


def _check_expected(expected: Precondition, tag: str | None) -> None:
    """``tag`` is of what stands, None where nothing does. Raises ChangedMeanwhile."""
    if not expected.holds(tag):
        raise ChangedMeanwhile(MISMATCH)


def _flavor(row: Any) -> Flavor:
    runtimes = None if row.runtimes is None else tuple(runtime for runtime in RUNTIMES if runtime in row.runtimes.split())
    egress = None if row.egress is None else tuple(row.egress.split())
    return Flavor(row.name, row.memory_bytes, _equivalents(row.equivalents), row.residents_max, row.images, runtimes, egress)


def _policy(row: Any) -> ModelPolicy:
    return ModelPolicy(row.model, None if row.tenants is None else frozenset(json.loads(row.tenants)))


def _quota(row: Any) -> Quota:
    return Quota(**{f.name: getattr(row, f.name) for f in fields(Quota)})


def _equivalents(text: str) -> tuple[Equivalent, ...]:
    return tuple(Equivalent(*parts) for parts in json.loads(text))


def _parts(equivalent: Equivalent) -> list[str | int]:
    """``[model, count]``, as ever, or ``[model, count, share_milli]`` for a share."""
    share = [equivalent.share_milli] if equivalent.share_milli < WHOLE_MILLI else []
    return [equivalent.model, equivalent.count, *share]


def _segment_row(record: UsageRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "lease": record.lease,
        "session": record.session,
        "tenant": record.tenant,
        "user": record.user,
        "flavor": record.flavor,
        "device_model": record.device_model,
        "devices": record.devices,
        "started_at_unix_ns": record.started_at_unix_ns,
        "duration_ns": record.duration_ns,
        "close_reason": record.close_reason,
        "share_milli": record.share_milli,
        "span": json.dumps(record.span.model_dump()),
        "parked_bytes": record.parked_bytes,
        "energy_mj": record.energy_mj,
    }


def _holding_row(record: UsageRecord, device: str) -> dict[str, Any]:
    started_ns = record.started_at_unix_ns
    return {"device": device, "ended_ns": started_ns + record.duration_ns, "segment": record.id, "started_ns": started_ns}


def _payload(source: str, row: Any) -> dict[str, Any]:
    """A record as ``POST api/usage`` of billing takes it."""
    told = {name: value for name in ("parked_bytes", "energy_mj") if (value := row._mapping[name]) is not None}
    return told | {
        "source": source,
        "id": row.id,
        "tenant": row.tenant,
        "user": row.user,
        "session": row.session,
        "lease": row.lease,
        "span": json.loads(row.span),
        "flavor": row.flavor,
        "device_model": row.device_model,
        "devices": row.devices,
        "started_at_ns": row.started_at_unix_ns,
        "duration_ns": row.duration_ns,
        "close_reason": row.close_reason,
        "share_milli": row.share_milli,
    }
