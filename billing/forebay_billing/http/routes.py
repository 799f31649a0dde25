"""Every endpoint of billing: who answers it, who may ask, what it takes and gives.

Tests hold this table against what a running service answers.
"""

from __future__ import annotations

import json
from functools import cache, partial
from importlib.metadata import version
from typing import Any

from forebay_service.audit import AuditPage, AuditQuery
from forebay_service.errors import Conflict, NotFound
from forebay_service.identity import BILLING, COMPUTE, OPERATE, SERVICE, TENANT
from forebay_service.openapi import describe
from forebay_service.routes import JSON, Route

from forebay_billing.documents import rows
from forebay_billing.documents.energy import EnergyRow
from forebay_billing.documents.job_costs import JobCostRow
from forebay_billing.errors import PaymentsUnavailable, Unpriced
from forebay_billing.http import (
    alerts,
    bodies,
    budgets,
    credits,
    health,
    heartbeats,
    invoices,
    notices,
    outgoing_mail,
    payments,
    prices,
    queries,
    reports,
    search,
    tenants,
    usage,
)
from forebay_billing.http.handler import BillingHandler

STAFF = (SERVICE, OPERATE)
PAYERS: dict[str, Any] = {"scopes": (OPERATE, TENANT, BILLING), "who": "operators; the tenant's admin"}
VIEWERS: dict[str, Any] = {"who": "services and operators; a tenant's admin, of the tenant; everybody else, of themselves"}
CHANGE: dict[str, Any] = {"idempotent": True}
PAYERS_CHANGE: dict[str, Any] = {**PAYERS, "idempotent": True}
BUDGET_CHANGE: dict[str, Any] = {
    "scopes": (OPERATE, TENANT, BILLING, COMPUTE),
    "who": "operators; a tenant's admin, of the tenant; everybody else, of labels of themselves",
    "idempotent": True,
}
OWN: dict[str, Any] = {"scopes": (COMPUTE,), "who": "members of a tenant, of themselves"}
OWN_CHANGE: dict[str, Any] = {**OWN, "idempotent": True}
PERSON: dict[str, Any] = {"scopes": (COMPUTE, OPERATE), "who": "people, of themselves"}
PRICE: dict[str, Any] = {"scopes": (OPERATE,), "idempotent": True, "conditional": True}
SHEET = (JSON, "text/html", "application/pdf", "text/csv")
YAML, PDF, CSV = "application/yaml", "application/pdf", "text/csv"
INFO = {
    "title": "Forebay billing",
    "version": version("forebay-billing"),
    "description": (
        "Prices, usage, the ledger, budgets, invoices and payments. What ends in `_ns` is whole nanoseconds, in `_nano` whole "
        "nano-units (1e-9) of a currency, in `_minor` its smallest coins. Unknown fields and query arguments are refused."
    ),
}


class Description(BillingHandler):
    """``GET api/openapi.json``: for everybody, as it says nothing of anybody."""

    endpoint = "openapi"

    async def get(self) -> None:
        self.query(queries.NoQuery)
        self.write_json_text(_document(self.context.settings.prefix))


@cache
def _document(prefix: str) -> str:
    """It takes a tenth of a second to make, and never changes."""
    return json.dumps(describe(ROUTES, prefix, INFO))


_route = partial(Route, query=queries.NoQuery)
_GONE, _CLASH = (NotFound.status,), (Conflict.status,)
_BOTH = _GONE + _CLASH

