"""What writes the books: accepts usage, changes prices, corrects records. Every function runs in the writer's transaction."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select

from forebay_billing import schema
from forebay_billing.errors import AlreadyCorrected, RecordConflict, UnknownRecord
from forebay_billing.ledger import rate_of, reversal_transaction, usage_transaction
from forebay_billing.money import cost_atto, halves, surcharge_rate
from forebay_billing.months import Month
from forebay_billing.prices import PriceBook, seed_prices
from forebay_billing.types import PriceVersion, Span, Transaction, UsageRecord

_ADDED = {field.name: field.default for field in fields(UsageRecord) if field.default is not MISSING}
"""What records lacked at first, with what that meant: a record from before is the same as one that says so."""


@dataclass(frozen=True)
class Accepted:
    """What became of a batch. ``cost_atto`` is what the accepted records cost, by currency."""

    accepted: int
    duplicates: int
    cost_atto: dict[str, int]


def digest_of(record: UsageRecord) -> bytes:
    """SHA-256 of the record's content: equal for equal records only. What later versions added counts where it is not the default."""
    content = {name: value for name, value in asdict(record).items() if _ADDED.get(name, ...) != value}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).digest()


def price_of(row: Row[Any]) -> PriceVersion:
    """The price version in a row of ``prices``."""
    return PriceVersion(
        row.flavor, row.currency, row.version, row.price_nano_per_second, row.valid_from_ns, row.changed_at_ns, row.changed_by
    )


def record_of(row: Row[Any]) -> UsageRecord:
    """The usage record in a row of ``usage``."""
    return UsageRecord(
        source=row.source,
        id=row.record_id,
        tenant=row.tenant,
        user=row.user_name,
        session=row.session,
        lease=row.lease,
        span=Span(row.span_id, row.span_kind, row.span_label, row.span_cell),
        flavor=row.flavor,
        device_model=row.device_model,
        devices=row.devices,
        started_at_ns=row.started_at_ns,
        duration_ns=row.duration_ns,
        close_reason=row.close_reason,
        share_milli=row.share_milli,
        surcharge_nano_per_second=row.surcharge_nano_per_second,
    )


def price_ids(connection: Connection) -> dict[PriceVersion, int]:
    """All price versions with the ids that usage rows point to."""
    return {price_of(row): row.id for row in connection.execute(select(schema.prices))}


def seed(connection: Connection, now_ns: int) -> int:
    """Writes version 1 of all prices where the book is empty; returns how many."""
    if connection.execute(select(func.count()).select_from(schema.prices)).scalar_one():
        return 0
    versions = seed_prices(now_ns)
    for version in versions:
        _append_price(connection, version, None)
    return len(versions)


def change_price(
    connection: Connection,
    flavor: str,
    currency: str,
    price_nano_per_second: int,
    valid_from_ns: int | None,
    clock_ns: Callable[[], int],
    who: str,
    new: bool = False,
) -> PriceVersion:
    """Appends a version, and says so in the audit. See :meth:`PriceBook.next_version`."""
    now_ns = clock_ns()
    book = PriceBook(price_ids(connection))
    version = book.next_version(flavor, currency, price_nano_per_second, valid_from_ns, now_ns, who, new)
    _append_price(connection, version, book.at(flavor, currency, version.valid_from_ns))
    return version


def _append_price(connection: Connection, version: PriceVersion, before: PriceVersion | None) -> None:
    price_id = _next_id(connection, schema.prices.c.id)
    connection.execute(insert(schema.prices).values(id=price_id, **asdict(version)))
    _append_audit(
        connection,
        version.changed_at_ns,
        version.changed_by,
        "price.change",
        f"{version.flavor}/{version.currency}",
        None if before is None else asdict(before),
        asdict(version),
    )


