"""The open books: one database transaction of the only writer, and what it remembers from the last one.

Ids grow by one and rows are never changed, so the largest ids say whether the database is as this process left it: what was
remembered of a table is used only while its largest id is the same. Another process may therefore write in between. Whoever takes
back what was written with an instance must forget its memory too (:class:`forebay_billing.ledger.writer.Writer` does).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, Table, func, insert, select, text

from forebay_billing.model.money import halves
from forebay_billing.model.months import Month
from forebay_billing.model.types import ParkedPrice, PriceVersion, SurchargeVersion, Transaction
from forebay_billing.rules.parked import ParkedBook
from forebay_billing.rules.prices import Past, PriceBook
from forebay_billing.tables import bulk, invoices, schema

ACCOUNTS_REMEMBERED_MAX = 100_000
TENANTS_REMEMBERED_MAX = 100_000
_NUMBERED = (
    schema.usage,
    schema.transactions,
    schema.accounts,
    schema.prices,
    schema.parked_prices,
    schema.surcharges,
    schema.plans,
    schema.periods,
    schema.audit,
    schema.holds,
    invoices.profiles,
)
_NOTE_RATED = text(
    "INSERT INTO rated (flavor, currency, until_ns) VALUES (:flavor, :currency, :until_ns) "
    "ON CONFLICT (flavor, currency) DO UPDATE SET until_ns = excluded.until_ns WHERE excluded.until_ns > rated.until_ns"
)
_HEADS = select(*(select(func.max(table.c.id)).scalar_subquery().label(table.name) for table in _NUMBERED))


@dataclass
class Memory:
    """What was read before, and the largest ids for which it holds."""

    heads: dict[str, int] = field(default_factory=dict)
    accounts: dict[str, int] = field(default_factory=dict)
    prices: dict[PriceVersion, int] | None = None
    book: PriceBook | None = None
    finalised: dict[str, frozenset[Month]] = field(default_factory=dict)
    currencies: dict[str, str | None] | None = None
    rated: dict[tuple[str, str], int] = field(default_factory=dict)
    """Until when usage is known to be rated, at least; it never goes back."""

    def forget(self) -> None:
        """Nothing is known any more; :meth:`Books.look_again` comes next."""
        vars(self).update(vars(Memory()))


def price_of(row: Row[Any]) -> PriceVersion:
    """The price version in a row of ``prices``."""
    return PriceVersion(
        row.flavor, row.currency, row.version, row.price_nano_per_hour, row.valid_from_ns, row.changed_at_ns, row.changed_by
    )


def price_ids(connection: Connection) -> dict[PriceVersion, int]:
    """All price versions with the ids that segments point to."""
    return {price_of(row): row.id for row in connection.execute(select(schema.prices))}


def surcharges(connection: Connection) -> list[SurchargeVersion]:
    """All versions of what models of devices cost beside the flavor's price."""
    columns = [schema.surcharges.c[name] for name in SurchargeVersion.__dataclass_fields__]
    return [SurchargeVersion(*row) for row in connection.execute(select(*columns).order_by(schema.surcharges.c.id))]


def parked_prices(connection: Connection) -> list[ParkedPrice]:
    """All versions of the price of parked bytes."""
    columns = [schema.parked_prices.c[name] for name in ParkedPrice.__dataclass_fields__]
    return [ParkedPrice(*row) for row in connection.execute(select(*columns).order_by(schema.parked_prices.c.id))]


def parked_price_ids(connection: Connection) -> dict[ParkedPrice, int]:
    """All versions of the price of parked bytes with the ids that their segments point to."""
    ids = connection.execute(select(schema.parked_prices.c.id).order_by(schema.parked_prices.c.id)).scalars()
    return dict(zip(parked_prices(connection), ids, strict=True))


def profile_currencies(connection: Connection) -> dict[str, str | None]:
    """What tenants are billed in by their profiles; None where one leaves it to the settings."""
    profiles = invoices.profiles.c
    rows = connection.execute(select(profiles.tenant, profiles.currency).order_by(profiles.version))
    return {row.tenant: row.currency for row in rows}


