"""The base of all handlers: who is asking, and what they get when something goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo
from http import HTTPStatus
from typing import Any

from forebay_service.handler import SafeHandler
from forebay_service.identity import (
    TENANT,
    HubAuthenticator,
    Identity,
    IdentityRefused,
    IdentityUnavailable,
    identity_of,
    reason_of,
)
from forebay_service.languages import COOKIE, Text, language_of
from forebay_service.peers.front import learn
from jinja2 import Environment
from jupyterhub.services.auth import HubOAuth, HubOAuthCallbackHandler, HubOAuthenticated, UserNotAllowed
from tornado.web import HTTPError

from forebay_dashboards.access import View, may_open, require
from forebay_dashboards.errors import AccessRefused, FormError, MoneyError, UpstreamRefused, UpstreamUnavailable
from forebay_dashboards.http.templating import render
from forebay_dashboards.live.browsers import Browsers
from forebay_dashboards.live.feed import Feed
from forebay_dashboards.metrics import REQUEST_SECONDS, REQUESTS
from forebay_dashboards.settings import Settings
from forebay_dashboards.tables.visible import visible_leases, visible_queue
from forebay_dashboards.text.times import zone_of
from forebay_dashboards.upstream.billing import Billing
from forebay_dashboards.upstream.hub import Hub
from forebay_dashboards.upstream.pool import Pool

ZONE_COOKIE = "forebay_zone"
OF_EVERY_FORM = frozenset({"_xsrf", "question", "asked"})
"""Fields that say nothing of what a form is for."""
SIGN_INS_BEGUN_MAX = 8
"""Tabs of a browser that may be on their way to sign in at a time."""
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Services:
    """What handlers work with."""

    settings: Settings
    hub: HubOAuth
    knower: HubAuthenticator
    """Tells whether the hub is well."""
    pool: Pool
    billing: Billing
    people: Hub
    feed: Feed
    browsers: Browsers
    templates: Environment


class Problem(HTTPError):
    """An answer that is a page with a title and a sentence for the visitor."""

    def __init__(self, status: HTTPStatus, title: Text, sentence: Text) -> None:
        super().__init__(status, "%s", str(sentence))
        self.title = title
        self.sentence = sentence


class Answer(SafeHandler):
    """What every answer of this service has: safe headers, a page for errors, and its figures."""

    services: Services
    page = "other"
    counted_seconds = True

    def initialize(self, services: Services) -> None:
        self.services = services

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("Content-Security-Policy", CONTENT_POLICY)
        self.set_header("Referrer-Policy", "same-origin")

    def on_finish(self) -> None:
        REQUESTS.labels(self.page, str(self.get_status())).inc()
        if self.counted_seconds:
            REQUEST_SECONDS.labels(self.page).observe(self.request.request_time())

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        title, sentence = (error.title, error.sentence) if isinstance(error, Problem) else _explain(status_code)
        template = "fragments/problem.html" if self.request.headers.get("HX-Request") else "error.html"
        self.finish(self.in_language(template, title=title, sentence=sentence, status=status_code))

    @property
    def language(self) -> str:
        """The visitor's: chosen, or as the browser asks for."""
        return language_of(self.get_cookie(COOKIE), self.request.headers.get("Accept-Language", ""))

    def in_language(self, template: str, **values: Any) -> str:
        """A page or a fragment in the visitor's language, and headers that say so."""
        self.set_header("Content-Language", self.language)
        self.set_header("Vary", "Cookie, Accept-Language")
        return render(self.services.templates, template, self.language, **values)


def removes(sent: Mapping[str, list[bytes]]) -> bool:
    """Whether a form that was sent removes something: so all pages name such a button."""
    return "remove" in sent or b"remove" in sent.get("action", ())


