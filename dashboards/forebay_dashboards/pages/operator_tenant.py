"""*Operator*: one tenant: what it used, what it is held to and billed by, what it owes, and who belongs to it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote

from forebay_service.languages import Text

from forebay_dashboards.access import View
from forebay_dashboards.errors import UpstreamRefused, UpstreamUnavailable
from forebay_dashboards.forms.etags import expecting, overtaken
from forebay_dashboards.forms.tenant_terms import FIELD_CHARACTERS_MAX, Change, TermForm, Terms, judge, open_form, refused, stale
from forebay_dashboards.http.handler import Problem
from forebay_dashboards.pages.my_tenant import TenantFacts
from forebay_dashboards.rows import Quota, Standing
from forebay_dashboards.tables.visible import visible_leases, visible_queue
from forebay_dashboards.text.times import month_of, recent_months
from forebay_dashboards.upstream.sections import Section, attempt

PAGE = "operator_tenant.html"
ROLES_MAX = 500
"""Members whose roles are asked for; a hub is asked for each."""

F = TypeVar("F")

logger = logging.getLogger(__name__)


class TenantDesk(TenantFacts):
    """What all handlers of a tenant's page share: what is known of it."""

    view: View = "operator"

    async def terms(self, tenant: str) -> Terms:
        """What the tenant is held to and billed by. Raises Problem for a tenant that nobody knows."""
        billing, token = self.services.billing, self.token
        standing, quota, plans, budgets = await asyncio.gather(
            self.standing(tenant),
            attempt(self.services.pool.quota(token, tenant, None), Text("The quota")),
            attempt(billing.plans(token, tenant), Text("Plans")),
            attempt(billing.budgets(token, tenant), Text("Budgets")),
        )
        found = Terms(tenant, month_of(self.now_ns).name, standing, quota, plans, budgets)
        if not await self._is_there(found):
            raise Problem(
                HTTPStatus.NOT_FOUND,
                Text("No such tenant"),
                Text(
                    "There is no tenant “%(name)s”: JupyterHub has no group tenant-%(name)s, and nothing was written down for it. "
                    "Add it to the hub's directory of people, or choose one from the table of tenants.",
                    name=tenant[:64],
                ),
            )
        return found

    async def standing(self, tenant: str) -> Section[Standing]:
        """What billing knows of it in all."""
        found = await attempt(self.services.billing.standings(self.token, tenant), Text("How the tenant stands at billing"))
        return Section(found.content[0] if found.content else None, found.problem)

    async def _is_there(self, terms: Terms) -> bool:
        """What cannot be told right now counts as there: then the page says what is missing."""
        standing, quota = terms.standing.content, terms.quota.content
        if standing is None or standing.known or quota is None or quota.model_copy(update={"etag": None}) != Quota(tenant=terms.tenant):
            return True
        try:
            await self.services.people.members(terms.tenant)
        except UpstreamRefused as error:
            return error.status != HTTPStatus.NOT_FOUND
        except UpstreamUnavailable:
            return True
        return True

    @property
    def fragment(self) -> bool:
        """Whether htmx asks, which wants a part and not the page."""
        return "HX-Request" in self.request.headers

    async def show_page(self, terms: Terms, form: TermForm | None, saved: Text | None = None) -> None:
        """The whole page, one part of the terms as a form where there is one."""
        chosen = self.month_asked()
        tenant = terms.tenant
        spend, owed, people = await asyncio.gather(self.spend_of(tenant, chosen), self.owed_by(tenant), self.people(tenant))
        months = {"months": recent_months(self.now_ns), "this_month": month_of(self.now_ns)}
        self.show(PAGE, terms=terms, form=form, saved=saved, **months, **spend, **owed, **people, **self.present_of(tenant))

    def present_of(self, tenant: str) -> dict[str, object]:
        """What of the tenant runs and waits now."""
        pool_copy, view, visitor = self.services.feed.pool_copy, self.view, self.visitor
        running = [run for run in visible_leases(pool_copy, view, visitor, time.monotonic_ns()) if run.lease.tenant == tenant]
        return {"running": running, "waiting": [one for one in visible_queue(pool_copy, view, visitor) if one.tenant == tenant]}

    async def people(self, tenant: str) -> dict[str, object]:
        """The tenant's people and their roles, and who gets its alerts and reports."""
        channels, recipients, members = await asyncio.gather(
            attempt(self.services.billing.channels(self.token, tenant), Text("Channels of alerts")),
            attempt(self.services.billing.recipients(self.token, tenant), Text("Recipients of reports")),
            attempt(self.services.people.members(tenant), Text("Members")),
        )
        asked = (members.content or ())[:ROLES_MAX]
        roles = await attempt(self.services.people.roles(tenant, asked), Text("Roles of members"))
        return {"channels": channels, "recipients": recipients, "people": members, "roles": roles}


