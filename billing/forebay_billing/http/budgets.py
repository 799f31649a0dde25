"""The endpoints of budgets."""

from __future__ import annotations

import logging
from typing import Any

from forebay_billing.documents.budgets import budget_json, standing_json
from forebay_billing.errors import InvalidRequest, UnknownBudget
from forebay_billing.http.bodies import BudgetBody
from forebay_billing.http.handler import Attempt, BillingHandler
from forebay_billing.http.queries import BudgetsQuery, NoQuery
from forebay_billing.ledger.access import budget_author, usage_scope
from forebay_billing.ledger.books import Books
from forebay_billing.model.money import GRAINS_PER_NANO
from forebay_billing.reads.standings import SAY_NEW, check_nameable, check_named
from forebay_billing.rules.budgets import Budget, Origin, Subject
from forebay_billing.writes.budgets import remove_budget, set_budget

log = logging.getLogger(__name__)


class BudgetsHandler(BillingHandler):
    """``GET`` and ``PUT api/budgets``."""

    endpoint = "budgets"

    async def get(self) -> None:
        identity = await self.bearer()
        query = self.query(BudgetsQuery)
        scope = usage_scope(identity, query.tenant, query.user)
        found = await self.context.budgets.standings(scope)
        self.write_json([standing_json(standing, identity) for standing in found])

    async def put(self) -> None:
        identity = await self.bearer()
        self.query(NoQuery)
        body = self.body(BudgetBody)
        user = identity.name if body.user is None and body.notebook is not None and identity.tenant is not None else body.user
        own = body.notebook is not None and user == identity.name
        tenant, origin = budget_author(identity, body.tenant, own)
        expected, now_ns = self.expected(), self.context.clock_ns()

        def work(books: Books) -> Budget:
            check_nameable(books.connection, tenant)
            if not body.new:
                check_named(books.connection, tenant, identity, SAY_NEW)
            billed_in = self.context.currencies(books)(tenant)
            if body.currency not in (None, billed_in):
                raise InvalidRequest(f"currency: the tenant {tenant} is billed in {billed_in}; nothing would count for another.")
            subject = Subject(tenant, user, body.notebook)
            return set_budget(books, _wanted(body, subject, billed_in, origin, identity.name, now_ns), now_ns, expected)

        attempt = Attempt("budget.set", tenant, body.model_dump()) if origin == "operator" else None
        budget = await self.change(identity, work, budget_json, attempt)
        if budget is not None:
            self.context.budgets.changed()
            log.info("a budget is set", extra={"action": "budget.set", "who": identity.name, "tenant": tenant, "budget": budget.id})


class BudgetHandler(BillingHandler):
    """``DELETE api/budgets/{id}``."""

    endpoint = "budget"

    async def delete(self, id: str) -> None:
        identity = await self.bearer()
        self.query(NoQuery)
        tenant, origin = budget_author(identity, None, own=True, any_tenant=True)
        expected, now_ns = self.expected(), self.context.clock_ns()
        number = number_of(id)
        if number is None:
            raise UnknownBudget(f"There is no budget {id!r}; list them with GET api/budgets.")

        def document(budget: Budget) -> dict[str, Any]:
            return {"id": budget.id, "removed": True}

        removed = await self.change(
            identity, lambda books: remove_budget(books, number, tenant or None, origin, identity.name, now_ns, expected), document
        )
        if removed is not None:
            fields = {"action": "budget.remove", "who": identity.name, "tenant": removed.subject.tenant, "budget": removed.id}
            log.info("a budget is removed", extra=fields)


def _wanted(body: BudgetBody, subject: Subject, currency: str, origin: Origin, who: str, now_ns: int) -> Budget:
    return Budget(
        id=0,
        subject=subject,
        currency=currency,
        window=body.window,
        origin=origin,
        limit_grains=body.limit_nano * GRAINS_PER_NANO,
        thresholds=tuple(body.thresholds),
        on_limit=body.on_limit,
        grace_seconds=body.grace_seconds,
        set_at_ns=now_ns,
        set_by=who,
    )


def number_of(text: str) -> int | None:
    """The id in a path; None for what no row can have."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
