"""What was used, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from forebay.client.calls import Calls
from forebay.client.models.billing import ChargeRow, JobCostRow, OutlookRow, StatementRow, SummaryRow, TenantBalance, UsagePage
from forebay.client.times import Moment, unix_ns

PAGE_RECORDS = 1000
"""The most that billing gives at once."""

Key = Literal["tenant", "user", "flavor", "kind", "notebook", "cell", "day"]


class UsageCalls(Calls):
    """Calls to billing about usage. Members see their own, a tenant's owner and who pays for it the tenant's; others name a ``tenant``."""

    def usage(
        self,
        since: Moment | None = None,
        until: Moment | None = None,
        *,
        tenant: str | None = None,
        user: str | None = None,
        notebook: str | None = None,
        cell: int | None = None,
        cell_id: str | None = None,
        page_records: int = PAGE_RECORDS,
    ) -> Iterator[ChargeRow]:
        """Usage records, newest first, each with what it cost; they are asked for as they are read, ``page_records`` at a time."""
        asked = {
            "tenant": tenant,
            "user": user,
            "notebook": notebook,
            "cell": cell,
            "cell_id": cell_id,
            "since_ns": unix_ns(since),
            "until_ns": unix_ns(until),
            "limit": page_records,
        }
        cursor: str | None = None
        while True:
            page = self._read(UsagePage, self._books, "api/usage", **asked, cursor=cursor)
            yield from page.records
            cursor = page.next
            if cursor is None:
                return

    def summary(
        self,
        by: Sequence[Key] = ("tenant", "user", "flavor"),
        since: Moment | None = None,
        until: Moment | None = None,
        *,
        tenant: str | None = None,
        user: str | None = None,
        notebook: str | None = None,
        zone: str | None = None,
    ) -> list[SummaryRow]:
        """Usage summed by some keys. Days are those of the zone, as ``Asia/Seoul``, else UTC's, and need ``since`` and ``until``."""
        times = {"since_ns": unix_ns(since), "until_ns": unix_ns(until)}
        asked = {"by": ",".join(by), "tenant": tenant, "user": user, "notebook": notebook, "zone": zone, **times}
        return self._read(list[SummaryRow], self._books, "api/summary", **asked)

    def job_costs(
        self, jobs: Sequence[int], since: Moment | None = None, *, tenant: str | None = None, user: str | None = None
    ) -> list[JobCostRow]:  # fmt: skip
        """What each run of some jobs has cost so far at list prices, leases that are open included. It is found sooner with ``since``, a
        time before their first run."""
        asked = {"job": tuple(jobs), "since_ns": unix_ns(since), "tenant": tenant, "user": user}
        return self._read(list[JobCostRow], self._books, "api/job-costs", **asked)

    def forecast(self, *, tenant: str | None = None, user: str | None = None) -> list[OutlookRow]:
        """This month (UTC) so far and at its end, if it goes on as in the last seven days: a row for each currency."""
        return self._read(list[OutlookRow], self._books, "api/forecast", tenant=tenant, user=user)

    def balance(self, *, tenant: str | None = None) -> TenantBalance:
        """What a tenant owes, what is held for open leases, and what credit is left."""
        return self._read(TenantBalance, self._books, "api/balance", tenant=tenant)

    def statement(self, month: str, *, tenant: str | None = None, user: str | None = None) -> StatementRow:
        """A month's statement, ``month`` as ``2026-11`` (UTC); each line rounded once."""
        return self._read(StatementRow, self._books, "api/statement", month=month, tenant=tenant, user=user)

    def statement_file(
        self, month: str, format: Literal["html", "csv"], *, tenant: str | None = None, user: str | None = None
    ) -> bytes:
        """The same as a page to print, or as a table."""
        return self._file(self._books, "api/statement", month=month, format=format, tenant=tenant, user=user)
