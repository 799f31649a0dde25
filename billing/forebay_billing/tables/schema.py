"""The tables. ``migrations/`` creates them and the triggers that keep them append-only and balanced; a test compares both.

A transaction is written in three steps inside one database transaction: its row, its postings, its *seal*. The row's deferred
foreign key wants the seal at commit; the seal's trigger wants the postings to sum to zero per currency, and adds them to
``balances``; nothing can be added to what is sealed. So no database that enforces its constraints ever holds an unbalanced
transaction, whoever writes to it.

``usage`` and ``segments`` are the sub-ledger: a record that the pool sent, and the pieces it was rated in. Each segment points to
the transaction that posted it, and ``checks.py`` holds the sums of the segments against the postings.

On SQLite the tables with many rows lie in the order of their primary key, which spares each row a second tree.

An exact amount is two columns, ``milli·3.6·10^18 + grains`` (:func:`forebay_billing.model.money.halves`); a sum of many rows of either
passes 64 bits (:mod:`forebay_billing.tables.sums`), one of two does not.
"""

from __future__ import annotations

from forebay_wire.texts import LABEL_CHARS_MAX, LINE_CHARS_MAX, NAME_CHARS_MAX
from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from forebay_billing.model.money import GRAINS_PER_MILLI

LOGIN_CHARS_MAX = 255
"""Longest name of a login that JupyterHub keeps."""
KEY_CHARS_MAX = 255
"""Longest idempotency key."""
KINDS = (
    "usage",
    "reversal",
    "reserve",
    "void",
    "expire",
    "post",
    "credit",
    "adjustment",
    "payment",
    "refund",
    "fee",
)
"""Causes of a transaction."""
_NAME = String(NAME_CHARS_MAX)
_OPEN = text("closed_by IS NULL")
_PARKED = text("parked_bytes IS NOT NULL")
_BELOW_A_MILLI = f"grains > -{GRAINS_PER_MILLI} AND grains < {GRAINS_PER_MILLI}"

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

