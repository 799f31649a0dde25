"""Puts the parts together: store, sign-in, metrics, HTTP."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import signal
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from forebay_hub.identity import Authenticator, HubAuthenticator, TokenAuthenticator
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application

from forebay_billing import (
    alert_handlers,
    budget_handlers,
    credit_handlers,
    handlers,
    heartbeat_handlers,
    invoice_handlers,
    payment_handlers,
    price_handlers,
    report_handlers,
    reservations,
    tenant_handlers,
)
from forebay_billing.budget_desk import BudgetDesk
from forebay_billing.closer import Closer
from forebay_billing.engines import open_engines
from forebay_billing.errors import BillingError, ConfigurationError
from forebay_billing.metrics import Metrics
from forebay_billing.reporter import Reporter
from forebay_billing.settings import Settings
from forebay_billing.store import Store

if TYPE_CHECKING:
    from forebay_billing.payments.desk import Desk

log = logging.getLogger(__name__)

BODY_SECONDS_MAX = 30
IDLE_SECONDS_MAX = 120
EXPIRY_SECONDS = 2.0
"""How often holds are looked for that are to expire."""
BODY_BYTES_CUT = 8 * handlers.BODY_BYTES_MAX
"""A body this long is not even read to its end to be refused politely: the connection closes."""

ENDPOINTS: tuple[tuple[str, type[handlers.BillingHandler]], ...] = (
    (r"api/usage", handlers.UsageHandler),
    (r"api/heartbeats", heartbeat_handlers.HeartbeatsHandler),
    (r"api/balance", heartbeat_handlers.BalanceHandler),
    (r"api/prices", price_handlers.PricesHandler),
    (r"api/prices/([^/]+)", price_handlers.PriceHandler),
    (r"api/parked-prices", price_handlers.ParkedPricesHandler),
    (r"api/parked-prices/([^/]+)", price_handlers.ParkedPriceHandler),
    (r"api/surcharges", price_handlers.SurchargesHandler),
    (r"api/surcharges/([^/]+)", price_handlers.SurchargeHandler),
    (r"api/price-list", price_handlers.PriceListHandler),
    (r"api/price-list/diff", price_handlers.PriceListDiffHandler),
    (r"api/preview", price_handlers.PreviewHandler),
    (r"api/audit", price_handlers.AuditHandler),
    (r"api/plans", price_handlers.PlansHandler),
    (r"api/plans/([^/]+)", price_handlers.PlanHandler),
    (r"api/corrections", handlers.CorrectionsHandler),
    (r"api/summary", handlers.SummaryHandler),
    (r"api/forecast", handlers.ForecastHandler),
    (r"api/statement", handlers.StatementHandler),
    (r"api/check", handlers.CheckHandler),
    (r"api/drafts", invoice_handlers.DraftsHandler),
    (r"api/drafts/lines/([^/]+)", invoice_handlers.DraftCellsHandler),
    (r"api/invoices", invoice_handlers.InvoicesHandler),
    (r"api/invoices/([^/]+)", invoice_handlers.InvoiceHandler),
    (r"api/invoices/([^/]+)/lines/([^/]+)", invoice_handlers.InvoiceCellsHandler),
    (r"api/invoices/([^/]+)/credit-notes", invoice_handlers.CreditNotesHandler),
    (r"api/credit-notes/([^/]+)", invoice_handlers.CreditNoteHandler),
    (r"api/invoices/([^/]+)/payments", invoice_handlers.SettlementsHandler),
    (r"api/invoices/([^/]+)/void", invoice_handlers.VoidHandler),
    (r"api/focus", invoice_handlers.FocusHandler),
    (r"api/profiles/([^/]+)", invoice_handlers.ProfileHandler),
    (r"api/credits", credit_handlers.CreditsHandler),
    (r"api/credits/([^/]+)/refund", credit_handlers.CreditRefundHandler),
    (r"api/currencies", tenant_handlers.CurrenciesHandler),
    (r"api/tenants", tenant_handlers.TenantsHandler),
    (r"api/tenants/order", tenant_handlers.TenantOrderHandler),
    (r"api/tenants/rows", tenant_handlers.TenantRowsHandler),
    (r"api/budgets", budget_handlers.BudgetsHandler),
    (r"api/budgets/([^/]+)", budget_handlers.BudgetHandler),
    (r"api/reports", report_handlers.ReportHandler),
    (r"api/reports/recipients", report_handlers.RecipientsHandler),
    (r"api/reports/recipients/([^/]+)", report_handlers.RecipientHandler),
    (r"api/alerts", alert_handlers.AlertsHandler),
    (r"api/alerts/channels", alert_handlers.ChannelsHandler),
    (r"api/alerts/channels/([^/]+)", alert_handlers.ChannelHandler),
    (r"api/payments/contacts/([^/]+)", payment_handlers.ContactHandler),
    (r"api/payments/invoices", payment_handlers.PaymentInvoicesHandler),
    (r"api/payments/portal", payment_handlers.PortalHandler),
    (r"api/payments/outbox", payment_handlers.OutboxHandler),
    (r"api/payments/outbox/([^/]+)", payment_handlers.DeadLetterHandler),
    (r"api/payments/reconciliation", payment_handlers.ReconciliationHandler),
    (r"api/payments/webhook", payment_handlers.WebhookHandler),
    (r"metrics", handlers.MetricsHandler),
    (r"health", handlers.HealthHandler),
)


class Service:
    """The running service. Made inside an event loop; :meth:`close` ends it."""

    def __init__(self, settings: Settings, authenticator: Authenticator, clock_ns: Callable[[], int] = time.time_ns) -> None:
        metrics = Metrics()
        self.store = Store(open_engines(settings.database_url, settings.busy_seconds), clock_ns, metrics.committed)
        metrics.watch_queue(lambda: self.store.writes_waiting)
        self._desk = _open_desk(self.store, settings, clock_ns, metrics)
        try:
            self.budgets = BudgetDesk(self.store, settings, clock_ns)
        except ConfigurationError:
            self.store.close()
            raise
        conditions = settings.conditions()
        context = handlers.Context(self.store, authenticator, metrics, clock_ns, settings, self._desk, self.budgets)
        self._server = HTTPServer(
            application_of(context, settings.prefix),
            max_body_size=BODY_BYTES_CUT,
            body_timeout=BODY_SECONDS_MAX,
            idle_connection_timeout=IDLE_SECONDS_MAX,
        )
        try:
            sockets = bind_sockets(settings.port, settings.host)
        except OSError as error:
            self.store.close()
            raise ConfigurationError(
                f"Cannot listen on {settings.host}:{settings.port} ({error.strerror}); choose another port or stop what holds it."
            ) from None
        for listener in sockets:
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server.add_sockets(sockets)
        if self._desk is not None:
            self._desk.start()
        self.budgets.start()
        self.reports = Reporter(self.store, settings, clock_ns)
        self.reports.start()
        self._closer = Closer(self.store, conditions, settings.invoice_grace_days, clock_ns)
        self._closer.start()
        self.port: int = sockets[0].getsockname()[1]
        self._expiry = asyncio.get_running_loop().create_task(_expire_holds(self.store, clock_ns))
        log.info("action=service.start host=%s port=%d prefix=%s seeded=%d", settings.host, self.port, settings.prefix, self.store.seeded)

    async def close(self) -> None:
        """Stops listening, finishes what was accepted, closes the database."""
        self._server.stop()
        await self._closer.close()
        await self.reports.close()
        self._expiry.cancel()
        await asyncio.gather(self._expiry, return_exceptions=True)
        if self._desk is not None:
            await self._desk.close()
        await self.budgets.close()
        await asyncio.to_thread(self.store.close)
        await self._server.close_all_connections()
        log.info("action=service.stop port=%d", self.port)


async def _expire_holds(store: Store, clock_ns: Callable[[], int]) -> None:
    """Ends, until cancelled, the holds of leases that nobody speaks of any more."""
    while True:
        try:
            while await store.read(lambda connection: reservations.any_due(connection, clock_ns())):
                expired = await asyncio.wrap_future(store.submit(lambda books: reservations.expire(books, clock_ns())))
                log.warning("action=hold.expire holds=%d", expired)
        except BillingError as error:
            log.error("action=hold.expire.failed error=%s", error)
        await asyncio.sleep(EXPIRY_SECONDS)


def application_of(context: handlers.Context, prefix: str) -> Application:
    """The endpoints under ``prefix``."""
    given = {"context": context}
    routes = [(re.escape(prefix) + path, handler, given) for path, handler in ENDPOINTS]
    return Application(
        routes, default_handler_class=handlers.UnknownHandler, default_handler_args=given, log_function=lambda handler: None
    )


def _open_desk(store: Store, settings: Settings, clock_ns: Callable[[], int], metrics: Metrics) -> Desk | None:
    """Payments, where they are on. Stripe's library is large and is not imported where they are off."""
    if settings.stripe_mode == "off":
        return None
    from forebay_billing.payments.desk import Desk
    from forebay_billing.payments.register import Register
    from forebay_billing.payments.source import BooksSource

    try:
        return Desk(store, settings, clock_ns, BooksSource(), metrics.paying, sink=Register(clock_ns))
    except ConfigurationError:
        store.close()
        raise


def authenticator_of(settings: Settings) -> Authenticator:
    """The hub where there is one, else the fixed tokens."""
    if settings.hub_api_url is not None:
        return HubAuthenticator(settings.hub_api_url)
    return TokenAuthenticator({entry.token: entry.identity() for entry in settings.tokens})


async def serve(settings: Settings) -> None:
    """Runs until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    service = Service(settings, authenticator_of(settings))
    gc.freeze()  # what was made so far stays, and is not looked through again at each collection
    await stop.wait()
    await service.close()