USAGE = (
    _route(
        *("POST", "api/usage", usage.UsageHandler),
        summary="Takes usage records, all or none; idempotent by (source, id), for ever",
        answer=rows.AcceptedRow,
        body=bodies.UsageBatchBody,
        scopes=(SERVICE,),
        refusals=(Unpriced.status,),
        **CHANGE,
    ),
    _route(
        *("POST", "api/heartbeats", heartbeats.HeartbeatsHandler),
        summary="Takes the leases that are open, holds money for them, and answers which budgets are not open; `refused` names leases that "
        "cannot be understood, which keep no other from being heard",
        answer=rows.HeartbeatAnswer,
        body=bodies.HeartbeatBody,
        scopes=(SERVICE,),
        **CHANGE,
    ),
    _route(
        *("GET", "api/balance", heartbeats.BalanceHandler, "What a tenant owes, what is held for open leases, and what credit is left"),
        answer=rows.TenantBalance,
        query=queries.BalanceQuery,
        who="services and operators, who name a tenant; the tenant's admin",
        refusals=_GONE,
    ),
    _route(
        *("GET", "api/usage", usage.UsageHandler, "Usage records, newest first, each with what it cost and under which prices"),
        answer=rows.UsagePage,
        query=queries.UsageQuery,
        **VIEWERS,
    ),
    _route(
        *("GET", "api/summary", usage.SummaryHandler),
        summary="Usage without what was corrected, summed by any of tenant, user, flavor, kind, notebook, cell, day; days are the zone's, "
        "and need `since_ns` and `until_ns`; `leases` counts those that began then, `parked_nano` is what parked bytes have of the cost, "
        "`energy_mj` what devices drew, in millijoules, in `energy_duration_ns`, the time that their drivers told of, and `co2_mg` is of "
        "that",
        answer=list[rows.SummaryRow],
        query=queries.SummaryQuery,
        **VIEWERS,
    ),
    _route(
        *("GET", "api/forecast", usage.ForecastHandler, "This month (UTC) so far and at its end, if it goes on as in the last seven days"),
        answer=list[rows.OutlookRow],
        query=queries.ForecastQuery,
        **VIEWERS,
    ),
    _route(
        *("GET", "api/job-costs", usage.JobCostsHandler),
        summary="What each run of some jobs (`job`, several times) has cost so far at list prices, leases that are open included; with "
        "`since_ns`, a time before their first run, it is found sooner",
        answer=list[JobCostRow],
        query=queries.JobCostsQuery,
        **VIEWERS,
    ),
    _route(
        *("GET", "api/energy", usage.EnergyHandler),
        summary="What devices drew by hour (UTC) in which a lease began, in millijoules, and in `energy_duration_ns` the part of the time "
        "that their drivers told of; null where none did",
        answer=list[EnergyRow],
        query=queries.EnergyQuery,
        scopes=STAFF,
    ),
    _route(
        *("GET", "api/revenue", usage.RevenueHandler),
        summary="What usage was posted in each hour of the last 31 days, less what was taken back, at list prices; seconds behind",
        answer=list[rows.RevenueRow],
        query=queries.RevenueQuery,
        scopes=STAFF,
    ),
    _route(
        *("GET", "api/search", search.SearchHandler),
        summary="Tenants and users that used something since (by the month) and invoices in whose names all words occur, the first of each",
        answer=rows.SearchHits,
        query=queries.SearchQuery,
        scopes=(OPERATE,),
    ),
    _route(
        *("GET", "api/statement", usage.StatementHandler, "A month's statement (UTC), rounded once per line, proven equal to the ledger"),
        answer=rows.StatementRow,
        query=queries.StatementQuery,
        media=(JSON, "text/html", CSV),
        refusals=_GONE,
        **VIEWERS,
    ),
    _route(
        *("POST", "api/corrections", usage.CorrectionsHandler, "Reverses a usage record, once, in the present open month"),
        answer=rows.CorrectionRow,
        body=bodies.CorrectionBody,
        scopes=(OPERATE,),
        refusals=_GONE,
        **CHANGE,
    ),
    _route(
        *("GET", "api/check", usage.CheckHandler, "Where segments, ledger and balances do not agree, in grains or nanoseconds"),
        answer=rows.Differences,
        scopes=STAFF,
    ),
)

