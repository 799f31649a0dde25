"""*Operator*: one box that finds people, what runs, devices and invoices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from forebay_service.languages import Text

from forebay_dashboards.access import View
from forebay_dashboards.http.handler import PageHandler
from forebay_dashboards.rows.billing import InvoiceRow, SearchHits
from forebay_dashboards.rows.pool import Device, Lease, Session
from forebay_dashboards.tables.activity import TABLES, live_page
from forebay_dashboards.tables.table import SEARCH_CHARACTERS_MAX, read_query
from forebay_dashboards.text import codes
from forebay_dashboards.upstream.sections import attempt

SHOWN_MAX = 8
"""Rows of each kind; where there are more, a link leads to all."""
LOOK_BACK_NS = 62 * 86_400 * 10**9
"""People are found who used something in so long, or since the beginning of that month."""


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
        since_ns = max(0, self.now_ns - LOOK_BACK_NS)
        booked = await attempt(self.services.billing.search(self.token, search, since_ns, SHOWN_MAX), Text("Tenants, users and invoices"))
        people, invoices = booked_hits(booked.content) if booked.content else ((), ())
        found = tuple(kind for kind in (*people, *self._live(search), *invoices) if kind.count)
        self.show("operator_search.html", search=search, kinds=found, problems=[booked.problem] if booked.problem else ())

    def _live(self, search: str) -> Iterable[Hits]:
        """What the pool tells, as its own tables find it."""
        for name, table in TABLES.items():
            if name == "queue":  # those who wait are sessions
                continue
            page = live_page(name, self.services.feed.pool_copy, read_query({"q": search}, table))
            hits = tuple(_live_hit(seen.row) for seen in page.rows[:SHOWN_MAX])
            yield Hits(table.title, hits, page.count, f"operator/{name}?{urlencode({'q': search})}")


def booked_hits(found: SearchHits) -> tuple[tuple[Hits, ...], tuple[Hits, ...]]:
    """People and invoices that billing found, as links."""
    tenants = tuple(Hit(name, "", f"operator/tenant/{quote(name, safe='')}") for name in found.tenants)
    users = tuple(
        Hit(one.user, one.tenant, f"operator/quotas?{urlencode({'tenant': one.tenant, 'user': one.user})}") for one in found.users
    )
    people = Hits(Text("Tenants"), tenants, found.tenant_count), Hits(Text("Users"), users, found.user_count)
    return people, (Hits(Text("Invoices"), tuple(map(_invoice_hit, found.invoices)), found.invoice_count),)


def _invoice_hit(row: InvoiceRow) -> Hit:
    return Hit(row.number, f"{row.tenant}, {row.month}, {row.total} {row.currency}", f"invoice?number={quote(row.number)}")


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
