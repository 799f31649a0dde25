"""What HTTP callers ask for after the question mark, checked argument by argument; unknown ones are refused."""

from __future__ import annotations

from datetime import tzinfo
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from forebay_wire.texts import Name
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from forebay_billing.errors import InvalidRequest
from forebay_billing.http.bodies import NAMES_MAX, NO_NUL, PAGE_RECORDS, PAGE_RECORDS_MAX, ZONE_PATTERN, AskedLabel, TimeNs
from forebay_billing.rules.prices import TIME_NS_MAX


class _Query(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PricesQuery(_Query):
    """``GET api/prices``."""

    flavor: Name | None = None
    history: Literal["0", "1"] = "0"


class SurchargesQuery(_Query):
    """``GET api/surcharges``."""

    history: Literal["0", "1"] = "0"


class PlansQuery(_Query):
    """``GET api/plans``."""

    tenant: Name | None = None
    month: str | None = None
    history: Literal["0", "1"] = "0"


class UsageQuery(_Query):
    """``GET api/usage``."""

    tenant: Name | None = None
    user: Name | None = None
    notebook: AskedLabel | None = None
    cell: TimeNs | None = None
    cell_id: AskedLabel | None = None
    since_ns: TimeNs | None = None
    until_ns: TimeNs | None = None
    limit: Annotated[int, Field(ge=1, le=PAGE_RECORDS_MAX)] = PAGE_RECORDS
    cursor: Annotated[str, Field(pattern=r"^[0-9]{1,19}\.[0-9]{1,18}$")] | None = None

    @property
    def after(self) -> tuple[int, int] | None:
        """The position that the cursor names. Raises InvalidRequest for one that no page ever gave."""
        if self.cursor is None:
            return None
        start, _, transaction = self.cursor.partition(".")
        if int(start) > TIME_NS_MAX:
            raise InvalidRequest(f"cursor: {self.cursor!r} is not the next of a page.")
        return int(start), int(transaction)


class SummaryQuery(_Query):
    """``GET api/summary``."""

    by: str = "tenant,user,flavor"
    tenant: Name | None = None
    user: Name | None = None
    notebook: AskedLabel | None = None
    since_ns: TimeNs | None = None
    until_ns: TimeNs | None = None
    zone: Annotated[str, Field(pattern=ZONE_PATTERN)] = "UTC"

    @property
    def tzinfo(self) -> tzinfo:
        """The time zone of the days. Raises InvalidRequest."""
        try:
            return ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise InvalidRequest(f"zone: {self.zone!r} is no time zone; name it as in Asia/Seoul.") from None


class ForecastQuery(_Query):
    """``GET api/forecast``."""

    tenant: Name | None = None
    user: Name | None = None


class JobCostsQuery(_Query):
    """``GET api/job-costs``: ``job`` may stand there several times."""

    job: Annotated[list[TimeNs], Field(max_length=NAMES_MAX)] = []
    tenant: Name | None = None
    user: Name | None = None
    since_ns: TimeNs = 0


class EnergyQuery(_Query):
    """``GET api/energy``."""

    since_ns: TimeNs


class RevenueQuery(_Query):
    """``GET api/revenue``."""

    since_ns: TimeNs = 0


class TenantsQuery(_Query):
    """``GET api/tenants``; a tenant's admin may leave the tenant out."""

    tenant: Name | None = None


class TenantOrderQuery(_Query):
    """``GET api/tenants/order``."""

    sort: Literal["tenant", "month", "end", "budget", "plan", "balance", "open"] = "tenant"
    order: Literal["asc", "desc"] = "asc"
    q: Annotated[str, StringConstraints(max_length=200, pattern=NO_NUL)] = ""


class TenantRowsQuery(_Query):
    """``GET api/tenants/rows``: ``tenant`` may stand there several times."""

    tenant: Annotated[list[Name], Field(max_length=NAMES_MAX)] = []


class ReportQuery(_Query):
    """``GET api/reports``; a tenant's admin may leave the tenant out."""

    tenant: Name | None = None
    month: str


class RecipientsQuery(_Query):
    """``GET api/reports/recipients``."""

    tenant: Name | None = None


class BalanceQuery(_Query):
    """``GET api/balance``; a tenant's admin may leave the tenant out."""

    tenant: Name | None = None


class StatementQuery(_Query):
    """``GET api/statement``."""

    tenant: Name | None = None
    user: Name | None = None
    month: str
    format: Literal["json", "html", "csv"] = "json"


class DraftQuery(_Query):
    """``GET api/drafts``; of several currencies a document needs the one."""

    tenant: Name | None = None
    month: str
    currency: str | None = None
    format: Literal["json", "html", "pdf", "csv", "focus"] = "json"


class InvoicesQuery(_Query):
    """``GET api/invoices``."""

    tenant: Name | None = None
    month: str | None = None
    state: Literal["open", "paid", "void"] | None = None
    limit: Annotated[int, Field(ge=1, le=PAGE_RECORDS_MAX)] | None = None
    before: AskedLabel | None = None
    """The number of an invoice: those that came before it."""


class SearchQuery(_Query):
    """``GET api/search``."""

    q: Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=NO_NUL)]
    since_ns: TimeNs = 0
    limit: Annotated[int, Field(ge=1, le=PAGE_RECORDS_MAX)] = PAGE_RECORDS


class InvoiceQuery(_Query):
    """``GET api/invoices/{number}``."""

    format: Literal["json", "html", "pdf", "csv", "focus"] = "json"


class CellsQuery(_Query):
    """``GET api/invoices/{number}/lines/{key}``; ``after`` is the ``next`` of the page before."""

    limit: Annotated[int, Field(ge=1, le=PAGE_RECORDS_MAX)] = PAGE_RECORDS
    after: TimeNs = 0


class DraftCellsQuery(CellsQuery):
    """``GET api/drafts/lines/{key}``."""

    tenant: Name | None = None
    month: str
    currency: str | None = None


class CreditsQuery(_Query):
    """``GET api/credits``."""

    tenant: Name | None = None


class FocusQuery(_Query):
    """``GET api/focus``."""

    tenant: Name | None = None
    month: str


class PaymentInvoicesQuery(_Query):
    """``GET api/payments/invoices``."""

    tenant: Name | None = None


class OutboxQuery(_Query):
    """``GET api/payments/outbox``."""

    state: Literal["waiting", "done", "dead", "skipped"] | None = None
    tenant: Name | None = None


class ReconciliationQuery(_Query):
    """``GET api/payments/reconciliation``."""

    since_ns: TimeNs
    until_ns: TimeNs


class BudgetsQuery(_Query):
    """``GET api/budgets``."""

    tenant: Name | None = None
    user: Name | None = None


class AlertsQuery(_Query):
    """``GET api/alerts``."""

    tenant: Name | None = None
    user: Name | None = None
    since_ns: TimeNs | None = None


class ChannelsQuery(_Query):
    """``GET api/alerts/channels``."""

    tenant: Name | None = None


class NoQuery(_Query):
    """Endpoints without arguments."""