def post_usage(
    connection: Connection, records: Sequence[UsageRecord], currency_of: Callable[[str], str], clock_ns: Callable[[], int]
) -> Accepted:
    """Rates and posts each new record, once and for ever; all of them or none.

    Raises RecordConflict where a (source, id) is known with another content, Unpriced.
    """
    fresh = _without_duplicates(connection, records)
    ids = price_ids(connection)
    book = PriceBook(ids)
    costs: dict[str, int] = defaultdict(int)
    rows: list[dict[str, Any]] = []
    entries: list[Transaction] = []
    now_ns = clock_ns()
    first_id = _next_id(connection, schema.transactions.c.id)
    for transaction_id, (digest, record) in enumerate(fresh, first_id):
        price = book.rate(record, currency_of(record.tenant))
        costs[price.currency] += cost_atto(record.duration_ns, rate_of(record, price))
        rows.append(_usage_row(transaction_id, record, digest, ids[price], now_ns))
        entries.append(usage_transaction(record, price))
    if entries:
        _append_transactions(connection, entries, first_id, now_ns, None)
        connection.execute(insert(schema.usage), rows)
    return Accepted(len(rows), len(records) - len(rows), dict(costs))


def correct(connection: Connection, source: str, record_id: str, reason: str, clock_ns: Callable[[], int], who: str) -> int:
    """Reverses a usage record in the present month; returns the reversing transaction. Raises UnknownRecord, AlreadyCorrected."""
    usage, transactions = schema.usage.c, schema.transactions.c
    row = connection.execute(select(schema.usage).where(usage.source == source, usage.record_id == record_id)).one_or_none()
    if row is None:
        raise UnknownRecord(f"No usage {source}/{record_id} was ever accepted.")
    reversed_by = connection.execute(select(transactions.id).where(transactions.reverses == row.transaction_id)).scalar_one_or_none()
    if reversed_by is not None:
        raise AlreadyCorrected(f"Usage {source}/{record_id} was reversed already, by transaction {reversed_by}.")
    price = price_of(connection.execute(select(schema.prices).where(schema.prices.c.id == row.price_id)).one())
    record = record_of(row)
    now_ns = clock_ns()
    transaction_id = _next_id(connection, transactions.id)
    entry = reversal_transaction(record, price, Month.of(now_ns))
    _append_transactions(connection, [entry], transaction_id, now_ns, row.transaction_id)
    after = {"transaction": transaction_id, "reason": reason}
    _append_audit(connection, now_ns, who, "usage.correct", f"{source}/{record_id}", asdict(record), after)
    return transaction_id


def _without_duplicates(connection: Connection, records: Sequence[UsageRecord]) -> list[tuple[bytes, UsageRecord]]:
    """The records that are new, each once. Raises RecordConflict."""
    known = _known_digests(connection, records)
    fresh: dict[tuple[str, str], tuple[bytes, UsageRecord]] = {}
    for record in records:
        key = (record.source, record.id)
        digest = digest_of(record)
        if key in known:
            if known[key] != digest:
                raise RecordConflict(_difference(_stored(connection, key), record))
        elif key in fresh:
            if fresh[key][0] != digest:
                raise RecordConflict(_difference(fresh[key][1], record))
        else:
            fresh[key] = (digest, record)
    return list(fresh.values())


def _known_digests(connection: Connection, records: Iterable[UsageRecord]) -> dict[tuple[str, str], bytes]:
    usage = schema.usage.c
    ids_by_source: dict[str, list[str]] = defaultdict(list)
    for record in records:
        ids_by_source[record.source].append(record.id)
    known: dict[tuple[str, str], bytes] = {}
    for source, ids in ids_by_source.items():
        query = select(usage.record_id, usage.digest).where(usage.source == source, usage.record_id.in_(ids))
        for record_id, digest in connection.execute(query):
            known[source, record_id] = bytes(digest)
    return known


def _stored(connection: Connection, key: tuple[str, str]) -> UsageRecord:
    usage = schema.usage.c
    return record_of(connection.execute(select(schema.usage).where(usage.source == key[0], usage.record_id == key[1])).one())


