"""What is kept beside JupyterHub's own tables, in its database: owners' decisions, invitations, and the audit of both.

A change of them is committed with the change of JupyterHub's groups and roles, which it explains.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from forebay_service.errors import SettingsError
from sqlalchemy import BigInteger, Column, Connection, Integer, MetaData, String, Table, Text, create_engine, insert
from sqlalchemy.exc import SQLAlchemyError

METADATA = MetaData()
NAME = String(255)

DECISIONS = Table(
    "forebay_decisions",
    METADATA,
    Column("tenant", NAME, primary_key=True),
    Column("login", NAME, primary_key=True),
    Column("role", String(8), nullable=True, comment="None: the login belongs to the tenant no more"),
    Column("at_ns", BigInteger, nullable=False),
    Column("who", NAME, nullable=False),
)

INVITATIONS = Table(
    "forebay_invitations",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("tenant", NAME, nullable=False, index=True),
    Column("role", String(8), nullable=False),
    Column("address", String(512), nullable=True, comment="Whom the link was mailed to"),
    Column("digest", String(64), nullable=False, unique=True, comment="SHA-256 of the token, which is kept nowhere"),
    Column("made_at_ns", BigInteger, nullable=False),
    Column("made_by", NAME, nullable=False),
    Column("expires_at_ns", BigInteger, nullable=False),
    Column("revoked_at_ns", BigInteger, nullable=True),
    Column("taken_at_ns", BigInteger, nullable=True),
    Column("taken_by", NAME, nullable=True),
)

AUDIT = Table(
    "forebay_audit",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("at_ns", BigInteger, nullable=False),
    Column("who", NAME, nullable=False),
    Column("action", String(64), nullable=False),
    Column("subject", String(600), nullable=False),
    Column("before", Text, nullable=True),
    Column("after", Text, nullable=False),
)


def opened(database_url: str) -> Connection:
    """A connection to the hub's database before the hub has one of its own; tables that are missing are made. Raises SettingsError."""
    try:
        engine = create_engine(database_url)
        METADATA.create_all(engine)
        return engine.connect()
    except SQLAlchemyError as error:
        raise SettingsError(f"The hub's database cannot be used ({type(error).__name__}: {error}); is its address right?") from None


def append_audit(
    connection: Connection, at_ns: int, who: str, action: str, subject: str, before: Mapping[str, Any] | None, after: Mapping[str, Any]
) -> None:
    """An entry, in the transaction of the change itself."""
    was = None if before is None else json.dumps(before)
    values = {"at_ns": at_ns, "who": who, "action": action, "subject": subject, "before": was, "after": json.dumps(after)}
    connection.execute(insert(AUDIT).values(values))
