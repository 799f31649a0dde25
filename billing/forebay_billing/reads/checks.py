"""Whether the books agree with themselves. Reads all of the ledger, in one snapshot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement, Connection, Select, case, func, literal, null, or_, select, union_all

from forebay_billing.ledger.postings import credit_of, receivable
from forebay_billing.model.money import grains_of_minor, whole
from forebay_billing.model.types import priced_model
from forebay_billing.reads.invoices import Invoice, credits_of, invoices_of
from forebay_billing.reads.rated_rows import pieces
from forebay_billing.reads.usage import RATED, posted
from forebay_billing.rules.holds import Ending
from forebay_billing.tables import schema
from forebay_billing.tables.sums import halved, joined

Pair = Literal[
    "segments and postings", "postings and balances", "debits and credits", "usage and segments",
    "open holds and postings", "ended holds and postings", "invoices and balances", "credits and balances", "rated and segments",
]  # fmt: skip

_postings, _transactions = schema.postings.c, schema.transactions.c
_balances, _accounts, _usage = schema.balances.c, schema.accounts.c, schema.usage.c
_holds = schema.holds.c


@dataclass(frozen=True)
class Difference:
    """Two sums that should be one, and are not: the first less the second, in grains, or in nanoseconds of usage."""

    between: Pair
    subject: str
    difference: int


def differences(connection: Connection) -> list[Difference]:
    """All there are; none in sound books."""
    names: dict[int | None, str] = {row.id: row.name for row in connection.execute(select(schema.accounts))}
    found: list[Difference] = []
    pairs: tuple[tuple[Pair, Select[Any], Select[Any]], ...] = (
        ("segments and postings", _of_segments(), _of_rated_postings()),
        ("postings and balances", of_postings(), _of_balances()),
        ("debits and credits", _of_currencies(), _of_currencies().where(literal(False))),
        ("open holds and postings", _of_open_holds(), _of_held_postings()),
        ("ended holds and postings", _of_ended_holds(), _of_releases()),
    )
    for pair, first, second in pairs:
        for row, grains in _unequal(connection, first, second):
            where = (f"transaction {row.transaction_id}", names.get(row.account_id), row.period, row.currency)
            subject = " ".join(str(part) for part in where[row.transaction_id is None :] if part is not None)
            found.append(Difference(pair, subject, grains))
    return [*found, *_unexplained(connection), *_of_invoices(connection), *_of_credits(connection), *_of_rated(connection)]


def _of_segments() -> Select[Any]:
    piece = pieces()
    return select(piece.transaction_id, piece.account_id, piece.period, piece.currency, piece.milli, piece.grains)


def _of_rated_postings() -> Select[Any]:
    """The postings on tenants' accounts that segments explain."""
    joined_to_rest = schema.postings.join(schema.transactions, _transactions.id == _postings.transaction_id).join(
        schema.accounts, _accounts.id == _postings.account_id
    )
    key = (_postings.transaction_id, _postings.account_id, _postings.period, _postings.currency)
    owed = (_transactions.kind.in_(RATED), _accounts.name.like("receivable:%"))
    return select(*key, _postings.milli, _postings.grains).select_from(joined_to_rest).where(*owed)


def of_postings() -> Select[Any]:
    """All postings, for :func:`sums_of`."""
    key = (null().label("transaction_id"), _postings.account_id, _postings.period, _postings.currency)
    return select(*key, _postings.milli, _postings.grains)


def _of_balances() -> Select[Any]:
    key = (null().label("transaction_id"), _balances.account_id, _balances.period, _balances.currency)
    return select(*key, _balances.milli, _balances.grains)


def _of_open_holds() -> Select[Any]:
    key = (null().label("transaction_id"), _holds.account_id, _holds.period, _holds.currency)
    return select(*key, _holds.milli, _holds.grains).where(_holds.closed_by.is_(None))


def _of_held_postings() -> Select[Any]:
    return of_postings().join(schema.accounts, _accounts.id == _postings.account_id).where(_accounts.name.like("held:%"))


def _of_ended_holds() -> Select[Any]:
    key = (_holds.closed_by.label("transaction_id"), _holds.account_id, _holds.period, _holds.currency)
    return select(*key, _holds.milli, _holds.grains).where(_holds.closed_by.is_not(None))


def _of_releases() -> Select[Any]:
    """What the transactions that end holds gave back."""
    joined_to_rest = schema.postings.join(schema.transactions, _transactions.id == _postings.transaction_id).join(
        schema.accounts, _accounts.id == _postings.account_id
    )
    key = (_postings.transaction_id, _postings.account_id, _postings.period, _postings.currency)
    ends = (_transactions.kind.in_(get_args(Ending)), _accounts.name.like("held:%"))
    return select(*key, (-_postings.milli).label("milli"), (-_postings.grains).label("grains")).select_from(joined_to_rest).where(*ends)