class PageHandler(HubOAuthenticated, Answer):  # type: ignore[misc] # JupyterHub has no type information
    """A request of a person (or of a program with a person's token). Subclasses say which ``view`` it belongs to."""

    view: View = "usage"
    here = ""
    """The entry of the navigation that the page is under, where that is not the view's own."""
    visitor: Identity
    token: str

    def initialize(self, services: Services) -> None:
        super().initialize(services)
        self.hub_auth = services.hub

    async def prepare(self) -> None:
        model = await self._identify()
        if model is None:
            self._send_to_sign_in()
            return
        self.current_user = model
        self.check_xsrf_cookie()
        try:
            self.visitor = identity_of(model)
        except IdentityRefused as error:
            raise not_yours(reason_of(error)) from None
        learn(self.request, self.settings, self.visitor.tenant, self.visitor.name, self.visitor.kind == "service")
        self.token = self.hub_auth.get_token(self)
        try:
            require(self.view, self.visitor)
        except AccessRefused as error:
            raise not_yours(error.text) from None
        sent = self.request.body_arguments
        if removes(sent) and "asked" not in sent:
            self._ask_first(sent)

    def _ask_first(self, sent: Mapping[str, list[bytes]]) -> None:
        """What removes something is asked first. Scripts have asked already; without them the same form comes again, with the question."""
        fields = [(name, value.decode("utf-8", "replace")) for name, values in sent.items() if name != "question" for value in values]
        question = self.get_body_argument("question", "") or Text("Remove it?")
        self.show("question.html", question=question, fields=fields, at=self.request.uri, back=self.request.path)

    async def _identify(self) -> dict[str, Any] | None:
        try:
            model = await asyncio.wait_for(self.hub_auth.get_user(self, sync=False), self.services.settings.upstream_seconds)
            if not model and self.hub_auth.get_token(self):  # refused; where the hub refuses everybody, signing in would not help
                await self.services.knower.check_hub()
            return self.check_hub_user(model) if model else None
        except IdentityUnavailable as error:
            raise HTTPError(HTTPStatus.SERVICE_UNAVAILABLE, "%s", str(error)) from None
        except UserNotAllowed:
            raise not_yours(Text("You are signed in, but may not open these pages. Ask an operator for access.")) from None
        except TimeoutError:
            raise HTTPError(HTTPStatus.SERVICE_UNAVAILABLE, "JupyterHub did not answer in time") from None
        except HTTPError as error:
            if error.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise HTTPError(HTTPStatus.SERVICE_UNAVAILABLE, error.log_message) from None
            raise

    def _send_to_sign_in(self) -> None:
        self.current_user = None
        navigates = self.request.method == "GET" and self.request.headers.get("Sec-Fetch-Mode", "navigate") == "navigate"
        if not navigates or self.request.headers.get("HX-Request") or self.request.headers.get("Authorization"):
            raise HTTPError(HTTPStatus.FORBIDDEN)
        self._forget_old_sign_ins()
        self.redirect(self.get_login_url())

    def _forget_old_sign_ins(self) -> None:
        """JupyterHub's library leaves a cookie for each sign-in that was begun. With some hundreds no proxy takes a request any more."""
        begun = [name for name in self.request.cookies if name.startswith(self.hub_auth.state_cookie_name)]
        if len(begun) >= SIGN_INS_BEGUN_MAX:
            self.hub_auth.clear_oauth_state_cookies(self)

    @property
    def zone(self) -> tzinfo:
        """The time zone the browser told in a cookie; UTC before it did."""
        return zone_of(self.get_cookie(ZONE_COOKIE))

    @property
    def zone_name(self) -> str:
        """Its IANA name."""
        return str(getattr(self.zone, "key", "UTC"))

    @property
    def now_ns(self) -> int:
        """Unix time."""
        return time.time_ns()

    def present(self) -> dict[str, object]:
        """What runs and what waits now, as far as this page shows it."""
        pool_copy = self.services.feed.pool_copy
        return {
            "running": visible_leases(pool_copy, self.view, self.visitor, time.monotonic_ns()),
            "waiting": visible_queue(pool_copy, self.view, self.visitor),
        }

    def show(self, template: str, **values: Any) -> None:
        """Answers with a page or a fragment."""
        self.finish(self.rendered(template, **values))

    def rendered(self, template: str, **values: Any) -> str:
        """A page or a fragment for this visitor."""
        shared = {
            "visitor": self.visitor,
            "views": [view for view in ("usage", "tenant", "operator") if may_open(view, self.visitor)],
            "view": self.view,
            "here": self.here or self.view,
            "is_owner": self.visitor.may(TENANT),
            "xsrf": _text(self.xsrf_token),
            "feed": self.services.feed,
        }
        return self.in_language(template, **shared, **values)


class SignedIn(HubOAuthCallbackHandler, Answer):  # type: ignore[misc] # JupyterHub has no type information
    """Where JupyterHub sends the browser back to after sign-in."""

    page = "oauth_callback"

    def initialize(self, services: Services) -> None:
        super().initialize(services)
        self.hub_auth = services.hub

    async def get(self) -> None:
        """The browser goes on at once; then mails and notices to who chose no language yet get that of the pages."""
        await HubOAuthCallbackHandler.get(self)
        token, billing = self.hub_auth.get_token(self), self.services.billing
        with contextlib.suppress(UpstreamRefused, UpstreamUnavailable):  # the next sign-in tells it
            if (await billing.notice_preferences(token)).language is None:
                await billing.prefer_notices(token, language=self.language)


class NoPage(Answer):
    """Any address that is not ours."""

    page = "unknown"

    def prepare(self) -> None:
        raise HTTPError(HTTPStatus.NOT_FOUND)


def not_yours(sentence: Text) -> Problem:
    """The refusal of a page or an action."""
    return Problem(HTTPStatus.FORBIDDEN, Text("Not yours to open"), sentence)


def unavailable(title: Text, error: UpstreamRefused | UpstreamUnavailable) -> Problem:
    """What an answer of pool or billing becomes that a page cannot be without."""
    if isinstance(error, UpstreamRefused):
        return Problem(HTTPStatus(error.status), title, error.text)
    sentence = Text("%(problem)s Try again in a moment.", problem=error.text)
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, Text("%(missing)s right now", missing=title), sentence)


def not_so(error: FormError | MoneyError) -> Problem:
    """The answer to a form field or an address that holds what it must not."""
    return Problem(HTTPStatus.BAD_REQUEST, Text("That cannot be done"), error.text)


def _explain(status: int) -> tuple[Text, Text]:
    match status:
        case HTTPStatus.NOT_FOUND:
            return Text("No such page"), Text("There is nothing at this address.")
        case HTTPStatus.METHOD_NOT_ALLOWED:
            return Text("That cannot be done"), Text("This address does not take that kind of request.")
        case HTTPStatus.FORBIDDEN:
            sentence = Text("Your sign-in has ended, or is another one than this page was opened with. Reload the page.")
            return Text("Not signed in here"), sentence
        case HTTPStatus.BAD_REQUEST:
            return Text("That cannot be read"), Text("The request was incomplete. Go back, reload the page, and try again.")
        case HTTPStatus.SERVICE_UNAVAILABLE:
            sentence = Text("JupyterHub cannot be asked who you are right now. Nothing is lost; reload in a moment.")
            return Text("Try again in a moment"), sentence
    sentence = Text("This page failed; the reason is in the log of the dashboards service. Reload, or tell an operator.")
    return Text("Something failed here"), sentence


def _text(token: str | bytes) -> str:
    return token.decode("ascii") if isinstance(token, bytes) else token
