"""*Shared notebooks*: what the visitor shares, and what a link opens: somebody's notebook, in a frame where it can do nothing.

It is HTML as its maker chose it: a document of its own without an origin (``sandbox``), so that it could not use the visitor's session even
if it ran; and it runs nothing, sends nothing and loads nothing.
"""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import quote

from forebay_service.languages import Text

from forebay_dashboards.access import View
from forebay_dashboards.errors import FormError, UpstreamRefused, UpstreamUnavailable
from forebay_dashboards.forms.etags import number_in
from forebay_dashboards.http.handler import CONTENT_POLICY, PageHandler, unavailable
from forebay_dashboards.upstream.sections import attempt

FRAMING_POLICY = f"{CONTENT_POLICY}; frame-src 'self'"
NOTEBOOK_POLICY = (
    "sandbox allow-popups allow-popups-to-escape-sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'self'"
)
"""Links lead out of it, into tabs of their own."""


class SharedListPage(PageHandler):
    """``GET`` lists shared notebooks, ``POST`` takes one back. Subclasses say whose."""

    template = ""
    everybody = False

    async def get(self) -> None:
        await self._show(None, None)

    async def post(self) -> None:
        try:
            await self.services.pool.unshare(self.token, number_in(self.get_body_argument("remove", "")))
        except (FormError, UpstreamRefused, UpstreamUnavailable) as error:
            refused = isinstance(error, (FormError, UpstreamRefused))
            self.set_status(HTTPStatus.BAD_REQUEST if refused else HTTPStatus.SERVICE_UNAVAILABLE)
            await self._show(error.text, None)
            return
        await self._show(None, Text("It is shared no longer: its link opens nothing any more."))

    async def _show(self, problem: Text | None, saved: Text | None) -> None:
        shared = await attempt(self.services.pool.shared_notebooks(self.token, self.everybody), Text("Shared notebooks"))
        self.show(self.template, shared=shared, problem=problem, saved=saved)


class SharedPage(SharedListPage):
    """``GET shared``: those of the visitor."""

    view: View = "usage"
    page = "shared"
    template = "shared.html"


class SharedNotebookPage(PageHandler):
    """``GET shared/{number}?key=``: who shares it and until when, around the notebook."""

    view: View = "usage"
    page = "shared_notebook"

    async def get(self, number: str) -> None:
        key = self.get_query_argument("key", "")
        try:
            shared = await self.services.pool.shared_notebook(self.token, int(number), key)
        except (UpstreamRefused, UpstreamUnavailable) as error:
            raise unavailable(Text("No shared notebook"), error) from None
        self.set_header("Content-Security-Policy", FRAMING_POLICY)
        at = f"{self.services.settings.prefix}shared/{shared.id}/page?key={quote(key, safe='')}"
        self.show("shared_notebook.html", shared=shared, at=at)


class NotebookDocument(PageHandler):
    """``GET shared/{number}/page?key=``: the notebook alone."""

    view: View = "usage"
    page = "notebook_document"

    async def get(self, number: str) -> None:
        try:
            found = await self.services.pool.notebook_page(self.token, int(number), self.get_query_argument("key", ""))
        except (UpstreamRefused, UpstreamUnavailable) as error:
            raise unavailable(Text("No shared notebook"), error) from None
        self.set_header("Content-Security-Policy", NOTEBOOK_POLICY)
        self.finish(found.page)
