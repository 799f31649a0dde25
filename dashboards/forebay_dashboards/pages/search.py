"""*Operator*: one box that finds people, what runs, devices and invoices."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from urllib.parse import quote, urlencode

from forebay_service.languages import Text

from forebay_dashboards.access import View
from forebay_dashboards.http.handler import PageHandler
from forebay_dashboards.rows import Device, InvoiceRow, Lease, Session, SummaryRow
from forebay_dashboards.tables.activity import TABLES, live_page
from forebay_dashboards.tables.table import SEARCH_CHARACTERS_MAX, read_query
from forebay_dashboards.text import codes
from forebay_dashboards.text.times import Period
from forebay_dashboards.upstream.sections import attempt

SHOWN_MAX = 8
"""Rows of each kind; where there are more, a link leads to all."""
LOOK_BACK_NS = 62 * 86_400 * 10**9
"""People are found who used something in so long."""


@dataclass(frozen=True)
class Hit:
    """Something that was found: what it is called, what else is known of it, and where it leads."""

    name: str
    more: str
    path: str


@dataclass(frozen=True)
class Hits:
    """Rows of one kind: the first ones, how many there are, and the page that has all of them, if any."""

    title: Text
    shown: tuple[Hit, ...]
    count: int
    path: str | None = None


class SearchPage(PageHandler):
    """``GET operator/search?q=``: every word must occur in what is found."""

    view: View = "operator"
    page = "operator_search"

    async def get(self) -> None:
        search = " ".join(self.get_query_argument("q", "")[:SEARCH_CHARACTERS_MAX].split())
        if not search:
            self.show("operator_search.html", search="", kinds=(), problems=())
            return
        recent = Period("recent", Text("Last two months"), max(0, self.now_ns - LOOK_BACK_NS), self.now_ns)
        billing = self.services.billing
        people, invoices = await asyncio.gather(
            attempt(billing.summary(self.token, "tenant,user", recent), Text("Tenants and users")),
            attempt(billing.invoices(self.token), Text("Invoices")),
        )
        kinds = [*people_found(people.content or (), search), *self._live(search), invoices_found(invoices.content or (), search)]
        found = tuple(kind for kind in kinds if kind.count)
        problems = tuple(section.problem for section in (people, invoices) if section.problem)
        self.show("operator_search.html", search=search, kinds=found, problems=problems)

    def _live(self, search: str) -> Iterable[Hits]:
        """What the pool tells, as its own tables find it."""
        for name, table in TABLES.items():
            if name == "queue":  # those who wait are sessions
                continue
            page = live_page(name, self.services.feed.pool_copy, read_query({"q": search}, table))
            hits = tuple(_live_hit(seen.row) for seen in page.rows[:SHOWN_MAX])
            yield Hits(table.title, hits, page.count, f"operator/{name}?{urlencode({'q': search})}")


def people_found(rows: Iterable[SummaryRow], search: str) -> tuple[Hits, Hits]:
    """The tenants and users that used something lately and are called so."""
    used = list(rows)
    tenants = sorted({row.tenant or "" for row in used if _has(search, row.tenant)})
    users = sorted({(row.user or "", row.tenant or "") for row in used if _has(search, row.user, row.tenant)})
    of_tenants = [Hit(name, "", f"operator/tenant/{quote(name, safe='')}") for name in tenants]
    of_users = [Hit(user, tenant, f"operator/quotas?{urlencode({'tenant': tenant, 'user': user})}") for user, tenant in users]
    return _hits(Text("Tenants"), of_tenants), _hits(Text("Users"), of_users)


def invoices_found(rows: Iterable[InvoiceRow], search: str) -> Hits:
    """The invoices with this number, tenant, month or state."""
    found = [row for row in rows if _has(search, row.number, row.tenant, row.month, row.state)]
    return _hits(Text("Invoices"), [_invoice_hit(row) for row in found])


def _invoice_hit(row: InvoiceRow) -> Hit:
    return Hit(row.number, f"{row.tenant}, {row.month}, {row.total} {row.currency}", f"invoice?number={quote(row.number)}")


def _hits(title: Text, found: list[Hit]) -> Hits:
    return Hits(title, tuple(islice(found, SHOWN_MAX)), len(found))


def _has(search: str, *texts: str | None) -> bool:
    whole = " ".join(text for text in texts if text).casefold()
    return all(word in whole for word in search.casefold().split())


def _live_hit(row: Lease | Session | Device) -> Hit:
    if isinstance(row, Device):
        return Hit(
            row.device,
            Text("%(model)s, %(state)s", model=row.model, state=codes.word(row.state, "state")),
            f"operator/devices?{urlencode({'q': row.device})}",
        )
    what = row.span.label if row.span else ""
    if isinstance(row, Lease):
        more = Text("%(what)s, %(flavor)s on %(model)s", what=what, flavor=row.flavor, model=row.device_model)
        path = f"operator/leases?{urlencode({'q': row.lease})}"
    else:
        state = codes.word(row.state, "state")
        more = Text("%(what)s, %(flavor)s, %(state)s", what=what or row.process, flavor=row.flavor, state=state)
        path = f"operator/sessions?{urlencode({'q': row.session})}"
    return Hit(Text("%(user)s of %(tenant)s", user=row.user, tenant=row.tenant), more, path)
