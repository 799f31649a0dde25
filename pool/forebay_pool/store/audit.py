"""Who changed what: what operators do is written down in the transaction of the change itself, and read again newest first."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, insert, or_, select

from forebay_pool.store.tables import AUDIT

PAGE_ENTRIES = 100
PAGE_ENTRIES_MAX = 1_000
SUBJECT_CHARACTERS_MAX = 600


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """What somebody does. ``before`` is None where there was nothing, ``after`` what there is then, or what was asked for."""

    who: str
    action: str
    """A kind of thing and a verb, such as ``device.set``."""
    subject: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any]
    at_unix_ns: int = field(default_factory=time.time_ns)


@dataclass(frozen=True, slots=True)
class Entry:
    """A deed that was written down, under its number."""

    id: int
    deed: AuditEntry


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which entries are asked for; None is all."""

    who: str | None = None
    action: str | None = None
    subject: str | None = None
    """It, and what is of it: ``acme`` has ``acme/#7``, too."""
    since_ns: int | None = None
    until_ns: int | None = None


def append(connection: Connection, deed: AuditEntry) -> None:
    """Writes the deed down."""
    row = {
        "at_unix_ns": deed.at_unix_ns,
        "who": deed.who,
        "action": deed.action,
        "subject": deed.subject[:SUBJECT_CHARACTERS_MAX],
        "before": None if deed.before is None else json.dumps(deed.before),
        "after": json.dumps(deed.after),
    }
    connection.execute(insert(AUDIT).values(row))


def entries(connection: Connection, wanted: Wanted, limit: int, before_id: int | None) -> list[Entry]:
    """At most ``limit`` entries, newest first, that are older than ``before_id``."""
    table = AUDIT.c
    query = select(AUDIT).order_by(table.id.desc()).limit(limit)
    for column, value in ((table.who, wanted.who), (table.action, wanted.action)):
        if value is not None:
            query = query.where(column == value)
    if wanted.subject is not None:
        query = query.where(or_(table.subject == wanted.subject, table.subject.startswith(wanted.subject + "/", autoescape=True)))
    if wanted.since_ns is not None:
        query = query.where(table.at_unix_ns >= wanted.since_ns)
    if wanted.until_ns is not None:
        query = query.where(table.at_unix_ns < wanted.until_ns)
    if before_id is not None:
        query = query.where(table.id < before_id)
    return [_entry(row) for row in connection.execute(query)]


def _entry(row: Any) -> Entry:
    before = None if row.before is None else json.loads(row.before)
    return Entry(row.id, AuditEntry(row.who, row.action, row.subject, before, json.loads(row.after), row.at_unix_ns))
