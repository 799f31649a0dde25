"""What a tenant is held to and billed by, a part at a time: as it is, as a form in its place, and saved. Operators and owners share it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any, TypeVar

from forebay_service.languages import Text

from forebay_dashboards.errors import UpstreamRefused, UpstreamUnavailable
from forebay_dashboards.forms.etags import expecting, overtaken
from forebay_dashboards.forms.tenant_terms import FIELD_CHARACTERS_MAX, Change, TermForm, Terms, judge, open_form, refused, stale
from forebay_dashboards.http.handler import Problem
from forebay_dashboards.pages.my_tenant import TenantFacts
from forebay_dashboards.rows.billing import Standing
from forebay_dashboards.upstream.sections import Section, attempt

F = TypeVar("F")

logger = logging.getLogger(__name__)


class TermsDesk(TenantFacts):
    """What all handlers of terms share. A subclass says whose they are, and what page they stand on."""

    def address(self, tenant: str) -> str:
        """The page's, relative to the prefix; its parts are at ``{address}/terms/{key}``."""
        raise NotImplementedError

    async def terms(self, tenant: str) -> Terms:
        """All parts as they are. Raises Problem for a tenant that nobody knows."""
        raise NotImplementedError

    async def show_page(self, terms: Terms, form: TermForm | None) -> None:
        """The whole page, one part of the terms as a form where there is one."""
        raise NotImplementedError

    async def standing(self, tenant: str) -> Section[Standing]:
        """What billing knows of it in all."""
        found = await attempt(self.services.billing.standings(self.token, tenant), Text("How the tenant stands at billing"))
        return Section(found.content[0] if found.content else None, found.problem)

    @property
    def fragment(self) -> bool:
        """Whether htmx asks, which wants a part and not the page."""
        return "HX-Request" in self.request.headers

    def show_terms(self, template: str, terms: Terms, **values: Any) -> None:
        """A page or a fragment, told where its parts are."""
        self.show(template, terms=terms, terms_page=self.services.settings.prefix + self.address(terms.tenant), **values)


class TermPart(TermsDesk):
    """``GET {page}/terms/{key}``: a part of the terms as it is."""

    async def show_part(self, tenant: str, key: str) -> None:
        terms = await self.terms(tenant)
        if key not in terms.keys:
            raise _gone(key)
        if self.fragment:
            self.show_terms("fragments/term_row.html", terms, key=key, saved=None)
        else:
            await self.show_page(terms, None)


class TermEdit(TermsDesk):
    """``GET {page}/terms/{key}/edit`` shows the part as a form, ``POST`` saves it."""

    async def show_opened(self, tenant: str, key: str) -> None:
        terms = await self.terms(tenant)
        form = self._formed(terms, key, lambda: open_form(terms, key, secrets.token_hex(16)))
        user = self.get_query_argument("user", "")[:FIELD_CHARACTERS_MAX]
        await self._show_form(terms, replace(form, values={**form.values, "user": user}) if user and "user" in form.values else form)

    async def save(self, tenant: str, key: str) -> None:
        typed = {field: self.get_body_argument(field, "", strip=False) for field in self.request.body_arguments}
        terms = await self.terms(tenant)
        judged = self._formed(terms, key, lambda: judge(terms, key, typed, self.now_ns))
        if isinstance(judged, TermForm):
            self.set_status(HTTPStatus.BAD_REQUEST)
            await self._show_form(terms, judged)
            return
        try:
            await self._send(tenant, judged)
        except (UpstreamRefused, UpstreamUnavailable) as error:
            self.set_status(HTTPStatus(error.status) if isinstance(error, UpstreamRefused) else HTTPStatus.SERVICE_UNAVAILABLE)
            await self._show_refused(terms, key, typed, error)
            return
        self.services.browsers.tell_all("tenants")
        fields = {"action": f"{terms.author}_terms_set", "who": self.visitor.name, "tenant": tenant, "kind": judged.kind}
        logger.info("a tenant's terms are set", extra=fields)
        await self._show_saved(tenant, key, terms, judged)

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

    async def _send(self, tenant: str, change: Change) -> None:
        billing, token, expected = self.services.billing, self.token, expecting(change.stamp)
        match change.kind:
            case "quota":
                await self.services.pool.set_quota(token, tenant, None, change.body, expected)
            case "plan":
                await billing.set_plan(token, tenant, change.body, expected)
            case "profile":
                await billing.set_profile(token, tenant, change.body, expected)
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
            self.show_terms("fragments/term_form.html", terms, form=form)
        else:
            await self.show_page(terms, form)

    async def _show_saved(self, tenant: str, key: str, before: Terms, change: Change) -> None:
        if not self.fragment:
            self.redirect(self.services.settings.prefix + self.address(tenant), status=HTTPStatus.SEE_OTHER)
            return
        terms = await self.terms(tenant)
        made = [one for one in terms.keys if one not in before.keys]
        kept = [key] if key in terms.keys else []
        self.show_terms("fragments/term_saved.html", terms, keys=[*made, *kept], kind=change.kind)


def _among(typed: Mapping[str, str], form: TermForm) -> dict[str, str]:
    return {field: text[:FIELD_CHARACTERS_MAX] for field, text in typed.items() if field in form.values}


def _gone(key: str) -> Problem:
    budget = key.startswith("budget-")
    what = Text("There is no such budget any more.") if budget else Text("A tenant has no such terms.")
    return Problem(HTTPStatus.NOT_FOUND, Text("Not there"), what)
