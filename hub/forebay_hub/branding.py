"""How JupyterHub's own pages look: an installation's name, picture and help, Forebay's colours, and the reader's language.

``hub.toml`` may have the table ``[look]``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from http import HTTPStatus
from importlib import resources
from pathlib import Path
from urllib.parse import urlsplit

from forebay_service.errors import SettingsError
from forebay_service.identity import BILLING, COMPUTE, OPERATE, TENANT
from forebay_service.languages import CATALOGUES, COOKIE, COOKIE_SETTINGS, NAMES, SOURCE, Text, came_from, language_of
from jinja2 import Environment, pass_context
from jinja2.ext import InternationalizationExtension
from jinja2.runtime import Context
from jupyterhub.handlers import BaseHandler
from jupyterhub.utils import get_browser_protocol
from markupsafe import Markup
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

from forebay_hub.tenants import read_file

STATIC = resources.files("forebay_service").joinpath("static")
PAGES = "services/dashboards/"
"""Where the dashboards are, below the address of the installation."""
ASKING_SECONDS = 5
"""How long billing may take to answer, and a token is good that asks it."""
PLACES = {
    "usage": (Text("My usage"), Text("What ran, how long it computed, and what it costs.")),
    "jobs": (Text("Jobs"), Text("Scripts and notebooks that run while you are away.")),
    "tenant": (Text("Tenant"), Text("People, budgets, alerts, reports and bills.")),
    "operator": (Text("Operator"), Text("Devices, work, tenants, prices and bills of this installation.")),
}
"""What is there, and what for."""


@dataclass(frozen=True)
class Branding:
    """What an operator may say of it. ``logo`` is a file of any format that browsers show; ``help_url`` the operator's own help."""

    name: str = "Forebay"
    logo: str = ""
    help_url: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            raise SettingsError("look.name must not be empty; leave it out for Forebay")
        if self.logo and not Path(self.logo).is_file():
            raise SettingsError(f"look.logo names {self.logo}, which is no file")
        if self.help_url and urlsplit(self.help_url).scheme not in ("http", "https"):
            raise SettingsError(f"look.help_url must begin with https:// or http://, not be {self.help_url!r}")

    @property
    def logo_file(self) -> str:
        """The operator's, or Forebay's own icon."""
        return self.logo or str(STATIC.joinpath("icon.svg"))


OURS = Branding()


def read_branding(path: Path) -> Branding:
    """The table ``[look]`` of a TOML file, which may have none. Raises SettingsError."""
    table = read_file(path).get("look", {})
    known = {field.name for field in fields(Branding)}
    if not isinstance(table, Mapping) or not table.keys() <= known or not all(isinstance(value, str) for value in table.values()):
        raise SettingsError(f"[look] may have the texts {', '.join(sorted(known))}, and nothing else")
    return Branding(**table)


def templates_of(branding: Branding) -> type[InternationalizationExtension]:
    """What JupyterHub's templates get from us: gettext in the reader's language, and the branding."""

    class Texts(InternationalizationExtension):
        def __init__(self, environment: Environment) -> None:
            super().__init__(environment)
            environment.install_gettext_callables(_gettext, _ngettext, newstyle=True)  # type: ignore[attr-defined] # the extension adds it
            environment.globals.update(
                branding=branding,
                colours=Markup(STATIC.joinpath("colours.css").read_text(encoding="utf-8")),  # noqa: S704 - a file of ours
                languages=NAMES,
                reader_language=_language,
                places=_places,
            )

    return Texts


@pass_context
def _language(context: Context) -> str:
    """Of who reads the page: JupyterHub gives its templates no request, but a method of the one who answers it."""
    handler = getattr(context.get("static_url"), "__self__", None)
    if not isinstance(handler, BaseHandler):
        return SOURCE
    return language_of(handler.get_cookie(COOKIE), handler.request.headers.get("Accept-Language", ""))


@pass_context
def _gettext(context: Context, message: str) -> str:
    return CATALOGUES[_language(context)].gettext(message)


@pass_context
def _ngettext(context: Context, one: str, many: str, count: int) -> str:
    return CATALOGUES[_language(context)].ngettext(one, many, count)


@pass_context
def _places(context: Context) -> list[tuple[str, str, str]]:
    """Name, address, and what it is for, of each page of the dashboards that the visitor may open."""
    scopes, root = context.get("parsed_scopes") or {}, context["prefix"] + PAGES
    if context.get("user") is None:
        return []
    names = {"usage": True, "jobs": COMPUTE in scopes, "tenant": TENANT in scopes or BILLING in scopes, "operator": OPERATE in scopes}
    language = _language(context)
    return [
        (name.said(language), root + place, sentence.said(language)) for place, (name, sentence) in PLACES.items() if names[place]
    ]


class LanguagePage(BaseHandler):  # type: ignore[misc] # jupyterhub has no type information
    """``POST language`` remembers the visitor's choice, signed in or not, for mails too, and goes back to where it was made."""

    async def post(self) -> None:
        language = self.get_body_argument("language", "")
        if language in CATALOGUES:
            self.set_cookie(COOKIE, language, secure=get_browser_protocol(self.request) == "https", **COOKIE_SETTINGS)
            if self.current_user is not None and "billing" in self.services:
                await self._prefer(language)
        home = self.hub.base_url
        self.redirect(came_from(self.request.headers.get("Referer", ""), home, f"{home}home"), status=HTTPStatus.SEE_OTHER)

    async def _prefer(self, language: str) -> None:
        """Has billing write mails and notices in it; without an answer the pages are in the language all the same."""
        user, address = self.current_user, self.services["billing"].server.url
        scope = OPERATE if OPERATE in self.expanded_scopes else f"{COMPUTE}!user"
        try:
            token = user.new_api_token(note="Forebay's choice of a language", expires_in=ASKING_SECONDS, scopes=[scope])
            asked = HTTPRequest(
                f"{address}api/notices/preferences", "PATCH", {"Authorization": f"token {token}", "Content-Type": "application/json"},
                json.dumps({"language": language}), connect_timeout=ASKING_SECONDS, request_timeout=ASKING_SECONDS,
            )  # fmt: skip
            await AsyncHTTPClient().fetch(asked)
        except (ValueError, HTTPClientError, OSError) as error:  # the first: who belongs to no tenant, and is told nothing
            fields = {"action": "language_untold", "user": user.name}
            self.log.warning("the language of mails to %s is not changed: %s", user.name, error, extra=fields)


ROUTES = ((r"/language", LanguagePage),)
