"""``GET api/audit``: what operators did."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from forebay_service.identity import OPERATE
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from forebay_pool.http.handler import Api
from forebay_pool.store.audit import PAGE_ENTRIES, PAGE_ENTRIES_MAX, SUBJECT_CHARACTERS_MAX, Entry, Wanted

TimeNs = Annotated[int, Field(ge=0, lt=2**63)]
Text = Annotated[str, Field(min_length=1, max_length=SUBJECT_CHARACTERS_MAX, pattern=r"^[^\x00]*$")]


class AuditQuery(BaseModel):
    """What may stand behind the question mark; ``cursor`` is ``next`` of the page before."""

    model_config = ConfigDict(extra="forbid")

    who: Text | None = None
    action: Text | None = None
    subject: Text | None = None
    since_ns: TimeNs | None = None
    until_ns: TimeNs | None = None
    limit: Annotated[int, Field(ge=1, le=PAGE_ENTRIES_MAX)] = PAGE_ENTRIES
    cursor: TimeNs | None = None


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


class Audit(Api):
    """``GET api/audit``: the newest first."""

    async def get(self) -> None:
        await self.bearer(OPERATE)
        asked = self.query(AuditQuery)
        wanted = Wanted(asked.who, asked.action, asked.subject, asked.since_ns, asked.until_ns)
        found = await asyncio.to_thread(self.context.store.deeds, wanted, asked.limit + 1, asked.cursor)
        shown = found[: asked.limit]
        page: AuditPage = {
            "entries": [_row(entry) for entry in shown],
            "next": str(shown[-1].id) if len(found) > len(shown) else None,
        }
        self.write_json(page)


def _row(entry: Entry) -> EntryRow:
    deed = entry.deed
    return {
        "id": entry.id,
        "at_ns": deed.at_unix_ns,
        "who": deed.who,
        "action": deed.action,
        "subject": deed.subject,
        "before": None if deed.before is None else dict(deed.before),
        "after": dict(deed.after),
    }
