"""What usage was rated in: the segments of leases and of parked bytes as the rows of one query.

Whatever sums up money begins here, so that no sum forgets the one or the other. Each of the two tables is narrowed by its own indexes,
before the rows are put together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Select,
    String,
    Table,
    cast,
    func,
    literal,
    null,
    or_,
    select,
    union_all,
)
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from forebay_billing.ledger.postings import receivable
from forebay_billing.model.months import Month
from forebay_billing.model.types import PARKED
from forebay_billing.tables import schema

Columns: TypeAlias = ReadOnlyColumnCollection[str, Any]
Where: TypeAlias = Callable[[Columns], Iterable[ColumnElement[bool]]]
"""Conditions on the columns that both tables have."""

_prices, _usage = schema.prices.c, schema.usage.c
_SHARED = tuple(column.name for column in schema.segments.c if column.name in schema.parked_segments.c)
CELL: ColumnElement[str | None] = func.coalesce(_usage.span_cell_id, _usage.session + "/" + cast(_usage.span_cell, String(20)))
"""What tells one cell of a notebook from another: the front end's id of it, else the session with the number, since numbers begin anew
with each kernel. Null for what is of no cell."""
_NO_ID: ColumnElement[int] = cast(null(), BigInteger)


@dataclass(frozen=True)
class Kind:
    """One of the two tables, and what has another place in each. ``indexed`` is what its records have indexes of their own for."""

    table: Table
    source: FromClause
    own: tuple[ColumnElement[Any], ...]
    indexed: tuple[ColumnElement[bool], ...] = ()

    def rows(self, where: Where, usage: Sequence[ColumnElement[Any]], of_usage: Sequence[ColumnElement[bool]]) -> Select[Any]:
        """Its pieces, with columns of their records beside them."""
        columns = [self.table.c[name] for name in _SHARED]
        query = select(*columns, *self.own, *usage).where(*where(self.table.c))
        if not usage and not of_usage:
            return query.select_from(self.source)
        return query.select_from(self.source.join(schema.usage, _usage.id == self.table.c.usage_id)).where(*of_usage, *self.indexed)


LEASED = Kind(
    schema.segments,
    schema.segments.join(schema.prices, _prices.id == schema.segments.c.price_id),
    (
        _prices.flavor.label("priced"),
        _prices.currency.label("currency"),
        schema.segments.c.price_id,
        _NO_ID.label("parked_price_id"),
        schema.segments.c.surcharge_nano_per_hour,
        literal(False).label("is_parked"),
    ),
)
KEPT = Kind(
    schema.parked_segments,
    schema.parked_segments,
    (
        literal(PARKED).label("priced"),
        schema.parked_segments.c.currency.label("currency"),
        _NO_ID.label("price_id"),
        schema.parked_segments.c.parked_price_id,
        literal(0, BigInteger).label("surcharge_nano_per_hour"),
        literal(True).label("is_parked"),
    ),
    (_usage.parked_bytes.is_not(None),),
)
BOTH = (LEASED, KEPT)


def everything(columns: Columns) -> Iterable[ColumnElement[bool]]:
    """No condition."""
    return ()


def in_month(tenant: str, month: Month) -> Where:
    """What is billed to ``tenant`` in ``month``."""
    account = select(schema.accounts.c.id).where(schema.accounts.c.name == receivable(tenant)).scalar_subquery()
    return lambda columns: (columns.account_id == account, columns.period == str(month))


def pieces(
    where: Where = everything,
    usage: Sequence[ColumnElement[Any]] = (),
    of_usage: Sequence[ColumnElement[bool]] = (),
    kinds: Sequence[Kind] = BOTH,
) -> Columns:
    """The columns of a query of all pieces: those that both tables have, ``priced`` (the flavor, or PARKED), ``currency``, ``price_id``,
    ``parked_price_id``, ``surcharge_nano_per_hour``, ``is_parked``, and the wanted ones of ``usage``.

    ``of_usage`` are conditions on the columns of usage.
    """
    return union_all(*(kind.rows(where, usage, of_usage) for kind in kinds)).subquery("pieces").c


def costly(columns: Columns) -> ColumnElement[bool]:
    """Whether a piece costs anything."""
    return or_(columns.milli != 0, columns.grains != 0)
