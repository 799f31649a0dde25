"""Accepts usage, changes prices, corrects records. Every function runs in the writer's transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from itertools import chain, islice
from typing import Any, TypeAlias

from sqlalchemy import Row, insert, select

from forebay_billing.errors import AlreadyCorrected, RecordConflict, TooLarge, UnknownRecord
from forebay_billing.ledger.books import Books, parked_price_ids
from forebay_billing.ledger.postings import REVENUE, balanced, receivable, transfer
from forebay_billing.model.money import halves, whole
from forebay_billing.model.months import Month
from forebay_billing.model.types import (
    Accepted,
    Cost,
    ParkedSegment,
    Payer,
    Posting,
    Segment,
    UsageRecord,
    priced_model,
)
from forebay_billing.reads.usage import record_of
from forebay_billing.rules.rating import open_period, parked_segments_of, segments_of
from forebay_billing.tables import bulk, schema
from forebay_billing.writes import holds

SEGMENTS_MAX = 20_000
"""The most segments of a batch; a record of more, which has years of price changes in it, may come alone."""
_CONTENT = (
    "source", "record_id", "tenant", "user_name", "session", "lease", "span_id", "span_kind", "span_label", "span_cell", "flavor",
    "device_model", "devices", "started_at_ns", "duration_ns", "close_reason", "share_milli", "parked_bytes",
    "span_cell_id", "span_first_line", "energy_mj",
)  # fmt: skip
"""Columns of ``usage`` that say what arrived."""
_SEGMENT = (
    "usage_id", "position", "transaction_id", "account_id", "period", "started_at_ns", "duration_ns", "milli", "grains", "late", "reversal",
)  # fmt: skip
"""Columns that leased and parked segments share."""

Rated: TypeAlias = Sequence[Segment | ParkedSegment]


def post_usage(
    books: Books, records: Sequence[UsageRecord], currency_of: Callable[[str], str], clock_ns: Callable[[], int]
) -> Accepted:
    """Rates each new record, once and for ever, posts them as one transaction, and releases their holds; all of them or none.

    Raises RecordConflict where a (source, id) is known with another content, Unpriced, InvalidRequest, TooLarge.
    """
    return post_batches(books, [records], currency_of, clock_ns)[0]


def post_batches(
    books: Books, batches: Sequence[Sequence[UsageRecord]], currency_of: Callable[[str], str], clock_ns: Callable[[], int]
) -> list[Accepted]:
    """The same for many batches as one; of a record that is in two, the first counts. A refusal is of them all."""
    news = _news(books, batches)
    fresh = [record for contents in news for record in contents.values()]
    if not fresh:
        return [Accepted(0, len(batch), {}) for batch in batches]
    rated = _rate(books, fresh, currency_of)
    now_ns = clock_ns()
    sums, ends_ns = _sums(fresh, rated)
    postings = (posting for (tenant, period, currency), grains in sums.items() for posting in _owed(tenant, period, currency, grains))
    transaction_id = books.append(balanced("usage", postings), now_ns)
    first_id = books.take_ids(schema.usage, len(fresh))
    rows = [(id, now_ns, *content) for id, content in enumerate(chain.from_iterable(news), first_id)]
    bulk.append(books.connection, "usage", ("id", "received_at_ns", *_CONTENT), rows)
    _append_segments(books, first_id, transaction_id, fresh, rated)
    holds.release(books, fresh, now_ns)
    books.note_rated(ends_ns)
    of_each = zip(fresh, rated, strict=True)
    return [
        Accepted(len(contents), len(batch) - len(contents), _costs(islice(of_each, len(contents))))
        for batch, contents in zip(batches, news, strict=True)
    ]


def _costs(found: Iterable[tuple[UsageRecord, Rated]]) -> dict[Payer, Cost]:
    sums: dict[tuple[str, str, str], tuple[int, int]] = {}
    for record, segments in found:
        for segment in segments:
            payer = (record.tenant, record.flavor, segment.currency)
            duration_ns, grains = sums.get(payer, (0, 0))
            sums[payer] = (duration_ns + segment.duration_ns, grains + segment.amount_grains)
    return {Payer(*payer): Cost(*cost) for payer, cost in sums.items()}


def _owed(tenant: str, period: Month, currency: str, amount_grains: int) -> tuple[Posting, Posting]:
    return transfer(receivable(tenant), REVENUE, period, currency, amount_grains)


def _rate(books: Books, records: Sequence[UsageRecord], currency_of: Callable[[str], str]) -> list[Rated]:
    book, count = books.price_book(), 0
    rated: list[Rated] = []
    parked_book = books.parked_book() if any(record.parked_bytes is not None for record in records) else None
    tenants = {tenant: (currency_of(tenant), books.finalised(tenant)) for tenant in {record.tenant for record in records}}
    for record in records:
        currency, finalised = tenants[record.tenant]
        segments: Rated
        if parked_book is not None and record.parked_bytes is not None:
            segments = parked_segments_of(record, record.parked_bytes, parked_book, currency, finalised)
        else:
            segments = segments_of(record, book, currency, finalised)
        rated.append(segments)
        count += len(segments)
        if count > SEGMENTS_MAX and len(records) > 1:
            raise TooLarge(f"The records last so long that they make more than {SEGMENTS_MAX} hourly segments; send fewer at once.")
    return rated


def _sums(records: Sequence[UsageRecord], rated: Sequence[Rated]) -> tuple[dict[tuple[str, Month, str], int], dict[tuple[str, str], int]]:
    """What each tenant owes for them, by period and currency; and when the latest ends that was rated with each price and currency."""
    sums: dict[tuple[str, Month, str], int] = defaultdict(int)
    ends_ns: dict[tuple[str, str], int] = defaultdict(int)
    of_models: dict[tuple[str, str], int] = defaultdict(int)
    for record, segments in zip(records, rated, strict=True):
        for segment in segments:
            sums[record.tenant, segment.period, segment.currency] += segment.amount_grains
        end_ns, currency = record.started_at_ns + record.duration_ns, segments[0].currency
        if end_ns >= ends_ns[record.flavor, currency]:
            ends_ns[record.flavor, currency] = end_ns
        if record.parked_bytes is None and end_ns >= of_models[record.device_model, currency]:
            of_models[record.device_model, currency] = end_ns
    return sums, ends_ns | {(priced_model(model), currency): end_ns for (model, currency), end_ns in of_models.items()}


def _append_segments(books: Books, first_id: int, transaction_id: int, records: Sequence[UsageRecord], rated: Sequence[Rated]) -> None:
    """Writes the segments of records whose ids count from ``first_id``."""
    accounts = books.account_ids({receivable(record.tenant) for record in records})
    account_of = {record.tenant: accounts[receivable(record.tenant)] for record in records}
    parked_prices = parked_price_ids(books.connection) if any(record.parked_bytes is not None for record in records) else {}
    prices, leased, parked = books.prices(), [], []
    for usage_id, (record, segments) in enumerate(zip(records, rated, strict=True), first_id):
        account_id = account_of[record.tenant]
        for segment in segments:
            row = _segment_row(usage_id, transaction_id, account_id, segment)
            if isinstance(segment, Segment):
                leased.append((*row, prices[segment.price], segment.surcharge_nano_per_hour))
            else:
                parked.append((*row, None if segment.price is None else parked_prices[segment.price], segment.currency))
    if leased:
        bulk.append(books.connection, "segments", (*_SEGMENT, "price_id", "surcharge_nano_per_hour"), leased)
    if parked:
        bulk.append(books.connection, "parked_segments", (*_SEGMENT, "parked_price_id", "currency"), parked)


def correct(books: Books, source: str, record_id: str, reason: str, clock_ns: Callable[[], int], who: str) -> int:
    """Takes a usage record back in the present open period; returns the reversing transaction. Raises UnknownRecord, AlreadyCorrected."""
    connection, usage, reversals = books.connection, schema.usage.c, schema.reversals.c
    row = connection.execute(select(schema.usage).where(usage.source == source, usage.record_id == record_id)).one_or_none()
    if row is None:
        raise UnknownRecord(f"No usage {source}/{record_id} was ever accepted.")
    reversed_by = connection.execute(select(reversals.transaction_id).where(reversals.usage_id == row.id)).scalar_one_or_none()
    if reversed_by is not None:
        raise AlreadyCorrected(f"Usage {source}/{record_id} was reversed already, by transaction {reversed_by}.")
    now_ns = clock_ns()
    period = open_period(Month.of(now_ns), books.finalised(row.tenant))
    table = schema.segments if row.parked_bytes is None else schema.parked_segments
    if row.parked_bytes is None:
        query = select(table, schema.prices.c.currency).join(schema.prices)
    else:
        query = select(table)
    posted = connection.execute(query.where(table.c.usage_id == row.id).order_by(table.c.position)).all()
    postings: list[Posting] = []
    for segment in posted:
        postings += transfer(REVENUE, receivable(row.tenant), period, segment.currency, whole(segment.milli, segment.grains))
    transaction_id = books.append(balanced("reversal", postings), now_ns, posted[0].transaction_id)
    columns = set(table.columns.keys())
    back = [_reversal_row(segment, len(posted), transaction_id, period) for segment in posted]
    connection.execute(insert(table), [{name: value for name, value in one.items() if name in columns} for one in back])
    connection.execute(insert(schema.reversals), [{"usage_id": row.id, "transaction_id": transaction_id}])
    after = {"transaction": transaction_id, "reason": reason}
    books.append_audit(now_ns, who, "usage.correct", f"{source}/{record_id}", asdict(record_of(row)), after)
    return transaction_id


def _news(books: Books, batches: Sequence[Sequence[UsageRecord]]) -> list[dict[tuple[Any, ...], UsageRecord]]:
    """The new records of each batch, by content. Raises RecordConflict."""
    by_source: dict[str, list[str]] = defaultdict(list)
    for record in chain.from_iterable(batches):
        by_source[record.source].append(record.id)
    seen: dict[tuple[str, str], tuple[Any, ...]] = {}
    for source, ids in by_source.items():
        for row in bulk.named(books.connection, "usage", _CONTENT, source, ids):
            seen[source, row.record_id] = tuple(row)
    news: list[dict[tuple[Any, ...], UsageRecord]] = []
    for batch in batches:
        contents: dict[tuple[Any, ...], UsageRecord] = {}
        for record in batch:
            content = _content(record)
            before = seen.setdefault((record.source, record.id), content)
            if before is content:
                contents[content] = record
            elif before != content:
                raise RecordConflict(_difference(before, content))
        news.append(contents)
    return news


def _difference(stored: tuple[Any, ...], received: tuple[Any, ...]) -> str:
    """One sentence that names the record and, for each field that differs, both values."""
    differing = [(name, before, after) for name, before, after in zip(_CONTENT, stored, received, strict=True) if before != after]
    fields = ", ".join(f"{name} {before!r} is stored, {after!r} arrived" for name, before, after in differing)
    return f"Usage {stored[0]}/{stored[1]} is known with another content: {fields}; nothing of this batch was written."


def _content(record: UsageRecord) -> tuple[Any, ...]:
    """The record as values of ``_CONTENT``."""
    span = record.span
    return (
        record.source, record.id, record.tenant, record.user, record.session, record.lease,
        span.id, span.kind, span.label, span.cell,
        record.flavor, record.device_model, record.devices, record.started_at_ns, record.duration_ns, record.close_reason,
        record.share_milli, record.parked_bytes, span.cell_id, span.first_line, record.energy_mj,
    )  # fmt: skip


def _segment_row(usage_id: int, transaction_id: int, account_id: int, segment: Segment | ParkedSegment) -> tuple[Any, ...]:
    """What all segments have, as values of ``_SEGMENT``."""
    return (
        usage_id, segment.position, transaction_id, account_id, str(segment.period), segment.started_at_ns, segment.duration_ns,
        *halves(segment.amount_grains), segment.late, False,
    )  # fmt: skip


def _reversal_row(segment: Row[Any], count: int, transaction_id: int, period: Month) -> dict[str, Any]:
    """What takes ``segment``, one of ``count``, back."""
    return dict(segment._mapping) | {
        "position": count + segment.position,
        "transaction_id": transaction_id,
        "period": str(period),
        "duration_ns": -segment.duration_ns,
        "milli": -segment.milli,
        "grains": -segment.grains,
        "late": False,
        "reversal": True,
    }
