"""*Operator*: the price list, tenants' plans, what they would have come to, and who changed what."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import TypeVar

from forebay_service.languages import Text
from pydantic import BaseModel, ValidationError

from forebay_dashboards.access import View
from forebay_dashboards.errors import FormError, MoneyError, UpstreamRefused, UpstreamUnavailable
from forebay_dashboards.forms import plan as plan_forms
from forebay_dashboards.forms.etags import STALE, THERE, expecting, overtaken, stamp_for, stamp_of
from forebay_dashboards.forms.plan import TypedPlan
from forebay_dashboards.forms.surcharge import TypedSurcharge, filled_with
from forebay_dashboards.http.handler import OF_EVERY_FORM, PageHandler, not_so
from forebay_dashboards.rows.billing import Preview, PriceChanges
from forebay_dashboards.text import times
from forebay_dashboards.upstream.sections import attempt

F = TypeVar("F", bound=BaseModel)

FIELD_CHARACTERS_MAX = 255
LIST_CHARACTERS_MAX = 60_000
"""What fits a form; a longer list is applied by the command line."""

logger = logging.getLogger(__name__)


def typed_as(form: type[F], arguments: dict[str, str]) -> F:
    """What was typed, as the form has it; refuses what no form sends."""
    try:
        return form.model_validate(arguments)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise not_so(FormError(Text("The field %(name)s cannot be used: %(problem)s.", name=where, problem=first["msg"]))) from None


class PriceListPage(PageHandler):
    """``GET operator/price-list`` shows the list, ``POST`` compares, previews or applies what was typed."""

    view: View = "operator"
    page = "operator_price_list"

    async def get(self) -> None:
        found = await attempt(self.services.billing.price_list(self.token), Text("Prices"))
        text, tag = found.content or ("", None)
        self._show(text, stamp_of(tag), found.problem)

    async def post(self) -> None:
        text = self.get_body_argument("list", "", strip=False).replace("\r\n", "\n")
        action, month = self.get_body_argument("action", "compare"), self.get_body_argument("month", "")
        stamp = self.get_body_argument("stamp", "")
        if len(text) > LIST_CHARACTERS_MAX:
            raise not_so(
                FormError(
                    Text(
                        "The list is longer than %(most)s characters; apply it with forebay admin prices.", most=f"{LIST_CHARACTERS_MAX:,}"
                    )
                )
            )
        billing, changes, preview = self.services.billing, None, None
        try:
            if action == "apply":
                changes = await billing.apply_price_list(self.token, text, expecting(stamp))
                self.services.browsers.tell_all("prices")
                fields = {"action": "price_list_applied", "who": self.visitor.name, "changes": len(changes.changes)}
                logger.info("a price list is applied", extra=fields)
                text, tag = await billing.price_list(self.token)
                stamp = stamp_of(tag)
            elif action == "preview":
                preview = await billing.preview(self.token, {"price_list": text, "month": month or None})
            else:
                changes = await billing.compare_price_list(self.token, text)
        except (UpstreamRefused, UpstreamUnavailable) as error:
            if overtaken(error):
                await self._show_overtaken(text, month)
            else:
                self._show(text, stamp, error.text)
            return
        self._show(text, stamp, None, changes, preview, applied=action == "apply", month=month)

    async def _show_overtaken(self, text: str, month: str) -> None:
        """What the list would make of the prices as somebody else has left them."""
        billing = self.services.billing
        now = await attempt(billing.price_list(self.token), Text("Prices"))
        changes = await attempt(billing.compare_price_list(self.token, text), Text("Prices"))
        self.set_status(HTTPStatus.PRECONDITION_FAILED)
        told = Text(
            "Somebody changed prices after this page was opened, and nothing was saved. "
            "What your list would change now stands below; apply it again if you still mean it."
        )
        problem = now.problem or changes.problem or told
        self._show(text, stamp_of(now.content[1]) if now.content else "", problem, changes.content, month=month)

    def _show(
        self,
        text: str,
        stamp: str,
        problem: Text | None,
        changes: PriceChanges | None = None,
        preview: Preview | None = None,
        applied: bool = False,
        month: str = "",
    ) -> None:
        values = {"changes": changes, "preview": preview, "applied": applied, "month": month[:16]}
        self.show("operator_price_list.html", text=text, stamp=stamp, problem=problem, **values)


class SurchargesPage(PageHandler):
    """``GET operator/surcharges?model=&currency=`` shows all versions and one's last in the form, ``POST`` saves one."""

    view: View = "operator"
    page = "operator_surcharges"

    async def get(self) -> None:
        model, currency = (self.get_query_argument(name, "")[:FIELD_CHARACTERS_MAX] for name in ("model", "currency"))
        await self._show({}, None, opened=f"{model}/{currency}")

    async def post(self) -> None:
        arguments = {name: self.get_body_argument(name) for name in self.request.body_arguments if name not in OF_EVERY_FORM}
        typed = typed_as(TypedSurcharge, arguments)
        stamp = stamp_for(typed.subject, arguments)
        try:
            version = await self.services.billing.set_surcharge(self.token, typed.model.strip(), typed.body(), expecting(stamp))
        except (FormError, MoneyError, UpstreamRefused, UpstreamUnavailable) as error:
            if overtaken(error):
                self.set_status(HTTPStatus.PRECONDITION_FAILED)
                await self._show(arguments, STALE if stamp else THERE, opened=typed.subject)
            else:
                await self._show(arguments, error.text)
            return
        self.services.browsers.tell_all("prices")
        fields = {"action": "surcharge_changed", "who": self.visitor.name, "model": version.model, "version": version.version}
        logger.info("a surcharge is changed", extra=fields)
        start = f"{times.moment(version.valid_from_ns):%Y-%m-%d %H:%M:%S} UTC"
        await self._show(
            {},
            None,
            saved=Text(
                "The surcharge of %(model)s in %(currency)s is saved; it holds from %(start)s on.",
                model=version.model,
                currency=version.currency,
                start=start,
            ),
        )

    async def _show(self, typed: dict[str, str], problem: Text | None, saved: Text | None = None, opened: str = "") -> None:
        """The page; ``opened`` is the model and currency whose last version goes into the form, but for what was typed."""
        found, devices = await asyncio.gather(
            attempt(self.services.billing.surcharges(self.token), Text("Surcharges")),
            attempt(self.services.pool.devices(self.token), Text("Devices")),
        )
        versions = sorted(found.content or (), key=lambda one: (one.model, one.currency, -one.version))
        models = sorted({*(device.model for device in devices.content or ()), *(one.model for one in versions)})
        last = next((one for one in versions if f"{one.model}/{one.currency}" == opened), None)
        filled = typed if last is None else {**filled_with(last), **typed, "stamp": stamp_of(last.etag), "whose": opened}
        values = {"typed": filled, "problem": problem or found.problem, "saved": saved, "models": models}
        self.show("operator_surcharges.html", versions=versions, **values)


