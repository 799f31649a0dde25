"""Puts the parts together: store, sign-in, metrics, HTTP."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from forebay_service.errors import SettingsError
from forebay_service.handler import BODY_BYTES_CUT
from forebay_service.identity import Authenticator, HubAuthenticator, TokenAuthenticator
from forebay_service.peers.front import FrontServer
from forebay_service.peers.tls import seconds_left
from forebay_service.people.memberships import HubPeople, People
from forebay_service.process import listen, set_when_asked_to_stop
from forebay_service.routes import rules
from tornado.web import Application

from forebay_billing.http import handler as handler_http
from forebay_billing.http.routes import ROUTES
from forebay_billing.metrics import Metrics
from forebay_billing.settings import Settings
from forebay_billing.tables.engines import open_engines
from forebay_billing.tasks.budget_watch import BudgetWatch
from forebay_billing.tasks.delivery import Courier
from forebay_billing.tasks.election import Election
from forebay_billing.tasks.leavers import Leavers
from forebay_billing.tasks.loop import run_until_stopped
from forebay_billing.tasks.month_end import MonthEnd
from forebay_billing.tasks.monthly_reports import MonthlyReports
from forebay_billing.tasks.notices import Notices
from forebay_billing.tasks.revenue_hours import RevenueHours
from forebay_billing.tasks.usage_rollups import UsageRollups
from forebay_billing.writes import holds
from forebay_billing.writes.store import Store

if TYPE_CHECKING:
    from forebay_billing.payments.service import Payments

log = logging.getLogger(__name__)

BODY_SECONDS_MAX = 30
IDLE_SECONDS_MAX = 120
EXPIRY_SECONDS = 2.0
"""How often holds are looked for that are to expire."""


class Service:
    """The running service. Made inside an event loop; :meth:`close` ends it."""

    def __init__(
        self, settings: Settings, authenticator: Authenticator, clock_ns: Callable[[], int] = time.time_ns, people: People | None = None
    ) -> None:
        shown, metrics = settings.tls(), Metrics()
        metrics.certificate_left.set_function(lambda: seconds_left(shown))
        self.store = Store(open_engines(settings.database, settings.busy_seconds), clock_ns, metrics.committed)
        metrics.watch_queue(lambda: self.store.writes_waiting)
        self._desk = _open_desk(self.store, settings, clock_ns, metrics)
        try:
            self._courier = Courier(self.store, settings, clock_ns)
        except SettingsError:
            self.store.close()
            raise
        self.budgets = BudgetWatch(self.store, settings, clock_ns, self._courier)
        self.election = Election(settings.database)
        leads, conditions = self.election.leads, settings.conditions()
        context = handler_http.Context(self.store, authenticator, metrics, clock_ns, settings, self._desk, self.budgets, leads)
        self._server = FrontServer(
            application_of(context, settings.prefix),
            share=settings.peers_share,
            connections_max=settings.connections_max,
            max_body_size=BODY_BYTES_CUT,
            body_timeout=BODY_SECONDS_MAX,
            idle_connection_timeout=IDLE_SECONDS_MAX,
            ssl_options=shown and shown.context,
        )
        try:
            sockets = listen(settings.host, settings.port)
        except SettingsError:
            self.store.close()
            raise
        self._server.add_sockets(sockets)
        self.election.start()
        if self._desk is not None:
            self._desk.start(leads)
        self.budgets.start(leads)
        self.reports = MonthlyReports(self.store, self._courier, clock_ns)
        self.reports.start(leads)
        self.notices = Notices(self._courier)
        self.notices.start(leads)
        self.leavers = None if people is None else Leavers(self.store, people, clock_ns)
        if self.leavers is not None:
            self.leavers.start(leads)
        self.revenue = RevenueHours(self.store, clock_ns)
        self.revenue.start(leads)
        self.rollups = UsageRollups(self.store)
        self.rollups.start(leads)
        self._closer = MonthEnd(self.store, conditions, settings.invoice_grace_days, clock_ns)
        self._closer.start(leads)
        self.port: int = sockets[0].getsockname()[1]
        self._stop = asyncio.Event()
        expiry = run_until_stopped(lambda: _expire_holds(self.store, clock_ns), self._stop, EXPIRY_SECONDS, log, "hold", leads)
        self._expiry = asyncio.create_task(expiry, name="billing-holds")
        fields = {
            "action": "service.start", "host": settings.host, "port": self.port, "prefix": settings.prefix, "seeded": self.store.seeded,
        }  # fmt: skip
        log.info("billing serves", extra=fields)

    async def close(self) -> None:
        """Stops listening, finishes what was accepted, closes the database."""
        self._server.stop()
        await self._closer.close()
        await self.reports.close()
        await self.notices.close()
        if self.leavers is not None:
            await self.leavers.close()
        await self.revenue.close()
        await self.rollups.close()
        self._stop.set()
        await self._expiry
        if self._desk is not None:
            await self._desk.close()
        await self.budgets.close()
        await self.election.close()
        self._courier.close()
        await asyncio.to_thread(self.store.close)
        await self._server.close_all_connections()
        log.info("billing stopped", extra={"action": "service.stop", "port": self.port})


async def _expire_holds(store: Store, clock_ns: Callable[[], int]) -> int:
    """Ends the holds of leases that nobody speaks of any more; how many."""
    if not await store.read(lambda connection: holds.any_due(connection, clock_ns())):
        return 0
    expired = await asyncio.wrap_future(store.submit(lambda books: holds.expire(books, clock_ns())))
    log.warning("holds have expired", extra={"action": "hold.expire", "holds": expired})
    return expired


def application_of(context: handler_http.Context, prefix: str) -> Application:
    """The endpoints under ``prefix``."""
    given = {"context": context}
    unknown: dict[str, Any] = {"default_handler_class": handler_http.UnknownHandler, "default_handler_args": given}
    return Application(rules(ROUTES, prefix, given), log_function=lambda handler: None, **unknown)


def _open_desk(store: Store, settings: Settings, clock_ns: Callable[[], int], metrics: Metrics) -> Payments | None:
    """Payments, where they are on. Stripe's library is large and is not imported where they are off."""
    if settings.stripe_mode == "off":
        return None
    from forebay_billing.payments.payment_sink import BookedPayments
    from forebay_billing.payments.service import Payments
    from forebay_billing.payments.source import BooksSource

    try:
        return Payments(store, settings, clock_ns, BooksSource(), metrics.paying, sink=BookedPayments(clock_ns))
    except SettingsError:
        store.close()
        raise


def authenticator_of(settings: Settings) -> Authenticator:
    """The hub where there is one, else the fixed tokens. Raises SettingsError where there is neither."""
    if settings.hub_api_url is not None:
        return HubAuthenticator(settings.hub_api_url, own_token=settings.hub_token)
    if not settings.tokens:
        raise SettingsError("Nobody could sign in: set hub_api_url (JupyterHub's API), or list callers under [[tokens]].")
    return TokenAuthenticator({entry.token: entry.identity() for entry in settings.tokens})


def people_of(settings: Settings) -> People | None:
    """The hub, which knows who belongs to which tenant; None without one."""
    if settings.hub_api_url is None or settings.hub_token is None:
        return None
    return HubPeople(settings.hub_api_url, settings.hub_token)


async def serve(settings: Settings) -> None:
    """Runs until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    set_when_asked_to_stop(stop)
    service = Service(settings, authenticator_of(settings), people=people_of(settings))
    gc.freeze()  # what was made so far stays, and is not looked through again at each collection
    await stop.wait()
    await service.close()
