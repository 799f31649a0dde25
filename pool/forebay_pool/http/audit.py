"""``GET api/audit``: what operators did."""

from __future__ import annotations

import asyncio

from forebay_service.audit import AuditQuery, page_of
from forebay_service.identity import OPERATE

from forebay_pool.http.handler import Api


class Audit(Api):
    """``GET api/audit``: the newest first."""

    async def get(self) -> None:
        await self.bearer(OPERATE)
        asked = self.query(AuditQuery)
        found = await asyncio.to_thread(self.context.store.audit_entries, asked.wanted, asked.limit + 1, asked.cursor)
        self.write_json(page_of(found, asked.limit))