PRICES = (
    _route(
        *("GET", "api/prices", prices.PricesHandler, "Prices in force; with `history=1` all versions, oldest first"),
        answer=list[rows.PriceRow],
        query=queries.PricesQuery,
        refusals=_GONE,
    ),
    _route(
        *("PUT", "api/prices/{flavor}", prices.PriceHandler),
        summary="A new version of a flavor's price, for device time from then on, also of open leases. It may begin in the past only where "
        "nothing was rated yet, and never in a finalised month. `new` gives a flavor that billing has never held its first price",
        answer=rows.PriceRow,
        body=bodies.PriceBody,
        refusals=_BOTH,
        **PRICE,
    ),
    _route(
        *("GET", "api/surcharges", prices.SurchargesHandler),
        summary="What models of devices cost beside the flavor's price; zero where there is none",
        answer=list[rows.SurchargeRow],
        query=queries.SurchargesQuery,
    ),
    _route(
        *("PUT", "api/surcharges/{model}", prices.SurchargeHandler, "A new version of a model's surcharge"),
        answer=rows.SurchargeRow,
        body=bodies.SurchargeBody,
        refusals=_BOTH,
        **PRICE,
    ),
    _route(
        *("GET", "api/parked-prices", prices.ParkedPricesHandler, "All versions of what parked bytes cost; nothing where there is none"),
        answer=list[rows.ParkedPriceRow],
    ),
    _route(
        *("PUT", "api/parked-prices/{currency}", prices.ParkedPriceHandler, "A new version of what parked bytes cost"),
        answer=rows.ParkedPriceRow,
        body=bodies.ParkedPriceBody,
        refusals=_BOTH,
        **PRICE,
    ),
    _route(
        *("GET", "api/price-list", prices.PriceListHandler, "The price book as a text, what is scheduled included"),
        answer=dict[str, Any],
        media=(YAML,),
        tagged=True,
    ),
    _route(
        *("PUT", "api/price-list", prices.PriceListHandler, "Has the price book say what the list says, all of it or nothing"),
        answer=rows.Changes,
        body=dict[str, Any],
        body_media=YAML,
        refusals=_BOTH,
        **PRICE,
    ),
    _route(
        *("POST", "api/price-list/diff", prices.PriceListDiffHandler, "What the list would change, without changing it"),
        answer=rows.Changes,
        body=dict[str, Any],
        body_media=YAML,
        scopes=(OPERATE,),
        refusals=_BOTH,
    ),
    _route(
        *("POST", "api/preview", prices.PreviewHandler),
        summary="What a month (without `month` the last one) would have cost under other prices and plans",
        answer=rows.Preview,
        body=bodies.PreviewBody,
        scopes=(OPERATE,),
        refusals=_BOTH,
    ),
    _route(
        *("GET", "api/audit", prices.AuditHandler, "Who changed what, newest first; what was refused is there too"),
        answer=AuditPage,
        query=AuditQuery,
        scopes=(OPERATE,),
    ),
    _route(
        *("GET", "api/plans", prices.PlansHandler, "Plans in force in a month (UTC; the present one); with `history=1` all versions"),
        answer=list[rows.PlanRow],
        query=queries.PlansQuery,
        scopes=(*STAFF, TENANT, BILLING),
        who="services and operators; the tenant's admin",
    ),
    _route(
        *("PUT", "api/plans/{tenant}", prices.PlanHandler),
        summary="A new version of a tenant's plan, in force for whole months from `valid_from` on; not where a finalised one would change",
        answer=rows.PlanRow,
        body=bodies.PlanBody,
        refusals=_BOTH,
        **PRICE,
    ),
)

