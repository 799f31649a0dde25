"""The switch of the language, which stands on every page, and which mails and notices follow."""

from __future__ import annotations

import contextlib
from http import HTTPStatus

from forebay_service.languages import CATALOGUES, COOKIE, COOKIE_SETTINGS, Text, came_from
from jupyterhub.utils import get_browser_protocol

from forebay_dashboards.errors import UpstreamRefused, UpstreamUnavailable
from forebay_dashboards.http.handler import PageHandler, Problem


class LanguagePage(PageHandler):
    """``POST language`` remembers the visitor's choice, also for mails, and goes back to where it was made."""

    page = "language"

    async def post(self) -> None:
        language = self.get_body_argument("language", "")
        if language not in CATALOGUES:
            sentence = Text("There are no pages in the language “%(typed)s”.", typed=language[:20])
            raise Problem(HTTPStatus.BAD_REQUEST, Text("That cannot be done"), sentence)
        secure = get_browser_protocol(self.request) == "https"
        self.set_cookie(COOKIE, language, secure=secure, **COOKIE_SETTINGS)
        with contextlib.suppress(UpstreamRefused, UpstreamUnavailable):  # the pages are in the language all the same
            await self.services.billing.prefer_notices(self.token, language=language)
        prefix = self.services.settings.prefix
        self.redirect(came_from(self.request.headers.get("Referer", ""), prefix, f"{prefix}usage"), status=HTTPStatus.SEE_OTHER)