def _difference(stored: UsageRecord, received: UsageRecord) -> str:
    """One sentence that names the record and, for each field that differs, both values."""
    before, after = asdict(stored), asdict(received)
    fields = ", ".join(f"{name} {before[name]!r} is stored, {after[name]!r} arrived" for name in before if before[name] != after[name])
    return f"Usage {stored.source}/{stored.id} is known with another content: {fields}; nothing of this batch was written."


def _usage_row(transaction_id: int, record: UsageRecord, digest: bytes, price_id: int, now_ns: int) -> dict[str, Any]:
    return {
        "transaction_id": transaction_id,
        "source": record.source,
        "record_id": record.id,
        "digest": digest,
        "tenant": record.tenant,
        "user_name": record.user,
        "session": record.session,
        "lease": record.lease,
        "span_id": record.span.id,
        "span_kind": record.span.kind,
        "span_label": record.span.label,
        "span_cell": record.span.cell,
        "flavor": record.flavor,
        "device_model": record.device_model,
        "devices": record.devices,
        "started_at_ns": record.started_at_ns,
        "duration_ns": record.duration_ns,
        "close_reason": record.close_reason,
        "share_milli": record.share_milli,
        "surcharge_nano_per_second": record.surcharge_nano_per_second,
        "surcharge_rate_nano": surcharge_rate(record),
        "price_id": price_id,
        "received_at_ns": now_ns,
    }


def _append_transactions(connection: Connection, entries: Sequence[Transaction], first_id: int, now_ns: int, reverses: int | None) -> None:
    """Writes transactions in the order that the schema's guards want: rows, postings, seals."""
    accounts = _account_ids(connection, {posting.account for entry in entries for posting in entry.postings})
    numbered = list(enumerate(entries, first_id))
    rows = [{"id": id, "kind": entry.kind, "posted_at_ns": now_ns, "reverses": reverses} for id, entry in numbered]
    postings: list[dict[str, Any]] = []
    for id, entry in numbered:
        for position, posting in enumerate(entry.postings):
            milli, atto = halves(posting.amount_atto)
            postings.append(
                {
                    "transaction_id": id,
                    "position": position,
                    "account_id": accounts[posting.account],
                    "month": str(posting.month),
                    "currency": posting.currency,
                    "milli": milli,
                    "atto": atto,
                }
            )
    connection.execute(insert(schema.transactions), rows)
    connection.execute(insert(schema.postings), postings)
    connection.execute(insert(schema.seals), [{"transaction_id": id} for id, _ in numbered])


def _account_ids(connection: Connection, names: set[str]) -> dict[str, int]:
    """Ids of accounts by name; opens those that are missing."""
    accounts = schema.accounts.c
    rows = connection.execute(select(accounts.name, accounts.id).where(accounts.name.in_(sorted(names))))
    found: dict[str, int] = {name: id for name, id in rows}
    missing = sorted(names - found.keys())
    if missing:
        for id, name in enumerate(missing, _next_id(connection, accounts.id)):
            connection.execute(insert(schema.accounts).values(id=id, name=name))
            found[name] = id
    return found


def _append_audit(
    connection: Connection, at_ns: int, who: str, action: str, subject: str, before: dict[str, Any] | None, after: dict[str, Any]
) -> None:
    connection.execute(
        insert(schema.audit).values(
            id=_next_id(connection, schema.audit.c.id),
            at_ns=at_ns,
            who=who,
            action=action,
            subject=subject,
            before=None if before is None else json.dumps(before, sort_keys=True),
            after=json.dumps(after, sort_keys=True),
        )
    )


def _next_id(connection: Connection, column: Any) -> int:
    """One more than the largest id: there is only one writer, so ids have no gaps."""
    largest: int | None = connection.execute(select(func.max(column))).scalar_one()
    return 1 if largest is None else largest + 1
