"""The endpoints of prices and plans."""

from __future__ import annotations

import logging

from forebay_billing import documents, journal, plan_book
from forebay_billing.access import check_may_change_books, plan_scope
from forebay_billing.bodies import NoQuery, PlanBody, PlansQuery, PriceBody, PricesQuery, name_of
from forebay_billing.books import Books
from forebay_billing.handlers import Attempt, BillingHandler
from forebay_billing.months import Month
from forebay_billing.plans import Plan
from forebay_billing.types import PriceVersion

log = logging.getLogger(__name__)


class PricesHandler(BillingHandler):
    """``GET api/prices``."""

    endpoint = "prices"

    async def get(self) -> None:
        await self.caller()
        query = self.query(PricesQuery)
        book = await self.context.store.price_book()
        if query.flavor is not None:
            book.check_flavor(query.flavor)
        if query.history == "1":
            self.answer([documents.price_history_json(price) for price in book.history(query.flavor)])
            return
        current = book.current(self.context.clock_ns())
        self.answer([documents.price_json(price) for price in current if query.flavor in (None, price.flavor)])


class PriceHandler(BillingHandler):
    """``PUT api/prices/{flavor}``."""

    endpoint = "price"

    async def put(self, flavor: str) -> None:
        identity = await self.caller()
        check_may_change_books(identity)
        self.query(NoQuery)
        flavor, body = name_of(flavor, "flavor"), self.body(PriceBody)

        def work(books: Books) -> PriceVersion:
            return journal.change_price(
                books, flavor, body.currency, body.price_nano_per_second, body.valid_from_ns, self.context.clock_ns, identity.name, body.new
            )

        attempt = Attempt("price.change", f"{flavor}/{body.currency:.80}", body.model_dump())
        price = await self.change(identity, work, documents.price_json, attempt)
        if price is not None:
            log.info(
                "action=price.change who=%s flavor=%s currency=%s version=%d price_nano_per_second=%d valid_from_ns=%d",
                identity.name, price.flavor, price.currency, price.version, price.price_nano_per_second, price.valid_from_ns,
            )  # fmt: skip


class PlansHandler(BillingHandler):
    """``GET api/plans``."""

    endpoint = "plans"

    async def get(self) -> None:
        identity = await self.caller()
        query = self.query(PlansQuery)
        tenant = plan_scope(identity, query.tenant)
        month = Month.of(self.context.clock_ns()) if query.month is None else Month.parse(query.month)

        if query.history == "1":
            found = await self.context.store.read(lambda connection: plan_book.plans_of(connection, tenant))
        else:
            found = await self.context.store.read(lambda connection: plan_book.plans_in(connection, tenant, month))
        self.answer([plan_book.plan_json(plan) for plan in found])


class PlanHandler(BillingHandler):
    """``PUT api/plans/{tenant}``."""

    endpoint = "plan"

    async def put(self, tenant: str) -> None:
        identity = await self.caller()
        check_may_change_books(identity)
        self.query(NoQuery)
        tenant, body = name_of(tenant, "tenant"), self.body(PlanBody)
        valid_from, terms = Month.parse(body.valid_from), body.terms()

        def work(books: Books) -> Plan:
            currency = self.context.currencies(books)(tenant)
            return plan_book.change_plan(books, tenant, terms, valid_from, currency, self.context.clock_ns(), identity.name, body.new)

        plan = await self.change(identity, work, plan_book.plan_json, Attempt("plan.change", tenant, body.model_dump()))
        if plan is not None:
            log.info("action=plan.change who=%s tenant=%s version=%d valid_from=%s", identity.name, tenant, plan.version, plan.valid_from)