INVOICES = (
    _route(
        *("GET", "api/drafts", invoices.DraftsHandler, "An open month's invoices as they would be now"),
        answer=list[rows.DraftRow],
        query=queries.DraftQuery,
        media=SHEET,
        refusals=_BOTH,
        **PAYERS,
    ),
    _route(
        *("GET", "api/drafts/lines/{key}", invoices.DraftCellsHandler),
        summary="The usage records, with their cells, that a line was summed up from",
        answer=rows.CellsPage,
        query=queries.DraftCellsQuery,
        refusals=_BOTH,
        **PAYERS,
    ),
    _route(
        *("GET", "api/invoices", invoices.InvoicesHandler),
        summary="Finalised invoices, the latest first; `before` is the number that a page ended with",
        answer=list[rows.InvoiceSummary],
        query=queries.InvoicesQuery,
        **PAYERS,
    ),
    _route(
        *("POST", "api/invoices", invoices.InvoicesHandler, "Finalises a month of a tenant that is over; again: the same invoices"),
        answer=list[rows.InvoiceSummary],
        body=bodies.FinaliseBody,
        scopes=(OPERATE,),
        refusals=_GONE,
        **CHANGE,
    ),
    _route(
        *("GET", "api/invoices/{number}", invoices.InvoiceHandler, "One invoice, with its lines and what happened to it since"),
        answer=rows.InvoiceRow,
        query=queries.InvoiceQuery,
        media=SHEET,
        refusals=_GONE,
        **PAYERS,
    ),
    _route(
        *("GET", "api/invoices/{number}/lines/{key}", invoices.InvoiceCellsHandler, "What a line was summed up from"),
        answer=rows.CellsPage,
        query=queries.CellsQuery,
        refusals=_GONE,
        **PAYERS,
    ),
    _route(
        *("POST", "api/invoices/{number}/credit-notes", invoices.CreditNotesHandler, "Takes a part of an invoice back"),
        answer=rows.MadeNote,
        body=bodies.CreditNoteBody,
        scopes=(OPERATE,),
        refusals=_GONE,
        **CHANGE,
    ),
    _route(
        *("POST", "api/invoices/{number}/payments", invoices.SettlementsHandler),
        summary="Writes down a payment that came in, or a refund of what credit notes left owed; each `reference` once",
        answer=rows.InvoiceSummary,
        body=bodies.SettlementBody,
        scopes=(OPERATE,),
        refusals=_GONE,
        **CHANGE,
    ),
    _route(
        *("POST", "api/invoices/{number}/void", invoices.VoidHandler, "What is open of an invoice is no longer asked for"),
        answer=rows.InvoiceSummary,
        body=bodies.VoidBody,
        scopes=(OPERATE,),
        refusals=_GONE,
        **CHANGE,
    ),
    _route(
        *("GET", "api/credit-notes/{number}", invoices.CreditNoteHandler, "A credit note"),
        answer=rows.NoteRow,
        query=queries.InvoiceQuery,
        media=SHEET,
        refusals=_GONE,
        **PAYERS,
    ),
    _route(
        *("GET", "api/focus", invoices.FocusHandler, "A month's invoices, and the credit notes issued in it, as one FOCUS 1.3 table"),
        answer=str,
        query=queries.FocusQuery,
        media=(CSV,),
        **PAYERS,
    ),
    _route(
        *("GET", "api/profiles/{tenant}", invoices.ProfileHandler, "Whom the tenant's invoices are made out to"),
        answer=rows.ProfileRow,
        tagged=True,
        refusals=_GONE,
        **PAYERS,
    ),
    _route(
        *("PUT", "api/profiles/{tenant}", invoices.ProfileHandler),
        summary="Changes a tenant's profile; what is left out stays. `tax_label`, `tax_bps` and `currency` are the operator's to set",
        answer=rows.ProfileRow,
        body=bodies.ProfileBody,
        conditional=True,
        refusals=_GONE,
        **PAYERS_CHANGE,
    ),
    _route(
        *("GET", "api/credits", credits.CreditsHandler, "Credits, and what is left of them"),
        answer=list[rows.CreditRow],
        query=queries.CreditsQuery,
        **PAYERS,
    ),
    _route(
        *("POST", "api/credits", credits.CreditsHandler, "Grants a credit; a tenant for whom nothing was ever recorded needs `new`"),
        answer=rows.CreditRow,
        body=bodies.CreditBody,
        scopes=(OPERATE,),
        refusals=_GONE,
        **CHANGE,
    ),
    _route(
        *("POST", "api/credits/{credit}/refund", credits.CreditRefundHandler),
        summary="Gives back what is left of a prepaid credit, or a part of it",
        answer=rows.CreditRow,
        body=bodies.CreditRefundBody,
        scopes=(OPERATE,),
        refusals=_GONE,
        **CHANGE,
    ),
)