def _of_currencies() -> Select[Any]:
    key = (null().label("transaction_id"), null().label("account_id"), null().label("period"), _postings.currency)
    return select(*key, _postings.milli, _postings.grains)


def _unequal(connection: Connection, first: Select[Any], second: Select[Any]) -> Iterator[tuple[Any, int]]:
    """The keys under which the amounts of two queries differ, and by how much."""
    taken = second.subquery()
    negative = select(*(column if column.name not in ("milli", "grains") else (-column).label(column.name) for column in taken.c))
    return ((row, grains) for row, grains in sums_of(connection, union_all(first, negative)) if grains)


def sums_of(connection: Connection, query: Any) -> Iterator[tuple[Any, int]]:
    """Grains by transaction, account, period and currency."""
    amounts = query.subquery().c
    key: list[ColumnElement[Any]] = [amounts.transaction_id, amounts.account_id, amounts.period, amounts.currency]
    sums = select(*key, *halved(amounts.milli, "milli"), *halved(amounts.grains, "grains")).group_by(*key).order_by(*key)
    for row in connection.execute(sums):
        yield row, whole(joined(row, "milli"), joined(row, "grains"))


def _unexplained(connection: Connection) -> Iterator[Difference]:
    """Records whose segments do not last as long as they do, or, once reversed, do not sum to nothing."""
    expected_ns = case((schema.reversals.c.usage_id.is_(None), _usage.duration_ns), else_=0)
    piece = pieces()
    segments_ns = func.coalesce(func.sum(piece.duration_ns), 0)
    query = (
        select(_usage.source, _usage.record_id, expected_ns.label("expected"), segments_ns.label("found"))
        .outerjoin(piece.usage_id.table, piece.usage_id == _usage.id)
        .outerjoin(schema.reversals, schema.reversals.c.usage_id == _usage.id)
        .group_by(_usage.id, _usage.source, _usage.record_id, _usage.duration_ns, schema.reversals.c.usage_id)
        .having(or_(segments_ns != expected_ns, func.count(piece.position) == 0))
    )
    for row in connection.execute(query):
        yield Difference("usage and segments", f"{row.source}/{row.record_id}", int(row.expected) - int(row.found))


def _of_rated(connection: Connection) -> Iterator[Difference]:
    """Until when a price may not change is the end of the latest usage that was rated with it; what was taken back was rated, too."""
    piece = pieces(lambda segment: (~segment.reversal,), (_usage.device_model,))
    key = (piece.priced, piece.currency, piece.is_parked, piece.device_model)
    latest: dict[tuple[str, str], int] = defaultdict(int)
    for row in connection.execute(select(*key, func.max(piece.started_at_ns + piece.duration_ns).label("until_ns")).group_by(*key)):
        for priced in (row.priced,) if row.is_parked else (row.priced, priced_model(row.device_model)):
            latest[priced, row.currency] = max(latest[priced, row.currency], row.until_ns)
    noted = {(row.flavor, row.currency): row.until_ns for row in connection.execute(select(schema.rated))}
    for priced, currency in sorted(latest.keys() | noted.keys()):
        difference = noted.get((priced, currency), 0) - latest.get((priced, currency), 0)
        if difference:
            yield Difference("rated and segments", f"{priced} {currency}", difference)


def _of_invoices(connection: Connection) -> Iterator[Difference]:
    """What is open of each invoice stands in its tenant's account."""
    for about, stands_grains in _accounts_of(connection, invoices_of(connection, None)):
        difference = grains_of_minor(about.open_minor, about.draft.currency) - stands_grains
        if difference:
            yield Difference("invoices and balances", about.name, difference)


def _of_credits(connection: Connection) -> Iterator[Difference]:
    """What is left of all of a tenant's grants stands in its account."""
    left: dict[tuple[str, str], int] = defaultdict(int)
    for found in credits_of(connection, None):
        left[found.tenant, found.grant.currency] += grains_of_minor(found.left_minor, found.grant.currency)
    for (tenant, currency), grains in sorted(left.items()):
        difference = grains + posted(connection, credit_of(tenant), None).get(currency, 0)
        if difference:
            yield Difference("credits and balances", f"{tenant} {currency}", difference)


def _accounts_of(connection: Connection, found: Sequence[Invoice]) -> Iterator[tuple[Invoice, int]]:
    """Each invoice with what its tenant's receivable account says is open of it, in grains."""
    for about in found:
        stands = posted(connection, receivable(about.tenant), about.draft.month)
        yield about, stands.get(about.draft.currency, 0)
