"""*Operator*: quotas of tenants and users, and who may have which model of device."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus

from forebay_service.languages import Text

from forebay_dashboards.access import View
from forebay_dashboards.errors import FormError, UpstreamRefused, UpstreamUnavailable
from forebay_dashboards.forms.etags import STALE, expecting, overtaken, stamp_for, stamp_of
from forebay_dashboards.forms.quota import FIELDS, NAMES_CHARACTERS_MAX, read_quota, read_tenants, typed
from forebay_dashboards.http.handler import PageHandler
from forebay_dashboards.rows.pool import Quota
from forebay_dashboards.upstream.client import NO_HEADERS
from forebay_dashboards.upstream.sections import attempt

FIELD_CHARACTERS_MAX = 255

logger = logging.getLogger(__name__)


class QuotasPage(PageHandler):
    """``GET operator/quotas?tenant=&user=`` shows all and one in the form, ``POST`` saves a quota or a model's policy."""

    view: View = "operator"
    page = "operator_quotas"

    async def get(self) -> None:
        tenant, user = (self.get_query_argument(name, "")[:FIELD_CHARACTERS_MAX] for name in ("tenant", "user"))
        problem, form = None, {**dict.fromkeys(FIELDS, ""), "tenant": tenant, "user": user}
        if tenant:
            found = await attempt(self.services.pool.quota(self.token, tenant, user or None), Text("The quota"))
            form, problem = form if found.content is None else self._filled(found.content), found.problem
        await self._show(form, problem)

    @staticmethod
    def _filled(quota: Quota) -> dict[str, str]:
        """The form, and what it was filled with, so that nothing is lost that somebody else makes of it meanwhile."""
        return typed(quota) | {"whose": _whose(quota.tenant, quota.user), "stamp": stamp_of(quota.etag)}

    async def post(self) -> None:
        model = self.get_body_argument("model", "")
        form = {name: self.get_body_argument(name, "")[:FIELD_CHARACTERS_MAX] for name in (*FIELDS, "stamp")}
        form["whose"] = self.get_body_argument("whose", "")[: 2 * FIELD_CHARACTERS_MAX + 1]
        try:
            whose = await (self._save_model(model) if model else self._save_quota(form))
        except (FormError, UpstreamRefused, UpstreamUnavailable) as error:
            if overtaken(error) and not model:
                await self._show_stale(form)
                return
            refused = HTTPStatus.PRECONDITION_FAILED if overtaken(error) else HTTPStatus.BAD_REQUEST
            self.set_status(HTTPStatus.SERVICE_UNAVAILABLE if isinstance(error, UpstreamUnavailable) else refused)
            await self._show(form, error.text)
            return
        logger.info("limits are set", extra={"action": "operator_limits_set", "who": self.visitor.name, "subject": whose})
        await self._show(dict.fromkeys(FIELDS, ""), None, Text("What %(name)s is held to is saved. It counts from now on.", name=whose))

    async def _save_quota(self, form: dict[str, str]) -> str:
        tenant, user, body = read_quota(form)
        stamp = stamp_for(_whose(tenant, user), form)
        expected = expecting(stamp) if stamp else NO_HEADERS
        await self.services.pool.set_quota(self.token, tenant, user, body, expected)
        return Text("%(user)s of %(tenant)s", user=user, tenant=tenant) if user else tenant

    async def _show_stale(self, form: dict[str, str]) -> None:
        tenant, user, _ = read_quota(form)
        found = await attempt(self.services.pool.quota(self.token, tenant, user), Text("The quota"))
        self.set_status(HTTPStatus.PRECONDITION_FAILED)
        now = {} if found.content is None else {"stamp": stamp_of(found.content.etag)}
        await self._show(form | now, found.problem or STALE)

    async def _save_model(self, model: str) -> str:
        tenants = read_tenants(self.get_body_argument("tenants", "")[:NAMES_CHARACTERS_MAX])
        await self.services.pool.set_model(self.token, model, tenants, expecting(self.get_body_argument("model_stamp", "")))
        return model

    async def _show(self, form: dict[str, str], problem: Text | None, saved: Text | None = None) -> None:
        quotas, models, tenants = await asyncio.gather(
            attempt(self.services.pool.quotas(self.token), Text("Quotas")),
            attempt(self.services.pool.models(self.token), Text("Models")),
            attempt(self.services.people.tenants(), Text("Tenants")),
        )
        people = await attempt(self.services.people.members(self.token, form["tenant"]), Text("Members")) if form["tenant"] else None
        lists = {"tenants": sorted(tenants.content or ()), "people": [] if people is None else [one.name for one in people.content or ()]}
        self.show("operator_quotas.html", quotas=quotas, models=models, form=form, problem=problem, saved=saved, **lists)


def _whose(tenant: str, user: str | None) -> str:
    return f"{tenant}/{user or ''}"
