"""``health`` and ``metrics``."""

from __future__ import annotations

from http import HTTPStatus

from forebay_service.handler import may_scrape
from forebay_service.identity import Identity, IdentityRefused, identity_of
from forebay_service.languages import Text
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from forebay_dashboards.access import sees_all
from forebay_dashboards.http.handler import Answer, Problem
from forebay_dashboards.http.templating import STATIC_FILES, static_content

STATIC_SECONDS = 365 * 86400
"""Addresses of static files change with their content, so that browsers may keep them."""


class HealthProbe(Answer):
    """200 as soon as requests are answered; says whether the pool's events come in, and what is wrong with the hub."""

    page = "health"

    def get(self) -> None:
        ill, live = self.services.knower.ill, self.services.feed.connected
        self.finish({"status": "ok", "troubles": {} if ill is None else {"hub": ill}, "live": live})


class MetricsProbe(Answer):
    """Told to the setting ``metrics_token``, or without one to programs on this host that come straight; and to operators and services."""

    page = "metrics"

    async def get(self) -> None:
        if not may_scrape(self.request, self.services.settings.metrics_token) and not sees_all(await self._bearer()):
            sentence = Text("Metrics are read with the token of an operator or a service.")
            raise Problem(HTTPStatus.FORBIDDEN, Text("Not yours to open"), sentence)
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.finish(generate_latest())

    async def _bearer(self) -> Identity | None:
        token = self.services.hub.get_token(self, in_cookie=False)
        model = await self.services.hub.user_for_token(token, sync=False) if token else None
        try:
            return identity_of(model) if model else None
        except IdentityRefused:
            return None


class StaticFile(Answer):
    """Style, script and icon; nothing in them is anybody's."""

    page = "static"

    def get(self, name: str) -> None:
        if name not in STATIC_FILES:
            raise Problem(HTTPStatus.NOT_FOUND, Text("No such file"), Text("There is no such file."))
        self.set_header("Content-Type", STATIC_FILES[name])
        self.set_header("Cache-Control", f"public, max-age={STATIC_SECONDS}, immutable")
        self.finish(static_content(name))


class HelpPage(Answer):
    """What people need to begin with; it is the same for everybody, and may be read before signing in."""

    page = "help"

    def get(self) -> None:
        self.finish(self.in_language("help.html"))
