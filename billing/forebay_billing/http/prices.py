"""The endpoints of prices and plans, and of who changed them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from forebay_service.audit import AuditQuery, entries, page_of
from sqlalchemy import Connection

from forebay_billing.documents import usage
from forebay_billing.http.bodies import PRICE_LIST_BYTES_MAX, ParkedPriceBody, PlanBody, PreviewBody, PriceBody, SurchargeBody, name_of
from forebay_billing.http.handler import Attempt, BillingHandler
from forebay_billing.http.queries import NoQuery, PlansQuery, PricesQuery, SurchargesQuery
from forebay_billing.ledger.access import check_may_audit, check_may_change_books, plan_scope
from forebay_billing.ledger.books import Books, parked_prices, past
from forebay_billing.model.months import Month
from forebay_billing.model.types import PARKED, ParkedPrice, PriceVersion, SurchargeVersion, priced_model
from forebay_billing.reads import plans
from forebay_billing.reads import usage as usage_reads
from forebay_billing.rules.etags import version_tag
from forebay_billing.rules.parked import ParkedBook
from forebay_billing.rules.plans import Plan
from forebay_billing.rules.previews import Row, preview
from forebay_billing.rules.price_list import Change, changes, price_list_of, prices_tag, text_of
from forebay_billing.rules.prices import NOTHING_RATED, Book, Version
from forebay_billing.tables.schema import audit
from forebay_billing.writes import prices as prices_writes

V = TypeVar("V", bound=Version)

log = logging.getLogger(__name__)


def _tagged(document: Callable[[V], dict[str, Any]], versions: Iterable[V], book: Book[V]) -> list[dict[str, Any]]:
    """Versions, each with the tag of all there are of the same: what a change may expect."""
    return [{**document(version), "etag": book.tag(version.flavor, version.currency)} for version in versions]


def _made(document: Callable[[V], dict[str, Any]]) -> Callable[[V], dict[str, Any]]:
    """The tag of a new version, which is the last."""
    return lambda version: {**document(version), "etag": version_tag(version.version)}


class PricesHandler(BillingHandler):
    """``GET api/prices``."""

    endpoint = "prices"

    async def get(self) -> None:
        await self.bearer()
        query = self.query(PricesQuery)
        book = await self.context.store.price_book()
        if query.flavor is not None:
            book.check_flavor(query.flavor)
        if query.history == "1":
            self.write_json(_tagged(usage.price_history_json, book.history(query.flavor), book))
            return
        current = (price for price in book.current(self.context.clock_ns()) if query.flavor in (None, price.flavor))
        self.write_json(_tagged(usage.price_json, current, book))


class PriceHandler(BillingHandler):
    """``PUT api/prices/{flavor}``."""

    endpoint = "price"

    async def put(self, flavor: str) -> None:
        identity = await self.bearer()
        check_may_change_books(identity)
        self.query(NoQuery)
        flavor, body, expected = name_of(flavor, "flavor"), self.body(PriceBody), self.expected()

        def work(books: Books) -> PriceVersion:
            amount, start_ns, clock_ns = body.price_nano_per_hour, body.valid_from_ns, self.context.clock_ns
            return prices_writes.change_price(books, flavor, body.currency, amount, start_ns, clock_ns, identity.name, body.new, expected)

        attempt = Attempt("price.change", f"{flavor}/{body.currency:.80}", body.model_dump())
        price = await self.change(identity, work, _made(usage.price_json), attempt)
        if price is not None:
            fields = {
                "action": "price.change", "who": identity.name, "flavor": price.flavor, "currency": price.currency,
                "version": price.version, "price_nano_per_hour": price.price_nano_per_hour, "valid_from_ns": price.valid_from_ns,
            }  # fmt: skip
            log.info("a price is changed", extra=fields)


class ParkedPricesHandler(BillingHandler):
    """``GET api/parked-prices``."""

    endpoint = "parked-prices"

    async def get(self) -> None:
        await self.bearer()
        self.query(NoQuery)
        found = await self.context.store.read(parked_prices)
        self.write_json(_tagged(usage.parked_price_json, found, ParkedBook(found)))


class ParkedPriceHandler(BillingHandler):
    """``PUT api/parked-prices/{currency}``."""

    endpoint = "parked-price"

    async def put(self, currency: str) -> None:
        identity = await self.bearer()
        check_may_change_books(identity)
        self.query(NoQuery)
        currency, body, expected = name_of(currency, "currency"), self.body(ParkedPriceBody), self.expected()

        def work(books: Books) -> ParkedPrice:
            amount, start_ns = body.price_nano_per_gib_hour, body.valid_from_ns
            return prices_writes.change_parked_price(books, currency, amount, start_ns, self.context.clock_ns, identity.name, expected)

        attempt = Attempt("price.change", f"{PARKED}/{currency}", body.model_dump())
        price = await self.change(identity, work, _made(usage.parked_price_json), attempt)
        if price is not None:
            fields = {
                "action": "parked-price.change", "who": identity.name, "currency": price.currency, "version": price.version,
                "price_nano_per_gib_hour": price.price_nano_per_gib_hour, "valid_from_ns": price.valid_from_ns,
            }  # fmt: skip
            log.info("the price of parked memory is changed", extra=fields)


class SurchargesHandler(BillingHandler):
    """``GET api/surcharges``."""

    endpoint = "surcharges"

    async def get(self) -> None:
        await self.bearer()
        query = self.query(SurchargesQuery)
        book = (await self.context.store.price_book()).surcharges
        found = book.history() if query.history == "1" else book.current(self.context.clock_ns())
        self.write_json(_tagged(usage.surcharge_json, found, book))


class SurchargeHandler(BillingHandler):
    """``PUT api/surcharges/{model}``."""

    endpoint = "surcharge"

    async def put(self, model: str) -> None:
        identity = await self.bearer()
        check_may_change_books(identity)
        self.query(NoQuery)
        model, body, expected = name_of(model, "model"), self.body(SurchargeBody), self.expected()

        def work(books: Books) -> SurchargeVersion:
            amount, start_ns = body.surcharge_nano_per_hour, body.valid_from_ns
            clock_ns, name = self.context.clock_ns, identity.name
            return prices_writes.change_surcharge(books, model, body.currency, amount, start_ns, clock_ns, name, expected)

        attempt = Attempt("price.change", f"{priced_model(model)}/{body.currency:.80}", body.model_dump())
        version = await self.change(identity, work, _made(usage.surcharge_json), attempt)
        if version is not None:
            fields = {
                "action": "surcharge.change", "who": identity.name, "model": model, "currency": version.currency,
                "version": version.version, "surcharge_nano_per_hour": version.surcharge_nano_per_hour,
                "valid_from_ns": version.valid_from_ns,
            }  # fmt: skip
            log.info("a surcharge is changed", extra=fields)


class PriceListHandler(BillingHandler):
    """``GET`` and ``PUT api/price-list``: the price book as a text."""

    endpoint = "price-list"

    async def get(self) -> None:
        await self.bearer()
        self.query(NoQuery)
        now_ns = self.context.clock_ns()

        def work(connection: Connection) -> tuple[str, str]:
            book, parked = usage_reads.price_book(connection), ParkedBook(parked_prices(connection))
            return prices_tag(book, parked), text_of(book, parked, now_ns)

        etag, text = await self.context.store.read(work)
        self.set_header("ETag", etag)
        self.set_header("Content-Type", "application/yaml; charset=utf-8")
        self.finish(text)

    async def put(self) -> None:
        identity = await self.bearer()
        check_may_change_books(identity)
        self.query(NoQuery)
        text, expected = self.text(PRICE_LIST_BYTES_MAX), self.expected()
        wanted = await asyncio.to_thread(price_list_of, text)
        done = await self.change(
            identity,
            lambda books: prices_writes.apply_price_list(books, wanted, self.context.clock_ns, identity.name, expected),
            usage.changes_json,
            Attempt("price-list.apply", "price list", {"text": text}),
        )
        if done is not None:
            log.info("a price list is applied", extra={"action": "price-list.apply", "who": identity.name, "changes": len(done)})


class PriceListDiffHandler(BillingHandler):
    """``POST api/price-list/diff``: what the list would change, without changing it."""

    endpoint = "price-list-diff"

    async def post(self) -> None:
        identity = await self.bearer()
        check_may_change_books(identity)
        self.query(NoQuery)
        wanted = await asyncio.to_thread(price_list_of, self.text(PRICE_LIST_BYTES_MAX))
        now_ns = self.context.clock_ns()

        def work(connection: Connection) -> list[Change]:
            book, parked = usage_reads.price_book(connection), ParkedBook(parked_prices(connection))
            return changes(wanted, book, parked, partial(past, connection), now_ns, identity.name)

        self.write_json(usage.changes_json(await self.context.store.read(work)))


class PreviewHandler(BillingHandler):
    """``POST api/preview``: what a month would have cost. It changes nothing."""

    endpoint = "preview"

    async def post(self) -> None:
        identity = await self.bearer()
        check_may_change_books(identity)
        self.query(NoQuery)
        body, now_ns = self.body(PreviewBody), self.context.clock_ns()
        month = Month.of(now_ns).previous if body.month is None else Month.parse(body.month)
        prices = {} if body.price_list is None else (await asyncio.to_thread(price_list_of, body.price_list)).last_amounts()
        proposed = {tenant: terms.terms() for tenant, terms in body.plans.items() if body.tenant in (None, tenant)}

        def work(connection: Connection) -> list[Row]:
            book = usage_reads.price_book(connection)
            for one in body.prices:
                book.check_flavor(one.flavor)
                prices[one.flavor, one.currency] = one.price_nano_per_hour
            prices.update({(priced_model(one.model), one.currency): one.surcharge_nano_per_hour for one in body.surcharges})
            for (flavor, currency), amount in prices.items():
                book.next_start(flavor, currency, amount, None, now_ns, NOTHING_RATED)
            for tenant, terms in proposed.items():
                plans.check_terms(tenant, terms, self.context.currencies(Books(connection))(tenant), book)
            present = {plan.tenant: plan.terms for plan in plans.plans_in(connection, body.tenant, month)}
            rated = usage_reads.rated_durations(connection, body.tenant, month)
            parked = usage_reads.rated_bytes(connection, body.tenant, month)
            return preview(rated, parked, prices, present, present | proposed)

        self.write_json(usage.preview_json(month, await self.context.store.read(work)))


class AuditHandler(BillingHandler):
    """``GET api/audit``."""

    endpoint = "audit"

    async def get(self) -> None:
        check_may_audit(await self.bearer())
        query = self.query(AuditQuery)
        wanted, most = query.wanted, query.limit + 1
        work = lambda connection: entries(connection, audit, audit.c.at_ns, wanted, most, query.cursor)  # noqa: E731 - reads better
        self.write_json(page_of(await self.context.store.read(work), query.limit))


class PlansHandler(BillingHandler):
    """``GET api/plans``."""

    endpoint = "plans"

    async def get(self) -> None:
        identity = await self.bearer()
        query = self.query(PlansQuery)
        tenant = plan_scope(identity, query.tenant)
        month = Month.of(self.context.clock_ns()) if query.month is None else Month.parse(query.month)

        if query.history == "1":
            found = await self.context.store.read(lambda connection: plans.plans_of(connection, tenant))
        else:
            found = await self.context.store.read(lambda connection: plans.plans_in(connection, tenant, month))
        self.write_json([plans.plan_answer(plan) for plan in found])


class PlanHandler(BillingHandler):
    """``PUT api/plans/{tenant}``."""

    endpoint = "plan"

    async def put(self, tenant: str) -> None:
        identity = await self.bearer()
        check_may_change_books(identity)
        self.query(NoQuery)
        tenant, body = name_of(tenant, "tenant"), self.body(PlanBody)
        valid_from, terms, expected = Month.parse(body.valid_from), body.terms(), self.expected()

        def work(books: Books) -> Plan:
            currency = self.context.currencies(books)(tenant)
            now_ns = self.context.clock_ns()
            return plans.change_plan(books, tenant, terms, valid_from, currency, now_ns, identity.name, body.new, expected)

        plan = await self.change(identity, work, plans.plan_answer, Attempt("plan.change", tenant, body.model_dump()))
        if plan is not None:
            fields = {
                "action": "plan.change", "who": identity.name, "tenant": tenant, "version": plan.version, "valid_from": plan.valid_from,
            }  # fmt: skip
            log.info("a plan is changed", extra=fields)
