"""The tables of invoices and credits: append-only like the books, so that how an invoice stands is a sum of what happened to it.

Each row that moved money points to its transaction in the ledger. Triggers refuse a number that leaves a gap, a credit note beyond its
invoice, and credit that was used beyond its grant.
"""

from __future__ import annotations

from forebay_wire.texts import NAME_CHARS_MAX
from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, ForeignKey, Index, Integer, String, Table, Text, UniqueConstraint

from forebay_billing.tables.schema import LOGIN_CHARS_MAX, metadata

LEGAL_NAME_CHARS_MAX = 150
"""The longest name of a customer at Stripe."""
TEXT_CHARS_MAX = 500
NUMBER_CHARS_MAX = 64
_NAME = String(NAME_CHARS_MAX)


def _id() -> Column[int]:
    return Column("id", BigInteger, primary_key=True, autoincrement=False)


def _transaction() -> Column[int]:
    return Column("transaction_id", BigInteger, ForeignKey("transactions.id"), nullable=False)


profiles = Table(
    "profiles",
    metadata,
    _id(),
    Column("tenant", _NAME, nullable=False),
    Column("version", Integer, nullable=False),
    Column("legal_name", String(LEGAL_NAME_CHARS_MAX), nullable=False),
    Column("address", String(TEXT_CHARS_MAX), nullable=False),
    Column("tax_id", _NAME, nullable=False),
    Column("tax_label", _NAME, nullable=False),
    Column("tax_bps", Integer, nullable=False),
    Column("currency", String(3), nullable=True),
    Column("email", String(TEXT_CHARS_MAX), nullable=True),
    Column("changed_at_ns", BigInteger, nullable=False),
    Column("changed_by", String(LOGIN_CHARS_MAX), nullable=False),
    UniqueConstraint("tenant", "version"),
    CheckConstraint("tax_bps >= 0 AND tax_bps <= 10000", name="tax_bps"),
)

invoices = Table(
    "invoices",
    metadata,
    _id(),
    Column("series", _NAME, nullable=False),
    Column("number", Integer, nullable=False),
    Column("name", String(NUMBER_CHARS_MAX), nullable=False, unique=True),
    Column("tenant", _NAME, nullable=False),
    Column("period", String(7), nullable=False),
    Column("currency", String(3), nullable=False),
    Column("issued_at_ns", BigInteger, nullable=False),
    Column("due_at_ns", BigInteger, nullable=False),
    Column("net_minor", BigInteger, nullable=False),
    Column("credit_minor", BigInteger, nullable=False),
    Column("tax_minor", BigInteger, nullable=False),
    Column("total_minor", BigInteger, nullable=False),
    Column("profile", Text, nullable=False),
    Column("issuer", Text, nullable=False),
    _transaction(),
    UniqueConstraint("series", "number"),
    UniqueConstraint("tenant", "period", "currency"),
    CheckConstraint("total_minor >= 0 AND net_minor + credit_minor + tax_minor = total_minor", name="total"),
)
"""``profile`` and ``issuer`` are what they were when it was finalised, as JSON."""

credit_grants = Table(
    "credit_grants",
    metadata,
    _id(),
    Column("tenant", _NAME, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("name", _NAME, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("amount_minor", BigInteger, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("effective_at_ns", BigInteger, nullable=False),
    Column("expires_at_ns", BigInteger, nullable=True),
    Column("granted_at_ns", BigInteger, nullable=False),
    Column("granted_by", String(LOGIN_CHARS_MAX), nullable=False),
    _transaction(),
    Index(None, "tenant", "currency"),
    CheckConstraint("kind IN ('prepaid', 'promotional')", name="kind"),
    CheckConstraint("amount_minor > 0", name="amount_above_zero"),
)

credit_moves = Table(
    "credit_moves",
    metadata,
    _id(),
    Column("grant_id", BigInteger, ForeignKey("credit_grants.id"), nullable=False),
    Column("kind", String(8), nullable=False),
    Column("amount_minor", BigInteger, nullable=False),
    Column("invoice_id", BigInteger, ForeignKey("invoices.id"), nullable=True),
    Column("reason", String(TEXT_CHARS_MAX), nullable=False),
    Column("moved_at_ns", BigInteger, nullable=False),
    Column("moved_by", String(LOGIN_CHARS_MAX), nullable=False),
    _transaction(),
    Index(None, "grant_id"),
    CheckConstraint("kind IN ('use', 'refund', 'expire')", name="kind"),
    CheckConstraint("amount_minor > 0", name="amount_above_zero"),
    CheckConstraint("(kind = 'use') = (invoice_id IS NOT NULL)", name="invoice_of_use"),
)
"""What became of a grant."""

invoice_lines = Table(
    "invoice_lines",
    metadata,
    Column("invoice_id", BigInteger, ForeignKey("invoices.id"), primary_key=True, autoincrement=False),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("key", String(32), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("label", String(TEXT_CHARS_MAX), nullable=False),
    Column("milli", BigInteger, nullable=False),
    Column("grains", BigInteger, nullable=False),
    Column("amount_minor", BigInteger, nullable=False),
    Column("started_at_ns", BigInteger, nullable=False),
    Column("ended_at_ns", BigInteger, nullable=False),
    Column("grant_id", BigInteger, ForeignKey("credit_grants.id"), nullable=True),
    Column("user_name", _NAME, nullable=True),
    Column("price_id", BigInteger, ForeignKey("prices.id"), nullable=True),
    Column("surcharge_nano_per_hour", BigInteger, nullable=True),
    Column("late", Boolean, nullable=True),
    Column("leases", Integer, nullable=True),
    Column("seconds", BigInteger, nullable=True),
    Column("nanoseconds", BigInteger, nullable=True),
    UniqueConstraint("invoice_id", "key"),
    sqlite_with_rowid=False,
)
"""``seconds`` and ``nanoseconds`` are the duration: many devices pass 64 bits of nanoseconds in a month."""

credit_notes = Table(
    "credit_notes",
    metadata,
    _id(),
    Column("series", _NAME, nullable=False),
    Column("number", Integer, nullable=False),
    Column("name", String(NUMBER_CHARS_MAX), nullable=False, unique=True),
    Column("invoice_id", BigInteger, ForeignKey("invoices.id"), nullable=False),
    Column("amount_minor", BigInteger, nullable=False),
    Column("tax_minor", BigInteger, nullable=False),
    Column("reason", String(TEXT_CHARS_MAX), nullable=False),
    Column("issued_at_ns", BigInteger, nullable=False),
    Column("issued_by", String(LOGIN_CHARS_MAX), nullable=False),
    _transaction(),
    UniqueConstraint("series", "number"),
    Index(None, "invoice_id"),
    CheckConstraint("amount_minor > 0", name="amount_above_zero"),
)
"""``tax_minor`` of the amount is tax."""

settlements = Table(
    "settlements",
    metadata,
    _id(),
    Column("invoice_id", BigInteger, ForeignKey("invoices.id"), nullable=False),
    Column("kind", String(8), nullable=False),
    Column("amount_minor", BigInteger, nullable=False),
    Column("method", _NAME, nullable=False),
    Column("reference", String(TEXT_CHARS_MAX), nullable=False),
    Column("settled_at_ns", BigInteger, nullable=False),
    Column("settled_by", String(LOGIN_CHARS_MAX), nullable=False),
    _transaction(),
    UniqueConstraint("invoice_id", "kind", "reference"),
    CheckConstraint("kind IN ('payment', 'refund', 'void')", name="kind"),
    CheckConstraint("amount_minor > 0", name="amount_above_zero"),
)
"""Money that came in for an invoice or went back, and what was given up as void."""
