"""*Operator*: flavors that the devices which are here could serve, to be made one by one."""

from __future__ import annotations

import logging
from http import HTTPStatus

from forebay_service.languages import Text

from forebay_dashboards.access import View
from forebay_dashboards.errors import UpstreamRefused, UpstreamUnavailable
from forebay_dashboards.forms.etags import expecting, overtaken, stamp_of
from forebay_dashboards.http.handler import PageHandler
from forebay_dashboards.rows.pool import Suggestion
from forebay_dashboards.upstream.sections import attempt

NAME_CHARACTERS_MAX = 64
GONE = Text("This is not suggested any more: somebody made the flavor, or the devices are others by now.")

logger = logging.getLogger(__name__)


class SuggestionsPage(PageHandler):
    """``GET operator/suggestions`` shows what could be made, ``POST`` makes the one that is named. htmx gets either as a fragment."""

    view: View = "operator"
    page = "operator_suggestions"

    async def get(self) -> None:
        await self._show(None, None)

    async def post(self) -> None:
        name = self.get_body_argument("name", "")[:NAME_CHARACTERS_MAX]
        try:
            found = {one.name: one for one in await self.services.pool.suggestions(self.token)}
            problem = await self._make(found[name]) if name in found else GONE
        except (UpstreamRefused, UpstreamUnavailable) as error:
            problem = error.text
        if problem is not None:
            self.set_status(HTTPStatus.CONFLICT)
            await self._show(problem, None)
        elif "HX-Request" in self.request.headers:
            await self._show(None, found[name])
        else:
            self.redirect(f"{self.services.settings.prefix}operator/flavors", status=HTTPStatus.SEE_OTHER)

    async def _make(self, wanted: Suggestion) -> Text | None:
        """None once it is made; why not where somebody else was first. Raises UpstreamRefused, UpstreamUnavailable."""
        expected = expecting(stamp_of(wanted.etag))
        try:
            await self.services.pool.set_flavor(
                self.token, wanted.name, wanted.memory_bytes, wanted.equivalents, wanted, expected
            )
        except UpstreamRefused as error:
            if overtaken(error):
                return GONE
            raise
        fields = {"action": "flavor_made", "who": self.visitor.name, "flavor": wanted.name, "memory_bytes": wanted.memory_bytes}
        logger.info("a flavor is made", extra=fields)
        self.services.browsers.tell_all("prices")
        return None

    async def _show(self, problem: Text | None, made: Suggestion | None) -> None:
        suggestions = await attempt(self.services.pool.suggestions(self.token), Text("Suggestions"))
        template = "fragments/suggestions.html" if "HX-Request" in self.request.headers else "operator_suggestions.html"
        self.show(template, suggestions=suggestions.content, problems=[one for one in (problem, suggestions.problem) if one], made=made)
