"""Puts the parts together: routes, clients, the feed, and the server's life."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal

from forebay_service.identity import HubAuthenticator
from forebay_service.peers.front import FrontServer
from forebay_service.peers.tls import Trust, seconds_left
from forebay_service.process import listen, set_when_asked_to_stop
from jupyterhub.httpclient import JupyterHubHTTPClient
from tornado.web import Application, RedirectHandler

from forebay_dashboards.http.events import EventsPage
from forebay_dashboards.http.handler import NoPage, Services, SignedIn
from forebay_dashboards.http.health import HealthProbe, HelpPage, MetricsProbe, StaticFile
from forebay_dashboards.http.sign_in import SignIn, key_of
from forebay_dashboards.http.templating import open_environment
from forebay_dashboards.live.browsers import Browsers
from forebay_dashboards.live.feed import DeliveryWatch, Feed
from forebay_dashboards.metrics import CERTIFICATE_LEFT
from forebay_dashboards.pages import actions, audit, flavors, nodes, operator_tenant, overview, payments, prices, quotas, spend, tables
from forebay_dashboards.pages.language import LanguagePage
from forebay_dashboards.pages.member.jobs import JobPage, JobsPage
from forebay_dashboards.pages.member.shared import NotebookDocument, SharedNotebookPage, SharedPage
from forebay_dashboards.pages.member.timeline import MyTimelinePage
from forebay_dashboards.pages.member.usage import ExportPage, MyUsagePage, NotebookPage, NoticesPage
from forebay_dashboards.pages.my_tenant import InvoicePage, ReportPage, StatementPage, TenantPage
from forebay_dashboards.pages.owner.alerts import TenantAlertsPage
from forebay_dashboards.pages.owner.bills import BillsPage
from forebay_dashboards.pages.owner.budgets import BudgetEditPage, BudgetPage, BudgetsPage
from forebay_dashboards.pages.owner.people import MemberPage, PeoplePage
from forebay_dashboards.pages.owner.reports import ReportsPage
from forebay_dashboards.pages.owner.shared import TenantSharedPage
from forebay_dashboards.pages.search import SearchPage
from forebay_dashboards.pages.shares import SharesPage
from forebay_dashboards.pages.suggestions import SuggestionsPage
from forebay_dashboards.pages.tenants import OperatorAlertsPage, TenantsPage
from forebay_dashboards.settings import Settings
from forebay_dashboards.upstream.billing import Billing
from forebay_dashboards.upstream.client import Upstream, open_client
from forebay_dashboards.upstream.hub import Hub
from forebay_dashboards.upstream.pool import Pool

FORM_BYTES_MAX = 64 * 1024
IDLE_SECONDS_MAX = 120
BODY_SECONDS_MAX = 30
NAME = "([^/]{1,128})"
BUDGET = "(budget|budget-[0-9]{1,18})"
TERM = "(budget|budget-[0-9]{1,18}|quota|plan|currency|tax|credit)"

ROUTES = (
    (r"usage(?:/(totals|live|budgets|spread|records))?", MyUsagePage),
    (r"usage/notebook", NotebookPage),
    (r"usage/notices", NoticesPage),
    (r"usage/timeline(?:/(chart))?", MyTimelinePage),
    (r"usage\.csv", ExportPage),
    (r"jobs(?:/(list))?", JobsPage),
    (r"jobs/([0-9]{1,18})(?:/(state|cost|output))?", JobPage),
    (r"shared", SharedPage),
    (r"shared/([0-9]{1,18})", SharedNotebookPage),
    (r"shared/([0-9]{1,18})/page", NotebookDocument),
    (r"tenant(?:/(spend|live))?", TenantPage),
    (r"tenant/people", PeoplePage),
    (rf"tenant/people/{NAME}", MemberPage),
    (r"tenant/budgets(?:/(terms))?", BudgetsPage),
    (rf"tenant/budgets/terms/{BUDGET}", BudgetPage),
    (rf"tenant/budgets/terms/{BUDGET}/edit", BudgetEditPage),
    (r"tenant/alerts", TenantAlertsPage),
    (r"tenant/reports", ReportsPage),
    (r"tenant/bills", BillsPage),
    (r"tenant/shared", TenantSharedPage),
    (r"statement", StatementPage),
    (r"invoice", InvoicePage),
    (r"report", ReportPage),
    (r"operator(?:/(live|money|trends))?", overview.OverviewPage),
    (r"operator/(leases|queue|sessions|devices)(?:/(rows))?", tables.TablePage),
    (r"operator/nodes(?:/(map))?", nodes.NodesPage),
    (r"operator/timeline(?:/(chart))?", nodes.TimelinePage),
    (rf"operator/sessions/{NAME}/(park|move|revoke|end)", actions.SessionAction),
    (rf"operator/devices/{NAME}/(close|open)", actions.DeviceAction),
    (rf"operator/nodes/{NAME}/(drain|return)", actions.NodeAction),
    (r"operator/tenants(?:/(rows))?", TenantsPage),
    (rf"operator/tenant/{NAME}(?:/(spend|live|terms|owed|people))?", operator_tenant.OperatorTenantPage),
    (rf"operator/tenant/{NAME}/terms/{TERM}", operator_tenant.TermPage),
    (rf"operator/tenant/{NAME}/terms/{TERM}/edit", operator_tenant.TermEditPage),
    (r"operator/alerts", OperatorAlertsPage),
    (r"operator/usage(?:/(table))?", spend.SpendPage),
    (r"operator/invoices", spend.InvoicesPage),
    (r"operator/flavors(?:/(table))?", flavors.FlavorsPage),
    (r"operator/flavors/new", flavors.NewFlavorPage),
    (rf"operator/flavors/{NAME}/row", flavors.FlavorPage),
    (rf"operator/flavors/{NAME}/edit", flavors.FlavorEditPage),
    (rf"operator/flavors/{NAME}/prices", flavors.PriceHistoryPage),
    (r"operator/suggestions", SuggestionsPage),
    (r"operator/surcharges", prices.SurchargesPage),
    (r"operator/price-list", prices.PriceListPage),
    (r"operator/plans", prices.PlansPage),
    (r"operator/quotas", quotas.QuotasPage),
    (r"operator/shares", SharesPage),
    (r"operator/payments", payments.PaymentsPage),
    (r"operator/search", SearchPage),
    (r"operator/audit", audit.AuditTrailPage),
    (r"help", HelpPage),
    (r"language", LanguagePage),
    (r"events", EventsPage),
    (r"oauth_callback", SignedIn),
    (r"static/([A-Za-z0-9.-]+)", StaticFile),
    (r"health", HealthProbe),
    (r"metrics", MetricsProbe),
)
"""Paths under the service's prefix."""

