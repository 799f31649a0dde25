"""Who changed what, and when: reads the table ``audit``, newest first."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, or_, select

from forebay_billing.tables import schema


@dataclass(frozen=True)
class Entry:
    """A change, or one that was refused (``action`` ends with ``.refused``). ``before`` is None where there was nothing."""

    id: int
    at_ns: int
    who: str
    action: str
    subject: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Wanted:
    """Which entries are asked for; None is all."""

    who: str | None = None
    action: str | None = None
    subject: str | None = None
    """It, and what is of it: ``acme`` has ``acme/#7``, too."""
    since_ns: int | None = None
    until_ns: int | None = None


def entries(connection: Connection, wanted: Wanted, limit: int, before_id: int | None) -> list[Entry]:
    """At most ``limit`` entries, newest first, that are older than ``before_id``."""
    audit = schema.audit.c
    query = select(schema.audit).order_by(audit.id.desc()).limit(limit)
    for column, value in ((audit.who, wanted.who), (audit.action, wanted.action)):
        if value is not None:
            query = query.where(column == value)
    if wanted.subject is not None:
        query = query.where(or_(audit.subject == wanted.subject, audit.subject.startswith(wanted.subject + "/", autoescape=True)))
    if wanted.since_ns is not None:
        query = query.where(audit.at_ns >= wanted.since_ns)
    if wanted.until_ns is not None:
        query = query.where(audit.at_ns < wanted.until_ns)
    if before_id is not None:
        query = query.where(audit.id < before_id)
    return [_entry(row) for row in connection.execute(query)]


def _entry(row: Row[Any]) -> Entry:
    before = None if row.before is None else json.loads(row.before)
    return Entry(row.id, row.at_ns, row.who, row.action, row.subject, before, json.loads(row.after))
