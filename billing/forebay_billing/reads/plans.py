"""Which plan a tenant has in which month: versions in the table ``plans``, never changed, only followed by another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from forebay_service.errors import Fault
from forebay_service.preconditions import ANYHOW, Precondition
from sqlalchemy import Connection, Row, insert, select

from forebay_billing.errors import ClosedToPlans, InvalidPlan
from forebay_billing.ledger.books import Books
from forebay_billing.model.months import Month
from forebay_billing.reads.standings import SAY_NEW, check_known, check_nameable
from forebay_billing.rules import plans
from forebay_billing.rules.etags import check_expected, version_tag
from forebay_billing.rules.plans import Plan, Terms, Tier, plan_in
from forebay_billing.rules.prices import PriceBook
from forebay_billing.tables import schema
from forebay_billing.tables.tenants_filter import Tenants, of_tenants

_plans = schema.plans.c


def plans_of(connection: Connection, tenant: Tenants) -> list[Plan]:
    """All versions, of one tenant, or some, where given, in the order in which they were made."""
    query = select(schema.plans).where(*of_tenants(_plans.tenant, tenant)).order_by(_plans.tenant, _plans.version)
    return [_plan(row) for row in connection.execute(query)]


def plan_of(connection: Connection, tenant: str, month: Month) -> Plan | None:
    """The plan in force for ``tenant`` in ``month``; None where it pays the list price."""
    return plan_in(month, plans_of(connection, tenant))


def plans_in(connection: Connection, tenant: Tenants, month: Month) -> list[Plan]:
    """The plans in force in ``month``, by tenant."""
    by_tenant: dict[str, list[Plan]] = {}
    for plan in plans_of(connection, tenant):
        by_tenant.setdefault(plan.tenant, []).append(plan)
    found = (plan_in(month, versions) for versions in by_tenant.values())
    return [plan for plan in found if plan is not None]


def change_plan(
    books: Books, tenant: str, terms: Terms, valid_from: Month, currency: str, now_ns: int, who: str, new: bool = False,
    expected: Precondition = ANYHOW,
) -> Plan:
    """Appends a version, and says so in the audit; the same terms from the same month again change nothing.

    ``currency`` is what the tenant is billed in. ``new`` says that nothing was recorded for the tenant yet, which is otherwise taken
    for a slip of the pen. ``expected`` is of the last version, whenever it begins. Raises PreconditionFailed, InvalidPlan, InvalidPrice,
    UnknownFlavor, UnknownTenant, ClosedToPlans.
    """
    versions = plans_of(books.connection, tenant)
    check_expected(expected, version_tag(versions[-1].version) if versions else None)
    check_terms(tenant, terms, currency, books.price_book())
    check_nameable(books.connection, tenant)
    if not new:
        check_known(books.connection, tenant, SAY_NEW)
    before = plan_in(valid_from, versions)
    if before is not None and before.valid_from == valid_from and before.terms == terms:
        return before
    plan = Plan(tenant, 1 + len(versions), valid_from, terms, now_ns, who)
    _check_finalised(books, versions, plan)
    row = {
        "id": books.take_ids(schema.plans),
        "tenant": tenant,
        "version": plan.version,
        "valid_from": str(valid_from),
        "currency": terms.currency,
        "terms": json.dumps(terms_json(terms), sort_keys=True),
        "changed_at_ns": now_ns,
        "changed_by": who,
    }
    books.connection.execute(insert(schema.plans), [row])
    books.append_audit(now_ns, who, "plan.change", tenant, None if before is None else plan_json(before), plan_json(plan))
    return plan


def check_terms(tenant: str, terms: Terms, currency: str, book: PriceBook) -> None:
    """Raises InvalidPlan, InvalidPrice, UnknownFlavor for terms that ``tenant``, which is billed in ``currency``, cannot have."""
    plans.check(terms)
    if terms.currency != currency:
        sentence = f"The tenant {tenant} is billed in {currency}; a plan in {terms.currency} would change nothing for it."
        raise InvalidPlan(sentence, Fault("other_currency", values={"billed": currency, "given": terms.currency}))
    for flavor, _ in terms.free_seconds:
        book.check_flavor(flavor)


def plan_json(plan: Plan) -> dict[str, Any]:
    """A version as it is told and kept in the audit."""
    return {
        "tenant": plan.tenant,
        "version": plan.version,
        "valid_from": str(plan.valid_from),
        **terms_json(plan.terms),
        "changed_at_ns": plan.changed_at_ns,
        "changed_by": plan.changed_by,
    }


def plan_answer(plan: Plan) -> dict[str, Any]:
    """A version with its tag, which a change may expect while there is none after it."""
    return {**plan_json(plan), "etag": version_tag(plan.version)}


def terms_json(terms: Terms) -> dict[str, Any]:
    """As :func:`terms_of` reads it."""
    return {**asdict(terms), "free_seconds": dict(terms.free_seconds), "tiers": [asdict(tier) for tier in terms.tiers]}


def terms_of(document: Mapping[str, Any]) -> Terms:
    """The terms in a document of :func:`terms_json`."""
    return Terms(
        currency=document["currency"],
        discount_bps=document["discount_bps"],
        free_nano=document["free_nano"],
        free_seconds=tuple(sorted(document["free_seconds"].items())),
        tiers=tuple(Tier(**tier) for tier in document["tiers"]),
        commitment_nano=document["commitment_nano"],
    )


def _plan(row: Row[Any]) -> Plan:
    terms = terms_of(json.loads(row.terms))
    return Plan(row.tenant, row.version, Month.parse(row.valid_from), terms, row.changed_at_ns, row.changed_by)


def _check_finalised(books: Books, versions: list[Plan], plan: Plan) -> None:
    """Raises ClosedToPlans where ``plan`` would be in force in a closed month in which it is not."""
    after = [*versions, plan]
    changed = [month for month in books.finalised(plan.tenant) if plan_in(month, after) is plan]
    if changed:
        raise ClosedToPlans(
            f"The invoice of {plan.tenant} for {min(changed)} is final, and a plan from {plan.valid_from} would change it; "
            "let the plan begin later, and give back by a credit what is owed for before."
        )
