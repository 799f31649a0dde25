"""How tenants stand: what each is billed in, taxed with, has used this month, owes and has ahead; in one snapshot, one or all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from forebay_service.identity import Identity
from forebay_service.people.names import TENANT_RULE, is_tenant
from sqlalchemy import ColumnElement, Connection, or_, select

from forebay_billing.errors import InvalidRequest, UnknownTenant
from forebay_billing.ledger.access import Scope
from forebay_billing.ledger.postings import credit_of, receivable
from forebay_billing.model.money import whole
from forebay_billing.reads import profiles, summaries
from forebay_billing.reads.profiles import Version
from forebay_billing.reads.summaries import Outlook
from forebay_billing.reads.usage import Balance
from forebay_billing.rules.holds import held
from forebay_billing.tables import schema
from forebay_billing.tables.budgets import budgets
from forebay_billing.tables.invoices import profiles as profile_rows
from forebay_billing.tables.tenants_filter import Tenants, of_tenants

_ACCOUNTS: tuple[Callable[[str], str], ...] = (receivable, held, credit_of)
"""The accounts that every tenant has, in the order in which a balance names them."""


SAY_NEW = ' For a tenant that is to come, say "new": true.'
"""What helps whoever is refused a change …"""
SAY_PROFILE = " For a tenant that is to come, set its billing profile first."
"""… that cannot say so."""


@dataclass(frozen=True)
class Standing:
    """A tenant. ``known`` is whether anything was ever written down for it; ``currency`` is what it is billed in."""

    tenant: str
    known: bool
    currency: str
    profile: Version | None
    outlooks: tuple[Outlook, ...]
    balances: tuple[Balance, ...]


@dataclass(frozen=True)
class Named:
    """A tenant, and what else it is found by."""

    tenant: str
    legal_name: str
    currency: str


def names(connection: Connection, currency_of: Callable[[str], str]) -> list[Named]:
    """All tenants that anything was written down for, without what."""
    versions = _profiles(connection, None)
    return [
        Named(
            name,
            versions[name].profile.legal_name if name in versions else "",
            _billed_in(versions.get(name)) or currency_of(name),
        )
        for name in known(connection, None)
    ]


def standings(connection: Connection, tenant: Tenants, currency_of: Callable[[str], str], now_ns: int) -> list[Standing]:
    """All tenants that anything was written down for, by name; or the one, or those, that are named, whether anything was or not.

    ``currency_of`` is what the settings bill a tenant in.
    """
    balances, outlooks, versions = balances_of(connection, tenant), outlooks_of(connection, tenant, now_ns), _profiles(connection, tenant)
    there = known(connection, tenant)
    return [
        Standing(
            name,
            name in there,
            _billed_in(versions.get(name)) or currency_of(name),
            versions.get(name),
            tuple(outlooks.get(name, ())),
            tuple(balances.get(name, ())),
        )
        for name in (sorted(there) if tenant is None else [tenant] if isinstance(tenant, str) else tenant)
    ]


def known(connection: Connection, tenant: Tenants) -> set[str]:
    """All tenants, or of those that are named, for whom anything was ever recorded: usage, a credit, a profile, a plan or a budget."""
    accounts = connection.execute(select(schema.accounts.c.name).where(_of_tenants(tenant))).scalars()
    found = {_owner(account)[0] for account in accounts}
    for table in (profile_rows, schema.plans, budgets):
        found |= set(connection.execute(select(table.c.tenant).where(*of_tenants(table.c.tenant, tenant)).distinct()).scalars())
    return found


def check_known(connection: Connection, tenant: str, otherwise: str = "") -> None:
    """Raises UnknownTenant for one that is not: its name may be mistyped. ``otherwise`` is what to do if it is not."""
    if not known(connection, tenant):
        raise UnknownTenant(f"Nothing was ever recorded for a tenant {tenant!r}.{otherwise}")


def check_nameable(connection: Connection, tenant: str) -> None:
    """Raises InvalidRequest for a tenant that is to come, under a name that no tenant of the pool can have."""
    if not is_tenant(tenant) and not known(connection, tenant):
        raise InvalidRequest(f"tenant: {tenant!a} is no name; {TENANT_RULE}.")


def check_named(connection: Connection, tenant: str, identity: Identity, otherwise: str) -> None:
    """The same of a tenant that somebody names who is not in it."""
    if tenant != identity.tenant:
        check_known(connection, tenant, otherwise)


def _of_tenants(tenant: Tenants) -> ColumnElement[bool]:
    """The condition on accounts."""
    name = schema.accounts.c.name
    if tenant is None:
        return or_(*(name.startswith(account(""), autoescape=True) for account in _ACCOUNTS))
    return name.in_([account(one) for one in ([tenant] if isinstance(tenant, str) else tenant) for account in _ACCOUNTS])


def _billed_in(version: Version | None) -> str | None:
    return None if version is None else version.profile.currency


def balances_of(connection: Connection, tenant: Tenants) -> dict[str, list[Balance]]:
    """By tenant and currency, of all that have accounts."""
    accounts, rows = schema.accounts.c, schema.balances.c
    joined = schema.accounts.outerjoin(schema.balances, rows.account_id == accounts.id)
    query = select(accounts.name, rows.currency, rows.milli, rows.grains).select_from(joined).where(_of_tenants(tenant))
    sums: dict[str, dict[str, list[int]]] = defaultdict(dict)
    for row in connection.execute(query):
        name, place = _owner(row.name)
        by_currency = sums[name]
        if row.currency is not None:
            by_currency.setdefault(row.currency, [0] * len(_ACCOUNTS))[place] += whole(row.milli, row.grains)
    return {
        name: [Balance(currency, owed, kept, -credit) for currency, (owed, kept, credit) in sorted(found.items())]
        for name, found in sums.items()
    }


def _owner(account: str) -> tuple[str, int]:
    """The tenant whose account it is, and the account's place in ``_ACCOUNTS``."""
    place = next(place for place, name in enumerate(_ACCOUNTS) if account.startswith(name("")))
    return account.removeprefix(_ACCOUNTS[place]("")), place


def outlooks_of(connection: Connection, tenant: Tenants, now_ns: int) -> dict[str, list[Outlook]]:
    """How this month goes, by tenant."""
    scope = Scope(tenant, None) if tenant is None or isinstance(tenant, str) else Scope(None, None, tenant)
    found: dict[str, list[Outlook]] = defaultdict(list)
    for one in summaries.outlooks(connection, scope, now_ns, ["tenant"]):
        found[str(one.keys["tenant"])].append(one)
    return found


def _profiles(connection: Connection, tenant: Tenants) -> dict[str, Version]:
    query = select(profile_rows).where(*of_tenants(profile_rows.c.tenant, tenant)).order_by(profile_rows.c.version)
    return {row.tenant: profiles.version_of(row) for row in connection.execute(query)}