TENANTS = (
    _route(
        *("GET", "api/tenants", tenants.TenantsHandler, "How tenants stand, in one snapshot; not `known`: nothing was ever recorded"),
        answer=list[rows.StandingRow],
        query=queries.TenantsQuery,
        **PAYERS,
    ),
    _route(
        *("GET", "api/currencies", tenants.CurrenciesHandler, "What tenants are billed in; those that are not named, in `currency`"),
        answer=rows.Currencies,
        scopes=STAFF,
    ),
    _route(
        *("GET", "api/tenants/order", tenants.TenantOrderHandler),
        summary="Names of all tenants by a column of the operator's table: those that it tells of, the others that were found, the rest",
        answer=rows.TenantOrder,
        query=queries.TenantOrderQuery,
        scopes=(OPERATE,),
    ),
    _route(
        *("GET", "api/tenants/rows", tenants.TenantRowsHandler, "What that table shows of some tenants, in one snapshot"),
        answer=rows.TenantRows,
        query=queries.TenantRowsQuery,
        scopes=(OPERATE,),
    ),
    _route(
        *("GET", "api/budgets", budgets.BudgetsHandler),
        summary="Budgets and how they stand; a member sees the own ones, and of the tenant's whether they stop anybody",
        answer=list[rows.BudgetStanding],
        query=queries.BudgetsQuery,
        **VIEWERS,
    ),
    _route(
        *("PUT", "api/budgets", budgets.BudgetsHandler),
        summary="Makes a budget, or changes the one of the same subject, window and author; an admin's, within what operators' allow",
        answer=rows.BudgetRow,
        body=bodies.BudgetBody,
        conditional=True,
        refusals=_GONE,
        **BUDGET_CHANGE,
    ),
    _route(
        *("DELETE", "api/budgets/{budget}", budgets.BudgetHandler, "Removes a budget; an admin, all but an operator's"),
        answer=rows.Removed,
        conditional=True,
        refusals=_GONE,
        **BUDGET_CHANGE,
    ),
    _route(
        *("GET", "api/reports", reports.ReportHandler),
        summary="A tenant's month as PDF: by day (a chart), member, flavor and notebook, at list prices",
        answer=str,
        query=queries.ReportQuery,
        media=(PDF,),
        refusals=_GONE,
        **PAYERS,
    ),
    _route(
        *("GET", "api/reports/recipients", reports.RecipientsHandler, "Whom each month's report is mailed to, and the latest mailing"),
        answer=list[rows.RecipientRow],
        query=queries.RecipientsQuery,
        **PAYERS,
    ),
    _route(
        *("POST", "api/reports/recipients", reports.RecipientsHandler, "Has each month's report mailed to an address, a day after its end"),
        answer=rows.RecipientRow,
        body=bodies.RecipientBody,
        refusals=_GONE,
        **PAYERS_CHANGE,
    ),
    _route(
        *("DELETE", "api/reports/recipients/{recipient}", reports.RecipientHandler, "An address gets no more reports"),
        answer=rows.Removed,
        refusals=_GONE,
        **PAYERS_CHANGE,
    ),
    _route(
        *("GET", "api/alerts", alerts.AlertsHandler, "Thresholds of budgets that were reached, newest first"),
        answer=list[rows.AlertRow],
        query=queries.AlertsQuery,
        **VIEWERS,
    ),
    _route(
        *("GET", "api/alerts/channels", alerts.ChannelsHandler, "Where alerts go, and how deliveries stand"),
        answer=list[rows.ChannelRow],
        query=queries.ChannelsQuery,
        **PAYERS,
    ),
    _route(
        *("POST", "api/alerts/channels", alerts.ChannelsHandler),
        summary="Sends alerts somewhere; an operator's channel without a tenant hears of all. A webhook's `secret` is told here alone",
        answer=rows.ChannelRow,
        body=bodies.ChannelBody,
        refusals=_GONE,
        **PAYERS_CHANGE,
    ),
    _route(
        *("POST", "api/alerts/channels/{channel}", alerts.ChannelHandler, "Sends again what was given up"),
        answer=rows.Retried,
        body=bodies.ChannelActionBody,
        refusals=_GONE,
        **PAYERS_CHANGE,
    ),
    _route(
        *("POST", "api/notices", notices.NoticesHandler),
        summary="Has a person's own channels told of a cell that ended, failed, waits or was stopped; 60 in an hour at most",
        answer=rows.Noticed,
        body=bodies.NoticeBody,
        **OWN_CHANGE,
    ),
    _route(
        *("POST", "api/notices/jobs", notices.JobNoticesHandler),
        summary="Has a person's own channels told of a job, as it was submitted or as the person prefers; `key` is heard once",
        answer=rows.Noticed,
        body=bodies.JobNoticeBody,
        scopes=(SERVICE,),
    ),
    _route(
        *("GET", "api/notices/preferences", notices.PreferencesHandler, "In which language one is told, and of which own jobs"),
        answer=rows.PreferencesRow,
        **PERSON,
    ),
    _route(
        *("PATCH", "api/notices/preferences", notices.PreferencesHandler),
        summary="Chooses what is named, and leaves the other; null: nothing is chosen",
        answer=rows.PreferencesRow,
        body=bodies.PreferencesBody,
        idempotent=True,
        **PERSON,
    ),
    _route(
        *("GET", "api/notices/channels", notices.NoticeChannelsHandler, "Where one's own notices go, and why the latest did not arrive"),
        answer=list[rows.NoticeChannelRow],
        **OWN,
    ),
    _route(
        *("POST", "api/notices/channels", notices.NoticeChannelsHandler),
        summary="Has notices sent somewhere; an e-mail address gets a code, and nothing else before it is confirmed. A webhook's `secret` "
        "is told here alone",
        answer=rows.NoticeChannelRow,
        body=bodies.NoticeChannelBody,
        refusals=_CLASH,
        **OWN,
    ),
    _route(
        *("POST", "api/notices/channels/{channel}", notices.NoticeChannelHandler, "Confirms an address by the code that was mailed there"),
        answer=rows.NoticeChannelRow,
        body=bodies.NoticeCodeBody,
        refusals=_GONE,
        **OWN,
    ),
    _route(
        *("DELETE", "api/notices/channels/{channel}", notices.NoticeChannelHandler, "Removes a channel, and gives up what waits"),
        answer=rows.Removed,
        refusals=_GONE,
        **OWN_CHANGE,
    ),
    _route(
        *("POST", "api/letters", outgoing_mail.OutgoingMailHandler, "Sends a mail that another of our services wrote, at once"),
        answer=rows.Sent,
        body=bodies.OutgoingMailBody,
        scopes=(SERVICE,),
        refusals=_CLASH,
    ),
    _route(
        *("DELETE", "api/alerts/channels/{channel}", alerts.ChannelHandler, "Removes a channel, and gives up what waits"),
        answer=rows.Removed,
        refusals=_GONE,
        **PAYERS_CHANGE,
    ),
)

