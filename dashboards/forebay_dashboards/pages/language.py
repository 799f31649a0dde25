"""The switch of the language, which stands on every page."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import urlsplit

from forebay_service.languages import CATALOGUES, COOKIE, COOKIE_SECONDS, Text
from jupyterhub.utils import get_browser_protocol

from forebay_dashboards.http.handler import PageHandler, Problem


class LanguagePage(PageHandler):
    """``POST language`` remembers the visitor's choice and goes back to where it was made."""

    page = "language"

    def post(self) -> None:
        language = self.get_body_argument("language", "")
        if language not in CATALOGUES:
            sentence = Text("There are no pages in the language “%(typed)s”.", typed=language[:20])
            raise Problem(HTTPStatus.BAD_REQUEST, Text("That cannot be done"), sentence)
        secure = get_browser_protocol(self.request) == "https"
        # The spawn page of JupyterHub reads it too, so it is for the whole site.
        self.set_cookie(COOKIE, language, path="/", max_age=COOKIE_SECONDS, httponly=True, secure=secure, samesite="Lax")
        self.redirect(came_from(self.request.headers.get("Referer", ""), self.services.settings.prefix), status=HTTPStatus.SEE_OTHER)


def came_from(referrer: str, prefix: str) -> str:
    """The page of ours under ``prefix`` that a browser came from, without the host; its first page where that is none of ours. Pure."""
    parts = urlsplit(referrer)
    if not parts.path.startswith(prefix):
        return prefix + "usage"
    return parts.path + (f"?{parts.query}" if parts.query else "")