prices = Table(
    "prices",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("flavor", _NAME, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("version", Integer, nullable=False),
    Column("price_nano_per_hour", BigInteger, nullable=False),
    Column("valid_from_ns", BigInteger, nullable=False),
    Column("changed_at_ns", BigInteger, nullable=False),
    Column("changed_by", String(LOGIN_CHARS_MAX), nullable=False),
    UniqueConstraint("flavor", "currency", "version"),
    CheckConstraint("price_nano_per_hour >= 0", name="price_not_below_zero"),
)

parked_prices = Table(
    "parked_prices",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("currency", String(3), nullable=False),
    Column("version", Integer, nullable=False),
    Column("price_nano_per_gib_hour", BigInteger, nullable=False),
    Column("valid_from_ns", BigInteger, nullable=False),
    Column("changed_at_ns", BigInteger, nullable=False),
    Column("changed_by", String(LOGIN_CHARS_MAX), nullable=False),
    UniqueConstraint("currency", "version"),
    CheckConstraint("price_nano_per_gib_hour >= 0", name="price_not_below_zero"),
)
"""What a GiB costs in an hour in which it is parked."""

surcharges = Table(
    "surcharges",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("model", _NAME, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("version", Integer, nullable=False),
    Column("surcharge_nano_per_hour", BigInteger, nullable=False),
    Column("valid_from_ns", BigInteger, nullable=False),
    Column("changed_at_ns", BigInteger, nullable=False),
    Column("changed_by", String(LOGIN_CHARS_MAX), nullable=False),
    UniqueConstraint("model", "currency", "version"),
    CheckConstraint("surcharge_nano_per_hour >= 0", name="surcharge_not_below_zero"),
)
"""What an hour of one whole device of a model costs beside the flavor's price."""

rated = Table(
    "rated",
    metadata,
    Column("flavor", String(2 * NAME_CHARS_MAX), primary_key=True),
    Column("currency", String(3), primary_key=True),
    Column("until_ns", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""The end of the latest usage that was rated with a price, of a flavor, a model or parked bytes: it may not change before.
A projection of the segments."""

plans = Table(
    "plans",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("tenant", _NAME, nullable=False),
    Column("version", Integer, nullable=False),
    Column("valid_from", String(7), nullable=False),
    Column("currency", String(3), nullable=False),
    Column("terms", Text, nullable=False),
    Column("changed_at_ns", BigInteger, nullable=False),
    Column("changed_by", String(LOGIN_CHARS_MAX), nullable=False),
    UniqueConstraint("tenant", "version"),
)
"""What tenants agreed on beside the list price, by month; ``terms`` is JSON (:mod:`forebay_billing.reads.plans`)."""

accounts = Table(
    "accounts",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("name", String(NAME_CHARS_MAX + 32), nullable=False, unique=True),
)

transactions = Table(
    "transactions",
    metadata,
    Column(
        "id",
        BigInteger,
        ForeignKey("seals.transaction_id", deferrable=True, initially="DEFERRED", use_alter=True),
        primary_key=True,
        autoincrement=False,
    ),
    Column("kind", String(16), nullable=False),
    Column("posted_at_ns", BigInteger, nullable=False),
    Column("reverses", BigInteger, ForeignKey("transactions.id"), nullable=True),
    Index(None, "reverses"),
    CheckConstraint(f"kind IN ({', '.join(repr(kind) for kind in KINDS)})", name="kind"),
    CheckConstraint("(kind = 'reversal') = (reverses IS NOT NULL)", name="reversal_reverses"),
)

postings = Table(
    "postings",
    metadata,
    Column("transaction_id", BigInteger, ForeignKey("transactions.id"), primary_key=True, autoincrement=False),
    Column("account_id", Integer, ForeignKey("accounts.id"), primary_key=True, autoincrement=False),
    Column("period", String(7), primary_key=True),
    Column("currency", String(3), primary_key=True),
    Column("milli", BigInteger, nullable=False),
    Column("grains", BigInteger, nullable=False),
    Index(None, "account_id", "period"),
    CheckConstraint(_BELOW_A_MILLI, name="grains_below_a_milli"),
    sqlite_with_rowid=False,
)

seals = Table(
    "seals",
    metadata,
    Column("transaction_id", BigInteger, ForeignKey("transactions.id"), primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
)

balances = Table(
    "balances",
    metadata,
    Column("account_id", Integer, ForeignKey("accounts.id"), primary_key=True, autoincrement=False),
    Column("period", String(7), primary_key=True),
    Column("currency", String(3), primary_key=True),
    Column("milli", BigInteger, nullable=False),
    Column("grains", BigInteger, nullable=False),
    CheckConstraint("milli > -9000000000000000000 AND milli < 9000000000000000000", name="milli_within_64_bits"),
    sqlite_with_rowid=False,
)
"""What the sealed postings sum to: a projection that a trigger keeps, and that can be made anew from them."""

revenue_hours = Table(
    "revenue_hours",
    metadata,
    Column("hour_ns", BigInteger, primary_key=True, autoincrement=False),
    Column("currency", String(3), primary_key=True),
    Column("milli", BigInteger, nullable=False),
    Column("grains", BigInteger, nullable=False),
    Column("through_id", BigInteger, nullable=False),
    CheckConstraint(_BELOW_A_MILLI, name="grains_below_a_milli"),
    sqlite_with_rowid=False,
)
"""What usage was posted in an hour of the last 31 days, less what was taken back: a projection of the postings, as far as the
transaction ``through_id``."""

periods = Table(
    "periods",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("tenant", _NAME, nullable=False),
    Column("period", String(7), nullable=False),
    Column("finalised_at_ns", BigInteger, nullable=False),
    UniqueConstraint("tenant", "period"),
)
"""Months that are closed for a tenant: what is posted later goes to the first open one after."""

usage = Table(
    "usage",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("source", _NAME, nullable=False),
    Column("record_id", _NAME, nullable=False),
    Column("tenant", _NAME, nullable=False),
    Column("user_name", _NAME, nullable=False),
    Column("session", _NAME, nullable=False),
    Column("lease", _NAME, nullable=False),
    Column("span_id", _NAME, nullable=False),
    Column("span_kind", String(16), nullable=False),
    Column("span_label", String(LABEL_CHARS_MAX), nullable=False),
    Column("span_cell", BigInteger, nullable=True),
    Column("flavor", _NAME, nullable=False),
    Column("device_model", _NAME, nullable=False),
    Column("devices", Integer, nullable=False),
    Column("share_milli", Integer, nullable=False),
    Column("started_at_ns", BigInteger, nullable=False),
    Column("duration_ns", BigInteger, nullable=False),
    Column("close_reason", _NAME, nullable=False),
    Column("received_at_ns", BigInteger, nullable=False),
    Column("parked_bytes", BigInteger, nullable=True),
    Column("span_cell_id", _NAME, nullable=True),
    Column("span_first_line", String(LINE_CHARS_MAX), nullable=True),
    Column("energy_mj", BigInteger, nullable=True),
    UniqueConstraint("source", "record_id"),
    Index(None, "started_at_ns"),
    Index(None, "tenant", "started_at_ns"),
    Index(None, "tenant", "user_name", "started_at_ns"),
    Index("ix_usage_parked_of_tenant", "tenant", "started_at_ns", sqlite_where=_PARKED, postgresql_where=_PARKED),
    Index("ix_usage_parked_of_user", "tenant", "user_name", "started_at_ns", sqlite_where=_PARKED, postgresql_where=_PARKED),
    CheckConstraint("duration_ns >= 0", name="duration_not_below_zero"),
    CheckConstraint("devices >= 1 AND share_milli >= 1 AND share_milli <= 1000", name="devices_and_share"),
    sqlite_with_rowid=False,
)

segments = Table(
    "segments",
    metadata,
    Column("usage_id", BigInteger, ForeignKey("usage.id"), primary_key=True, autoincrement=False),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("transaction_id", BigInteger, ForeignKey("transactions.id"), nullable=False),
    Column("account_id", Integer, ForeignKey("accounts.id"), nullable=False),
    Column("period", String(7), nullable=False),
    Column("price_id", BigInteger, ForeignKey("prices.id"), nullable=False),
    Column("surcharge_nano_per_hour", BigInteger, nullable=False),
    Column("started_at_ns", BigInteger, nullable=False),
    Column("duration_ns", BigInteger, nullable=False),
    Column("milli", BigInteger, nullable=False),
    Column("grains", BigInteger, nullable=False),
    Column("late", Boolean, nullable=False),
    Column("reversal", Boolean, nullable=False),
    Index(None, "account_id", "period"),
    CheckConstraint(_BELOW_A_MILLI, name="grains_below_a_milli"),
    sqlite_with_rowid=False,
)
"""``account_id`` is the tenant's receivable account. A reversal takes a segment back: durations and amounts are negative then."""

parked_segments = Table(
    "parked_segments",
    metadata,
    Column("usage_id", BigInteger, ForeignKey("usage.id"), primary_key=True, autoincrement=False),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("transaction_id", BigInteger, ForeignKey("transactions.id"), nullable=False),
    Column("account_id", Integer, ForeignKey("accounts.id"), nullable=False),
    Column("period", String(7), nullable=False),
    Column("currency", String(3), nullable=False),
    Column("parked_price_id", BigInteger, ForeignKey("parked_prices.id"), nullable=True),
    Column("started_at_ns", BigInteger, nullable=False),
    Column("duration_ns", BigInteger, nullable=False),
    Column("milli", BigInteger, nullable=False),
    Column("grains", BigInteger, nullable=False),
    Column("late", Boolean, nullable=False),
    Column("reversal", Boolean, nullable=False),
    Index(None, "account_id", "period"),
    CheckConstraint(_BELOW_A_MILLI, name="grains_below_a_milli"),
    sqlite_with_rowid=False,
)
"""The same for usage with ``parked_bytes``; without a price it cost nothing."""

reversals = Table(
    "reversals",
    metadata,
    Column("usage_id", BigInteger, ForeignKey("usage.id"), primary_key=True, autoincrement=False),
    Column("transaction_id", BigInteger, ForeignKey("transactions.id"), nullable=False, unique=True),
    sqlite_with_rowid=False,
)
"""Which usage was taken back, and by which transaction: once at most."""

holds = Table(
    "holds",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("source", _NAME, nullable=False),
    Column("record_id", _NAME, nullable=False),
    Column("account_id", Integer, ForeignKey("accounts.id"), nullable=False),
    Column("tenant", _NAME, nullable=False),
    Column("user_name", _NAME, nullable=False),
    Column("span_label", String(LABEL_CHARS_MAX), nullable=False),
    Column("currency", String(3), nullable=False),
    Column("period", String(7), nullable=False),
    Column("covered_ns", BigInteger, nullable=False),
    Column("milli", BigInteger, nullable=False),
    Column("grains", BigInteger, nullable=False),
    Column("opened_at_ns", BigInteger, nullable=False),
    Column("expires_at_ns", BigInteger, nullable=False),
    Column("closed_by", BigInteger, ForeignKey("transactions.id"), nullable=True),
    Index("uq_holds_open", "source", "record_id", unique=True, sqlite_where=_OPEN, postgresql_where=_OPEN),
    Index("ix_holds_open_expires_at_ns", "expires_at_ns", sqlite_where=_OPEN, postgresql_where=_OPEN),
    Index(None, "closed_by"),
    Index(None, "account_id"),
    CheckConstraint(_BELOW_A_MILLI, name="grains_below_a_milli"),
)
"""What is kept back for open leases, one open hold a record at most. ``account_id`` is the tenant's ``held`` account, ``closed_by``
the transaction that released it: what has ended never changes."""

idempotency = Table(
    "idempotency",
    metadata,
    Column("caller", String(LOGIN_CHARS_MAX), primary_key=True),
    Column("key", String(KEY_CHARS_MAX), primary_key=True),
    Column("digest", LargeBinary(32), nullable=False),
    Column("answer", Text, nullable=False),
    Column("at_ns", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""What was answered to a change that carried an idempotency key, written with the change itself."""

audit = Table(
    "audit",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("at_ns", BigInteger, nullable=False),
    Column("who", String(LOGIN_CHARS_MAX), nullable=False),
    Column("action", String(32), nullable=False),
    Column("subject", String(2 * NAME_CHARS_MAX + 8), nullable=False),
    Column("before", Text, nullable=True),
    Column("after", Text, nullable=False),
)
