"""``GET api/receipts`` and ``api/receipts/key``: signed receipts of what a user is billed for."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Annotated

from forebay_service.identity import COMPUTE
from forebay_wire.message_parts import ClosedReceipt
from pydantic import BaseModel, ConfigDict, Field

from forebay_pool.http.handler import Api
from forebay_pool.store.receipts import ClosedLease, closed_leases
from forebay_pool.views.receipts import ReceiptKeyRow, ReceiptPage, Receipts, row_of

PAGE_LEASES = 500
NANO = 10**9


class ReceiptsQuery(BaseModel):
    """Of which month (UTC), and which leases are known already."""

    model_config = ConfigDict(extra="forbid")

    month: Annotated[str, Field(pattern=r"^(19[7-9]|20[0-9]|21[0-9])[0-9]-(0[1-9]|1[0-2])$")]
    after: Annotated[str, Field(max_length=255)] = ""

    @property
    def bounds_ns(self) -> tuple[int, int]:
        """The first nanosecond of the month, and of the next one."""
        year, month = map(int, self.month.split("-"))
        starts = datetime(year, month, 1, tzinfo=UTC), datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
        since_ns, until_ns = (int(start.timestamp()) * NANO for start in starts)
        return since_ns, until_ns


class UsersReceipts(Api):
    """``GET api/receipts``: of the bearer's own leases that are over, and of their prices in its tenant's currency."""

    async def get(self) -> None:
        identity = await self.bearer(COMPUTE)
        asked, tenant, receipts = self.query(ReceiptsQuery), identity.tenant or "", self.shell.receipts
        wanted = (tenant, identity.name, *asked.bounds_ns, asked.after, PAGE_LEASES)
        found, more = await asyncio.to_thread(closed_leases, self.context.store, *wanted)
        tariff = self.shell.machine.fleet.tariff
        currency = tariff.currencies.get(tenant, tariff.currency)
        names = {one.flavor for one in found}, {one.model for one in found}
        signed = [] if currency is None else receipts.prices(currency, *names)
        signed += [receipts.sign(_receipt(one, receipts)) for one in found]
        page: ReceiptPage = {"key": receipts.key, "receipts": [row_of(one) for one in signed], "next": more}
        self.write_json(page)


class ReceiptKey(Api):
    """``GET api/receipts/key``: for everybody, as it signs for everybody."""

    def get(self) -> None:
        row: ReceiptKeyRow = {"key": self.shell.receipts.key}
        self.write_json(row)


def _receipt(closed: ClosedLease, receipts: Receipts) -> ClosedReceipt:
    return ClosedReceipt(
        pool=receipts.pool,
        tenant=closed.tenant,
        user=closed.user,
        session=closed.session,
        lease=closed.lease,
        number=int(closed.lease.rpartition(".")[2]),
        flavor=closed.flavor,
        model=closed.model,
        devices=closed.devices,
        share_milli=closed.share_milli,
        started_at_ns=closed.started_at_ns,
        duration_ns=closed.duration_ns,
        reason=closed.reason,
    )
