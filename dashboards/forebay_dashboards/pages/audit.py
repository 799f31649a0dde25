"""*Operator*: who changed what, at the pool, at billing and at the hub."""

from __future__ import annotations

import asyncio
from urllib.parse import urlencode

from forebay_service.languages import Text

from forebay_dashboards.access import View
from forebay_dashboards.errors import SERVICES as NAMES
from forebay_dashboards.errors import FormError
from forebay_dashboards.http.handler import PageHandler, not_so
from forebay_dashboards.rows.pool import AuditPage
from forebay_dashboards.tables.audit import DONE, ENTRIES_PER_PAGE, SERVICES, Service, merge, read_cursor
from forebay_dashboards.upstream.sections import Section, attempt

FIELDS = ("who", "action", "subject")
FIELD_CHARACTERS_MAX = 255


class AuditTrailPage(PageHandler):
    """``GET operator/audit?who=&action=&subject=&cursor=``."""

    view: View = "operator"
    page = "operator_audit"

    async def get(self) -> None:
        wanted = {name: self.get_query_argument(name, "")[:FIELD_CHARACTERS_MAX] for name in FIELDS}
        try:
            cursors = read_cursor(self.get_query_argument("cursor", ""))
        except FormError as error:
            raise not_so(error) from None
        answers = await asyncio.gather(*(self._ask(service, wanted, cursors[service]) for service in SERVICES))
        entries, following = merge({service: one.content for service, one in zip(SERVICES, answers, strict=True)}, cursors)
        given = {name: text for name, text in wanted.items() if text}
        self.show(
            "operator_audit.html",
            entries=entries,
            wanted=wanted,
            problems=[section.problem for section in answers if section.problem],
            older=None if following is None else urlencode({**given, "cursor": following}),
            newest=urlencode(given) if self.get_query_argument("cursor", "") else None,
        )

    async def _ask(self, service: Service, wanted: dict[str, str], cursor: str | None) -> Section[AuditPage]:
        if cursor == DONE:
            return Section(AuditPage(entries=()))
        asked: dict[str, str | int | None] = {name: text or None for name, text in wanted.items()}
        asked |= {"limit": ENTRIES_PER_PAGE, "cursor": cursor}
        ask = {"pool": self.services.pool.audit, "billing": self.services.billing.audit, "hub": self.services.people.audit}[service]
        return await attempt(ask(self.token, asked), Text("Changes at the %(service)s service", service=NAMES[service]))
