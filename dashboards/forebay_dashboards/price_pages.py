"""*Operator*: the price list, tenants' plans, what they would have come to, and who changed what."""

from __future__ import annotations

import asyncio
import logging
from typing import TypeVar

from forebay_hub.languages import Text
from pydantic import BaseModel, ValidationError

from forebay_dashboards import times
from forebay_dashboards.access import View
from forebay_dashboards.errors import FormError, MoneyError, UpstreamRefused, UpstreamUnavailable
from forebay_dashboards.plan_form import TypedPlan
from forebay_dashboards.rows import Preview, PriceChanges
from forebay_dashboards.sections import attempt
from forebay_dashboards.surcharge_form import TypedSurcharge
from forebay_dashboards.visitor import Visit, not_so

F = TypeVar("F", bound=BaseModel)

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


class PriceListPage(Visit):
    """``GET operator/price-list`` shows the list, ``POST`` compares, previews or applies what was typed."""

    view: View = "operator"
    page = "operator_price_list"

    async def get(self) -> None:
        found = await attempt(self.services.billing.price_list(self.token), Text("Prices"))
        self._show(found.content or "", found.problem)

    async def post(self) -> None:
        text = self.get_body_argument("list", "", strip=False).replace("\r\n", "\n")
        action, month = self.get_body_argument("action", "compare"), self.get_body_argument("month", "")
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
                changes = await billing.apply_price_list(self.token, text)
                self.services.audience.tell_all("prices")
                logger.info("action=price_list_applied who=%s changes=%d", self.visitor.name, len(changes.changes))
                text = await billing.price_list(self.token)
            elif action == "preview":
                preview = await billing.preview(self.token, {"price_list": text, "month": month or None})
            else:
                changes = await billing.compare_price_list(self.token, text)
        except (UpstreamRefused, UpstreamUnavailable) as error:
            self._show(text, error.text)
            return
        self._show(text, None, changes, preview, applied=action == "apply", month=month)

    def _show(
        self,
        text: str,
        problem: Text | None,
        changes: PriceChanges | None = None,
        preview: Preview | None = None,
        applied: bool = False,
        month: str = "",
    ) -> None:
        values = {"changes": changes, "preview": preview, "applied": applied, "month": month[:16]}
        self.show("operator_price_list.html", text=text, problem=problem, **values)


class SurchargesPage(Visit):
    """``GET operator/surcharges`` shows all versions and a form, ``POST`` saves one."""

    view: View = "operator"
    page = "operator_surcharges"

    async def get(self) -> None:
        await self._show({}, None)

    async def post(self) -> None:
        arguments = {name: self.get_body_argument(name) for name in self.request.body_arguments if name != "_xsrf"}
        typed = typed_as(TypedSurcharge, arguments)
        try:
            version = await self.services.billing.set_surcharge(self.token, typed.model.strip(), typed.body())
        except (FormError, MoneyError, UpstreamRefused, UpstreamUnavailable) as error:
            await self._show(arguments, error.text)
            return
        self.services.audience.tell_all("prices")
        logger.info("action=surcharge_changed who=%s model=%s version=%d", self.visitor.name, version.model, version.version)
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

    async def _show(self, typed: dict[str, str], problem: Text | None, saved: Text | None = None) -> None:
        found, devices = await asyncio.gather(
            attempt(self.services.billing.surcharges(self.token), Text("Surcharges")),
            attempt(self.services.pool.devices(self.token), Text("Devices")),
        )
        versions = sorted(found.content or (), key=lambda one: (one.model, one.currency, -one.version))
        models = sorted({*(device.model for device in devices.content or ()), *(one.model for one in versions)})
        values = {"typed": typed, "problem": problem or found.problem, "saved": saved, "models": models}
        self.show("operator_surcharges.html", versions=versions, **values)


class PlansPage(Visit):
    """``GET operator/plans`` shows all plans and a form, ``POST`` previews or saves one."""

    view: View = "operator"
    page = "operator_plans"

    async def get(self) -> None:
        await self._show({}, None)

    async def post(self) -> None:
        arguments = {name: self.get_body_argument(name) for name in self.request.body_arguments if name != "_xsrf"}
        typed = typed_as(TypedPlan, arguments)
        billing = self.services.billing
        try:
            terms = typed.terms()
            if typed.action == "preview":
                asked: dict[str, object] = {"plans": {typed.tenant: terms}, "tenant": typed.tenant}
                await self._show(arguments, None, await billing.preview(self.token, asked))
                return
            body = {**terms, "valid_from": typed.valid_from.strip(), "new": bool(typed.new)}
            plan = await billing.set_plan(self.token, typed.tenant, body)
        except (FormError, MoneyError, UpstreamRefused, UpstreamUnavailable) as error:
            await self._show(arguments, error.text)
            return
        logger.info("action=plan_changed who=%s tenant=%s version=%d", self.visitor.name, plan.tenant, plan.version)
        saved = Text("The plan of %(tenant)s from %(month)s is saved.", tenant=plan.tenant, month=plan.valid_from)
        await self._show({}, None, saved=saved)

    async def _show(self, typed: dict[str, str], problem: Text | None, preview: Preview | None = None, saved: Text | None = None) -> None:
        plans = await attempt(self.services.billing.plans(self.token), Text("Plans"))
        newest_first = sorted(plans.content or (), key=lambda plan: (plan.tenant, -plan.version))
        filled = {**dict.fromkeys(TypedPlan.model_fields, ""), **typed}
        self.show("operator_plans.html", typed=filled, problem=problem or plans.problem, preview=preview, saved=saved, plans=newest_first)