logger = logging.getLogger(__name__)


class Service:
    """The running service. Made inside an event loop; :meth:`close` ends it."""

    def __init__(self, settings: Settings) -> None:
        shown, trust = settings.tls(), Trust(settings.tls_authority)
        CERTIFICATE_LEFT.set_function(lambda: seconds_left(shown))
        self._client = open_client(trust)
        if settings.tls_authority is not None:
            JupyterHubHTTPClient.instance().connector_options = {"ssl": trust.context}  # what asks the hub who signs in
        self._browsers = Browsers(settings.browsers_max)
        pool = Pool(Upstream("pool", settings.pool_url, settings.upstream_seconds, self._client))
        billing = Billing(Upstream("billing", settings.billing_url, settings.upstream_seconds, self._client))
        watch = DeliveryWatch(billing, settings.hub_token, self._browsers)
        feed = Feed(pool, settings.hub_token, self._browsers, watch, settings.feed_silence_seconds, settings.feed_retry_seconds_max)
        services = Services(
            settings=settings,
            hub=_hub_auth(settings),
            knower=HubAuthenticator(settings.hub_api_url, own_token=settings.hub_token),
            pool=pool,
            billing=billing,
            people=Hub(Upstream("hub", f"{settings.hub_api_url}/", settings.upstream_seconds, self._client), settings.hub_token),
            feed=feed,
            browsers=self._browsers,
            templates=open_environment(settings),
        )
        bounds = {"share": settings.peers_share, "connections_max": settings.connections_max}
        waits = {"idle_connection_timeout": IDLE_SECONDS_MAX, "body_timeout": BODY_SECONDS_MAX}
        tls = shown and shown.context
        self._server = FrontServer(_application(services), max_body_size=FORM_BYTES_MAX, ssl_options=tls, **bounds, **waits)
        self.port = self._listen(settings)
        self._tasks = [asyncio.create_task(feed.run(), name="feed"), asyncio.create_task(watch.run(), name="deliveries")]
        for task in self._tasks:
            task.add_done_callback(_report)

    def _listen(self, settings: Settings) -> int:
        sockets = listen(settings.host, settings.port)
        self._server.add_sockets(sockets)
        taken: int = sockets[0].getsockname()[1]
        fields = {"action": "service_started", "host": settings.host, "port": taken, "prefix": settings.prefix}
        logger.info("dashboards serve", extra=fields)
        return taken

    async def close(self) -> None:
        """Stops listening, ends the event streams and the subscription."""
        self._server.stop()
        self._browsers.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.close_all_connections()
        await self._client.close()
        await JupyterHubHTTPClient.loop_instance().close()
        logger.info("dashboards stopped", extra={"action": "service_stopped", "port": self.port})


async def serve(settings: Settings) -> None:
    """Runs until SIGTERM or SIGINT. Raises SettingsError."""
    stop = asyncio.Event()
    set_when_asked_to_stop(stop)
    service = Service(settings)
    gc.freeze()  # what was made so far stays, and is not looked through again at each collection
    await stop.wait()
    await service.close()


def _application(services: Services) -> Application:
    prefix = services.settings.prefix
    given = {"services": services}
    routes = [(prefix + path, handler, given) for path, handler in ROUTES]
    start = [(prefix + "?", RedirectHandler, {"url": prefix + "usage", "permanent": False})]
    return Application(
        [*routes, *start],
        default_handler_class=NoPage,
        default_handler_args=given,
        cookie_secret=key_of(services.settings.hub_token, "cookies"),
        log_function=lambda handler: None,
    )


def _hub_auth(settings: Settings) -> SignIn:
    return SignIn(
        api_url=settings.hub_api_url, api_token=settings.hub_token, base_url=settings.prefix, cache_max_age=settings.identity_seconds
    )


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.critical("a task failed", extra={"action": "task_failed", "task": task.get_name()}, exc_info=task.exception())
        signal.raise_signal(signal.SIGTERM)
