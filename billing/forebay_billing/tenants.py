"""How tenants stand: what each is billed in, taxed with, has used this month, owes and has ahead; in one snapshot, one or all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, Row, or_, select

from forebay_billing import profiles, schema, summaries
from forebay_billing.access import Scope
from forebay_billing.budget_tables import budgets
from forebay_billing.holds import held
from forebay_billing.invoice_tables import profiles as profile_rows
from forebay_billing.ledger import credit_of, receivable
from forebay_billing.money import whole
from forebay_billing.profiles import Version
from forebay_billing.queries import Balance
from forebay_billing.summaries import Outlook

_ACCOUNTS: tuple[Callable[[str], str], ...] = (receivable, held, credit_of)
"""The accounts that every tenant has, in the order in which a balance names them."""


@dataclass(frozen=True)
class Standing:
    """A tenant. ``known`` is whether anything was ever written down for it; ``currency`` is what it is billed in."""

    tenant: str
    known: bool
    currency: str
    profile: Version | None
    outlooks: tuple[Outlook, ...]
    balances: tuple[Balance, ...]


def standings(connection: Connection, tenant: str | None, currency_of: Callable[[str], str], now_ns: int) -> list[Standing]:
    """All tenants that anything was written down for, by name; or the one that is named, whether anything was or not.

    ``currency_of`` is what the settings bill a tenant in.
    """
    balances, outlooks, versions = _balances(connection, tenant), _outlooks(connection, tenant, now_ns), _profiles(connection, tenant)
    known = {*balances, *outlooks, *versions, *_agreed(connection, tenant)}
    return [
        Standing(
            name,
            name in known,
            _billed_in(versions.get(name)) or currency_of(name),
            versions.get(name),
            tuple(outlooks.get(name, ())),
            tuple(balances.get(name, ())),
        )
        for name in (sorted(known) if tenant is None else [tenant])
    ]


def _billed_in(version: Version | None) -> str | None:
    return None if version is None else version.profile.currency


def _balances(connection: Connection, tenant: str | None) -> dict[str, list[Balance]]:
    accounts, rows = schema.accounts.c, schema.balances.c
    if tenant is None:
        of_tenants = or_(*(accounts.name.startswith(account(""), autoescape=True) for account in _ACCOUNTS))
    else:
        of_tenants = accounts.name.in_([account(tenant) for account in _ACCOUNTS])
    joined = schema.accounts.outerjoin(schema.balances, rows.account_id == accounts.id)
    query = select(accounts.name, rows.currency, rows.milli, rows.atto).select_from(joined).where(of_tenants)
    sums: dict[str, dict[str, list[int]]] = defaultdict(dict)
    for row in connection.execute(query):
        name, place = _owner(row.name)
        by_currency = sums[name]
        if row.currency is not None:
            by_currency.setdefault(row.currency, [0] * len(_ACCOUNTS))[place] += whole(row.milli, row.atto)
    return {
        name: [Balance(currency, owed, kept, -credit) for currency, (owed, kept, credit) in sorted(found.items())]
        for name, found in sums.items()
    }


def _owner(account: str) -> tuple[str, int]:
    """The tenant whose account it is, and the account's place in ``_ACCOUNTS``."""
    place = next(place for place, name in enumerate(_ACCOUNTS) if account.startswith(name("")))
    return account.removeprefix(_ACCOUNTS[place]("")), place


def _outlooks(connection: Connection, tenant: str | None, now_ns: int) -> dict[str, list[Outlook]]:
    found: dict[str, list[Outlook]] = defaultdict(list)
    for one in summaries.outlooks(connection, Scope(tenant, None), now_ns, ["tenant"]):
        found[str(one.keys["tenant"])].append(one)
    return found


def _profiles(connection: Connection, tenant: str | None) -> dict[str, Version]:
    query = select(profile_rows).order_by(profile_rows.c.version)
    if tenant is not None:
        query = query.where(profile_rows.c.tenant == tenant)
    return {row.tenant: profiles.version_of(row) for row in connection.execute(query)}


def _agreed(connection: Connection, tenant: str | None) -> set[str]:
    """Tenants that have a plan or a budget, or had one."""
    found: set[str] = set()
    for table in (schema.plans, budgets):
        query = select(table.c.tenant).distinct()
        rows: list[Row[tuple[str]]] = list(connection.execute(query if tenant is None else query.where(table.c.tenant == tenant)))
        found |= {row.tenant for row in rows}
    return found