def past(connection: Connection, flavor: str, currency: str) -> Past:
    """What a price of ``flavor`` in ``currency`` may not change any more."""
    rated, periods = schema.rated.c, schema.periods.c
    until_ns = connection.execute(select(rated.until_ns).where(rated.flavor == flavor, rated.currency == currency)).scalar_one_or_none()
    latest = connection.execute(select(func.max(periods.period))).scalar_one()
    return Past(until_ns or 0, None if latest is None else Month.parse(latest))


class Books:
    """What the functions that write work with. Lives as long as the database transaction of ``connection``."""

    def __init__(self, connection: Connection, memory: Memory | None = None) -> None:
        self.connection = connection
        self._remembered = Memory() if memory is None else memory
        self._looked = False

    def look_again(self) -> None:
        """Takes note, when it matters, of what somebody else wrote in the same transaction."""
        self._looked = False

    @property
    def _memory(self) -> Memory:
        """What is remembered and still holds; many transactions never ask."""
        if not self._looked:
            self._look(self._remembered)
            self._looked = True
        return self._remembered

    def _look(self, memory: Memory) -> None:
        row = self.connection.execute(_HEADS).one()
        heads = {table.name: int(largest or 0) for table, largest in zip(_NUMBERED, row, strict=True)}
        if heads["accounts"] != memory.heads.get("accounts") or len(memory.accounts) > ACCOUNTS_REMEMBERED_MAX:
            memory.accounts = {}
        if heads["prices"] != memory.heads.get("prices"):
            memory.prices = memory.book = None
        if heads["surcharges"] != memory.heads.get("surcharges"):
            memory.book = None
        if heads["periods"] != memory.heads.get("periods") or len(memory.finalised) > TENANTS_REMEMBERED_MAX:
            memory.finalised = {}
        if heads["profiles"] != memory.heads.get("profiles"):
            memory.currencies = None
        memory.heads = heads

    def take_ids(self, table: Table, count: int = 1) -> int:
        """The first of ``count`` new ids of a table that is numbered; ids have no gaps, as there is only one writer."""
        first = self._memory.heads[table.name] + 1
        self._memory.heads[table.name] += count
        return first

    def prices(self) -> dict[PriceVersion, int]:
        """All price versions with their ids."""
        if self._memory.prices is None:
            self._memory.prices = price_ids(self.connection)
        return self._memory.prices

    def price_book(self) -> PriceBook:
        """All prices and surcharges."""
        if self._memory.book is None:
            self._memory.book = PriceBook(self.prices(), surcharges(self.connection))
        return self._memory.book

    def append_surcharge(self, version: SurchargeVersion) -> None:
        """Writes a version that the price book has made."""
        row = asdict(version) | {"id": self.take_ids(schema.surcharges)}
        self.connection.execute(insert(schema.surcharges).values(**row))
        self._memory.book = None

    def append_price(self, version: PriceVersion) -> None:
        """Writes a version that the price book has made."""
        row = {name: getattr(version, name) for name in PriceVersion.__dataclass_fields__}
        self.connection.execute(insert(schema.prices).values(id=self.take_ids(schema.prices), **row))
        self._memory.prices = self._memory.book = None

    def currency_of(self, tenant: str, otherwise: str) -> str:
        """What ``tenant`` is billed in: by its profile, else ``otherwise``."""
        if self._memory.currencies is None:
            self._memory.currencies = profile_currencies(self.connection)
        return self._memory.currencies.get(tenant) or otherwise

    def append_profile(self, values: Mapping[str, Any]) -> None:
        """Writes a version of a tenant's billing profile."""
        self.connection.execute(insert(invoices.profiles).values(id=self.take_ids(invoices.profiles), **values))
        self._memory.currencies = None

    def parked_book(self) -> ParkedBook:
        """All prices of parked bytes."""
        return ParkedBook(parked_prices(self.connection))

    def append_parked_price(self, version: ParkedPrice) -> None:
        """Writes a version that the book of parked bytes has made."""
        row = asdict(version) | {"id": self.take_ids(schema.parked_prices)}
        self.connection.execute(insert(schema.parked_prices).values(**row))

    def note_rated(self, ends_ns: Mapping[tuple[str, str], int]) -> None:
        """Remembers that usage of (flavor, currency) was rated up to there, for good: no price will change before."""
        later = {key: end_ns for key, end_ns in ends_ns.items() if end_ns > self._memory.rated.get(key, -1)}
        if later:
            rows = [{"flavor": flavor, "currency": currency, "until_ns": end_ns} for (flavor, currency), end_ns in later.items()]
            self.connection.execute(_NOTE_RATED, rows)
            self._memory.rated.update(later)

    def past(self, flavor: str, currency: str) -> Past:
        """What a price of ``flavor`` in ``currency`` may not change any more."""
        return past(self.connection, flavor, currency)

    def finalised(self, tenant: str) -> frozenset[Month]:
        """The months that are closed for ``tenant``."""
        known = self._memory.finalised.get(tenant)
        if known is None:
            periods = schema.periods.c
            rows = self.connection.execute(select(periods.period).where(periods.tenant == tenant)).scalars()
            known = self._memory.finalised[tenant] = frozenset(map(Month.parse, rows))
        return known

    def finalise(self, tenant: str, month: Month, now_ns: int) -> None:
        """Closes ``month`` for ``tenant``, for ever: what is posted later goes to the first open month after it."""
        row = {"id": self.take_ids(schema.periods), "tenant": tenant, "period": str(month), "finalised_at_ns": now_ns}
        self.connection.execute(insert(schema.periods), [row])
        self._memory.finalised.pop(tenant, None)

    def account_ids(self, names: Iterable[str]) -> dict[str, int]:
        """Ids of accounts by name; opens those that are missing."""
        wanted, known = set(names), self._memory.accounts
        unknown = sorted(name for name in wanted if name not in known)
        if unknown:
            accounts = schema.accounts.c
            known.update((row.name, row.id) for row in self.connection.execute(select(schema.accounts).where(accounts.name.in_(unknown))))
            missing = [name for name in unknown if name not in known]
            if missing:
                first = self.take_ids(schema.accounts, len(missing))
                rows = [{"id": id, "name": name} for id, name in enumerate(missing, first)]
                self.connection.execute(insert(schema.accounts), rows)
                known.update(zip(missing, range(first, first + len(missing)), strict=True))
        return {name: known[name] for name in wanted}

    def append(self, entry: Transaction, now_ns: int, reverses: int | None = None) -> int:
        """Writes and seals ``entry``; returns the transaction's id, to which the rows of the sub-ledger point that explain it."""
        accounts = self.account_ids(posting.account for posting in entry.postings)
        transaction_id = self.take_ids(schema.transactions)
        row = (transaction_id, entry.kind, now_ns, reverses)
        bulk.append(self.connection, "transactions", ("id", "kind", "posted_at_ns", "reverses"), [row])
        postings = [
            (transaction_id, accounts[posting.account], str(posting.period), posting.currency, *halves(posting.amount_grains))
            for posting in entry.postings
        ]
        bulk.append(self.connection, "postings", ("transaction_id", "account_id", "period", "currency", "milli", "grains"), postings)
        bulk.append(self.connection, "seals", ("transaction_id",), [(transaction_id,)])
        return transaction_id

    def append_audit(
        self, at_ns: int, who: str, action: str, subject: str, before: Mapping[str, Any] | None, after: Mapping[str, Any]
    ) -> None:
        """Writes who changed what, and when; ``before`` is None where there was nothing."""
        row = {
            "id": self.take_ids(schema.audit),
            "at_ns": at_ns,
            "who": who,
            "action": action,
            "subject": subject,
            "before": None if before is None else json.dumps(before, sort_keys=True),
            "after": json.dumps(after, sort_keys=True),
        }
        self.connection.execute(insert(schema.audit), [row])