class PlansPage(PageHandler):
    """``GET operator/plans?tenant=`` shows all plans and a tenant's last in the form, ``POST`` previews or saves one."""

    view: View = "operator"
    page = "operator_plans"

    async def get(self) -> None:
        await self._show({}, None, opened=self.get_query_argument("tenant", "")[:FIELD_CHARACTERS_MAX])

    async def post(self) -> None:
        arguments = {name: self.get_body_argument(name) for name in self.request.body_arguments if name not in OF_EVERY_FORM}
        typed = typed_as(TypedPlan, arguments)
        billing, stamp = self.services.billing, stamp_for(typed.tenant, arguments)
        try:
            terms = typed.terms()
            if typed.action == "preview":
                asked: dict[str, object] = {"plans": {typed.tenant: terms}, "tenant": typed.tenant}
                await self._show(arguments, None, await billing.preview(self.token, asked))
                return
            body = {**terms, "valid_from": typed.valid_from.strip(), "new": bool(typed.new)}
            plan = await billing.set_plan(self.token, typed.tenant, body, expecting(stamp))
        except (FormError, MoneyError, UpstreamRefused, UpstreamUnavailable) as error:
            if overtaken(error):
                self.set_status(HTTPStatus.PRECONDITION_FAILED)
                await self._show(arguments, STALE if stamp else THERE, opened=typed.tenant)
            else:
                await self._show(arguments, error.text)
            return
        fields = {"action": "plan_changed", "who": self.visitor.name, "tenant": plan.tenant, "version": plan.version}
        logger.info("a plan is changed", extra=fields)
        saved = Text("The plan of %(tenant)s from %(month)s is saved.", tenant=plan.tenant, month=plan.valid_from)
        await self._show({}, None, saved=saved)

    async def _show(
        self, typed: dict[str, str], problem: Text | None, preview: Preview | None = None, saved: Text | None = None, opened: str = ""
    ) -> None:
        """The page; ``opened`` is the tenant whose last plan goes into the form, but for what was typed."""
        plans, tenants = await asyncio.gather(
            attempt(self.services.billing.plans(self.token), Text("Plans")), attempt(self.services.people.tenants(), Text("Tenants"))
        )
        known = sorted(tenants.content or ())
        newest_first = sorted(plans.content or (), key=lambda plan: (plan.tenant, -plan.version))
        last = next((plan for plan in newest_first if plan.tenant == opened), None)
        filled = dict.fromkeys(TypedPlan.model_fields, "") | typed
        if last is not None:
            agreed = {"tenant": last.tenant, "currency": last.currency, "valid_from": last.valid_from, **plan_forms.typed(last)}
            filled |= agreed | typed | {"stamp": stamp_of(last.etag), "whose": opened}
        told = {"problem": problem or plans.problem, "preview": preview, "saved": saved}
        self.show("operator_plans.html", typed=filled, plans=newest_first, tenants=known, **told)