PAYMENTS = (
    _route(
        *("GET", "api/payments/contacts/{tenant}", payments.ContactHandler),
        summary="Who is asked to pay: the contact that Stripe has as a customer",
        answer=rows.ContactRow,
        refusals=_GONE,
        **PAYERS,
    ),
    _route(
        *("PUT", "api/payments/contacts/{tenant}", payments.ContactHandler, "Changes who is asked to pay, also at Stripe"),
        answer=rows.ContactRow,
        body=bodies.ContactBody,
        refusals=_GONE,
        **PAYERS_CHANGE,
    ),
    _route(
        *("GET", "api/payments/invoices", payments.PaymentInvoicesHandler, "How our invoices stand at Stripe; `url` is where one is paid"),
        answer=list[rows.PaymentInvoiceRow],
        query=queries.PaymentInvoicesQuery,
        **PAYERS,
    ),
    _route(
        *("POST", "api/payments/portal", payments.PortalHandler, "A link to Stripe's customer portal, for payment methods and receipts"),
        answer=rows.Portal,
        body=bodies.PortalBody,
        refusals=(*_CLASH, PaymentsUnavailable.status),
        **PAYERS,
    ),
    _route(
        *("GET", "api/payments/outbox", payments.OutboxHandler, "Deliveries to Stripe, dead letters among them"),
        answer=rows.OutboxPage,
        query=queries.OutboxQuery,
        scopes=(OPERATE,),
    ),
    _route(
        *("POST", "api/payments/outbox/{row}", payments.DeadLetterHandler, "Sends a dead letter again, or gives it up"),
        answer=rows.Decided,
        body=bodies.DeadLetterBody,
        scopes=(OPERATE,),
        refusals=_GONE,
        **CHANGE,
    ),
    _route(
        *("GET", "api/payments/reconciliation", payments.ReconciliationHandler, "What we have against what Stripe has"),
        answer=rows.Reconciliation,
        query=queries.ReconciliationQuery,
        scopes=(OPERATE,),
        refusals=(*_CLASH, PaymentsUnavailable.status),
    ),
    Route(
        *("POST", "api/payments/webhook", payments.WebhookHandler),
        summary="An event, written down and handled once by reading the object's present state",
        answer=rows.Heard,
        body=dict[str, Any],
        scopes=None,
        who="Stripe, by its signature",
        refusals=_CLASH,
    ),
)

ROUTES = (
    *USAGE,
    *PRICES,
    *INVOICES,
    *TENANTS,
    *PAYMENTS,
    _route("GET", "api/openapi.json", Description, "This description", dict[str, Any], scopes=None),
    _route(
        *("GET", "metrics", health.MetricsPage, "Metrics for Prometheus; to `metrics_token`, or without one from this host", str),
        scopes=STAFF,
        media=("text/plain",),
    ),
    _route("GET", "health", health.Health, "Whether the database answers", rows.Healthy, scopes=None, refusals=(503,)),
)
