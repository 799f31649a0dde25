"""Who changed what: which rows of a service's audit are asked for, and the page that is answered.

Each service has a table of its own, with the columns ``id``, ``who``, ``action``, ``subject``, ``before`` and ``after`` (JSON), and one of
Unix time in nanoseconds. Rows are written in the transaction of the change itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import ColumnElement, Connection, Table, or_, select
from typing_extensions import TypedDict

PAGE_ENTRIES = 100
PAGE_ENTRIES_MAX = 1_000
SUBJECT_CHARACTERS_MAX = 600

_TimeNs = Annotated[int, Field(ge=0, lt=2**63)]
_Text = Annotated[str, Field(min_length=1, max_length=SUBJECT_CHARACTERS_MAX, pattern=r"^[^\x00]*$")]


@dataclass(frozen=True, slots=True)
class Entry:
    """A change, or one that was refused, under its number. ``before`` is None where there was nothing."""

    id: int
    at_ns: int
    who: str
    action: str
    subject: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which entries are asked for; None is all."""

    who: str | None = None
    action: str | None = None
    subject: str | None = None
    """It, and what is of it: ``acme`` has ``acme/#7``, too."""
    since_ns: int | None = None
    until_ns: int | None = None


class AuditQuery(BaseModel):
    """What may stand behind the question mark; ``cursor`` is ``next`` of the page before."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    who: _Text | None = None
    action: _Text | None = None
    subject: _Text | None = None
    since_ns: _TimeNs | None = None
    until_ns: _TimeNs | None = None
    limit: Annotated[int, Field(ge=1, le=PAGE_ENTRIES_MAX)] = PAGE_ENTRIES
    cursor: _TimeNs | None = None

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.who, self.action, self.subject, self.since_ns, self.until_ns)


class EntryRow(TypedDict):
    id: int
    at_ns: int
    who: str
    action: str
    subject: str
    before: dict[str, Any] | None
    after: dict[str, Any]


class AuditPage(TypedDict):
    entries: list[EntryRow]
    next: str | None


def entries(
    connection: Connection, table: Table, at_ns: ColumnElement[int], wanted: Wanted, limit: int, before_id: int | None
) -> list[Entry]:
    """At most ``limit`` entries, newest first, that are older than ``before_id``. ``at_ns`` is the table's column of time."""
    of = table.c
    query = select(of.id, at_ns.label("at_ns"), of.who, of.action, of.subject, of.before, of.after).order_by(of.id.desc()).limit(limit)
    for column, value in ((of.who, wanted.who), (of.action, wanted.action)):
        if value is not None:
            query = query.where(column == value)
    if wanted.subject is not None:
        query = query.where(or_(of.subject == wanted.subject, of.subject.startswith(wanted.subject + "/", autoescape=True)))
    if wanted.since_ns is not None:
        query = query.where(at_ns >= wanted.since_ns)
    if wanted.until_ns is not None:
        query = query.where(at_ns < wanted.until_ns)
    if before_id is not None:
        query = query.where(of.id < before_id)
    return [_entry(row) for row in connection.execute(query)]


def page_of(found: Sequence[Entry], limit: int) -> AuditPage:
    """The page of at most ``limit`` of what was found, one more than which says that there is a next."""
    return {"entries": [_row(entry) for entry in found[:limit]], "next": str(found[limit - 1].id) if len(found) > limit else None}


def _row(entry: Entry) -> EntryRow:
    return {
        "id": entry.id,
        "at_ns": entry.at_ns,
        "who": entry.who,
        "action": entry.action,
        "subject": entry.subject,
        "before": entry.before,
        "after": entry.after,
    }


def _entry(row: Any) -> Entry:
    before = None if row.before is None else json.loads(row.before)
    return Entry(row.id, row.at_ns, row.who, row.action, row.subject, before, json.loads(row.after))