class OperatorTenantPage(TenantDesk):
    """``GET operator/tenant/{name}?month=``, and its fragments ``spend``, ``live``, ``terms``, ``owed`` and ``people``."""

    page = "operator_tenant"

    async def get(self, name: str, part: str | None = None) -> None:
        if part == "live":
            self.show("fragments/tenant_live.html", **self.present_of(name))
        elif part == "spend":
            self.show("fragments/tenant_spend.html", **await self.spend_of(name, self.month_asked()))
        elif part == "people":
            self.show("fragments/tenant_people.html", tenant=name, **await self.people(name))
        elif part == "owed":
            values = {"standings": await self.standing(name), "this_month": month_of(self.now_ns)}
            self.show("fragments/tenant_owed.html", tenant=name, **values, **await self.owed_by(name))
        elif part == "terms":
            self.show("fragments/tenant_terms.html", terms=await self.terms(name), form=None)
        else:
            await self.show_page(await self.terms(name), None)


class TermPage(TenantDesk):
    """``GET operator/tenant/{name}/terms/{key}``: a part of the terms as it is."""

    page = "operator_term"

    async def get(self, name: str, key: str) -> None:
        terms = await self.terms(name)
        if key not in terms.keys:
            raise _gone(key)
        if self.fragment:
            self.show("fragments/term_row.html", terms=terms, key=key, saved=None)
        else:
            await self.show_page(terms, None)


class TermEditPage(TenantDesk):
    """``GET operator/tenant/{name}/terms/{key}/edit`` shows the part as a form, ``POST`` saves it."""

    page = "operator_term_edit"

    async def get(self, name: str, key: str) -> None:
        terms = await self.terms(name)
        await self._show_form(terms, self._formed(terms, key, lambda: open_form(terms, key, secrets.token_hex(16))))

    async def post(self, name: str, key: str) -> None:
        typed = {field: self.get_body_argument(field, "", strip=False) for field in self.request.body_arguments}
        terms = await self.terms(name)
        judged = self._formed(terms, key, lambda: judge(terms, key, typed, self.now_ns))
        if isinstance(judged, TermForm):
            self.set_status(HTTPStatus.BAD_REQUEST)
            await self._show_form(terms, judged)
            return
        try:
            await self._save(name, judged)
        except (UpstreamRefused, UpstreamUnavailable) as error:
            self.set_status(HTTPStatus(error.status) if isinstance(error, UpstreamRefused) else HTTPStatus.SERVICE_UNAVAILABLE)
            await self._show_refused(terms, key, typed, error)
            return
        self.services.browsers.tell_all("tenants")
        fields = {"action": "operator_terms_set", "who": self.visitor.name, "tenant": name, "kind": judged.kind}
        logger.info("a tenant's terms are set", extra=fields)
        await self._show_saved(name, key, terms, judged)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """What goes wrong is told beside the form, which stays with what was typed."""
        if self.fragment:
            self.set_header("HX-Retarget", "#saved")
            self.set_header("HX-Reswap", "innerHTML")
        super().write_error(status_code, **kwargs)

    def _formed(self, terms: Terms, key: str, make: Callable[[], F]) -> F:
        problem = terms.problem(key)
        if problem is not None:
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, Text("Not right now"), problem)
        try:
            return make()
        except KeyError:
            raise _gone(key) from None

    async def _save(self, name: str, change: Change) -> None:
        billing, token, expected = self.services.billing, self.token, expecting(change.stamp)
        match change.kind:
            case "quota":
                await self.services.pool.set_quota(token, name, None, change.body, expected)
            case "plan":
                await billing.set_plan(token, name, change.body, expected)
            case "profile":
                await billing.set_profile(token, name, change.body, expected)
            case "budget":
                await billing.set_budget(token, change.body, expected)
            case "removal":
                await billing.remove_budget(token, change.number, expected)
            case "credit":
                await billing.grant_credit(token, change.body, change.stamp)

    async def _show_refused(self, terms: Terms, key: str, typed: Mapping[str, str], error: UpstreamRefused | UpstreamUnavailable) -> None:
        """The form with what was typed and why it was not saved: beside its field, or beside what somebody else has made of it."""
        if overtaken(error):
            now = await self.terms(terms.tenant)
            form = self._formed(now, key, lambda: stale(now, key, {}))
            await self._show_form(now, replace(form, values={**form.values, **_among(typed, form)}))
            return
        form = open_form(terms, key, typed.get("stamp", ""))
        kept = replace(form, values={**form.values, **_among(typed, form)}, stamp=typed.get("stamp", ""))
        await self._show_form(terms, refused(kept, error.text))

    async def _show_form(self, terms: Terms, form: TermForm) -> None:
        if self.fragment:
            self.show("fragments/term_form.html", terms=terms, form=form)
        else:
            await self.show_page(terms, form)

    async def _show_saved(self, name: str, key: str, before: Terms, change: Change) -> None:
        if not self.fragment:
            self.redirect(f"{self.services.settings.prefix}operator/tenant/{quote(name, safe='')}", status=HTTPStatus.SEE_OTHER)
            return
        terms = await self.terms(name)
        made = [one for one in terms.keys if one not in before.keys]
        kept = [key] if key in terms.keys else []
        self.show("fragments/term_saved.html", terms=terms, keys=[*made, *kept], kind=change.kind)


def _among(typed: Mapping[str, str], form: TermForm) -> dict[str, str]:
    return {field: text[:FIELD_CHARACTERS_MAX] for field, text in typed.items() if field in form.values}


def _gone(key: str) -> Problem:
    budget = key.startswith("budget-")
    what = Text("There is no such budget any more.") if budget else Text("A tenant has no such terms.")
    return Problem(HTTPStatus.NOT_FOUND, Text("Not there"), what)
