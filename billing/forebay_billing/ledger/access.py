"""Who may see whose usage. Every read of tenant data goes through :func:`usage_scope`, every other endpoint through its own line here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forebay_service.identity import BILLING, COMPUTE, OPERATE, SERVICE, TENANT, Identity

from forebay_billing.errors import Forbidden, InvalidRequest, UnknownRecord
from forebay_billing.rules.budgets import Origin


@dataclass(frozen=True)
class Scope:
    """What a caller may see, and asked for. None means all tenants, or all users of the tenant."""

    tenant: str | None
    user: str | None
    among: Sequence[str] | None = None
    """Only these tenants, of all."""


def usage_scope(identity: Identity, tenant: str | None, user: str | None) -> Scope:
    """The part of ``tenant`` and ``user`` (None: all there is) that ``identity`` may see. Raises Forbidden."""
    if identity.may(SERVICE):
        return Scope(tenant, user)
    if identity.may(OPERATE):
        return Scope(tenant, user)
    if identity.kind != "user":
        raise Forbidden(f"The service {identity.name} needs the scope {SERVICE} to see usage.")
    if identity.tenant is None:
        raise Forbidden(f"The user {identity.name} belongs to no tenant, so there is no usage to see.")
    if tenant not in (None, identity.tenant):
        raise Forbidden(f"The user {identity.name} belongs to the tenant {identity.tenant} and may not see another's usage.")
    if identity.sees_tenant:
        return Scope(identity.tenant, user)
    if user not in (None, identity.name):
        raise Forbidden(f"The user {identity.name} may see their own usage only; {TENANT} or {BILLING} is needed for others of the tenant.")
    return Scope(identity.tenant, identity.name)


def check_may_post_usage(identity: Identity) -> None:
    """Usage and heartbeats. Raises Forbidden unless the caller is one of our services."""
    if not identity.may(SERVICE):
        raise Forbidden(f"{identity.name} needs the scope {SERVICE} to post usage.")


def check_may_send_mail(identity: Identity) -> None:
    """Mails in the installation's name. Raises Forbidden unless the caller is one of our services."""
    if not identity.may(SERVICE):
        raise Forbidden(f"{identity.name} needs the scope {SERVICE} to have letters sent.")


def check_may_tell_of_jobs(identity: Identity) -> None:
    """Raises Forbidden unless the caller is one of our services: jobs are the pool's."""
    if not identity.may(SERVICE):
        raise Forbidden(f"{identity.name} needs the scope {SERVICE} to tell of jobs.")


def check_may_change_books(identity: Identity) -> None:
    """Prices, plans, what they would come to, and corrections. Raises Forbidden unless the caller is an operator."""
    if not identity.may(OPERATE):
        raise Forbidden(f"{identity.name} needs the scope {OPERATE} to change prices and plans or correct usage.")


def plan_scope(identity: Identity, tenant: str | None) -> str | None:
    """The tenant whose plan ``identity`` may see; None is all. Raises Forbidden."""
    if identity.may(OPERATE) or identity.may(SERVICE):
        return tenant
    if identity.kind != "user" or identity.tenant is None or not identity.sees_tenant:
        raise Forbidden(f"{identity.name} needs the scope {TENANT} or {BILLING} and a tenant to see its plan.")
    if tenant not in (None, identity.tenant):
        raise Forbidden(f"The user {identity.name} belongs to the tenant {identity.tenant} and may not see another's plan.")
    return identity.tenant


def check_may_see_currencies(identity: Identity) -> None:
    """What each tenant is billed in. Raises Forbidden unless the caller is an operator or one of our services."""
    if not (identity.may(OPERATE) or identity.may(SERVICE)):
        raise Forbidden(f"{identity.name} needs the scope {OPERATE} or {SERVICE} to see what tenants are billed in.")


def check_may_audit(identity: Identity) -> None:
    """Raises Forbidden unless the caller is an operator."""
    if not identity.may(OPERATE):
        raise Forbidden(f"{identity.name} needs the scope {OPERATE} to see who changed what.")


def check_may_search(identity: Identity) -> None:
    """Raises Forbidden unless the caller is an operator."""
    if not identity.may(OPERATE):
        raise Forbidden(f"{identity.name} needs the scope {OPERATE} to search all tenants.")


def check_may_scrape(identity: Identity) -> None:
    """Raises Forbidden unless the caller is an operator or one of our services."""
    if not (identity.may(OPERATE) or identity.may(SERVICE)):
        raise Forbidden(f"{identity.name} needs the scope {OPERATE} or {SERVICE} to read metrics or check the books.")


def check_may_operate_payments(identity: Identity) -> None:
    """Raises Forbidden unless the caller is an operator."""
    if not identity.may(OPERATE):
        raise Forbidden(f"{identity.name} needs the scope {OPERATE} to see or change how tenants are charged.")


def settling_tenant(identity: Identity, tenant: str | None) -> str:
    """The tenant whose balance ``identity`` may see: its own for an admin, any for operators and services.

    Raises Forbidden, InvalidRequest.
    """
    if identity.may(SERVICE) or identity.may(OPERATE):
        if tenant is None and identity.tenant is None:
            raise InvalidRequest("tenant: name the tenant whose balance you want.")
        return tenant or str(identity.tenant)
    if identity.kind != "user" or identity.tenant is None or tenant not in (None, identity.tenant):
        raise Forbidden(f"{identity.name} may not see the balance of {'any tenant' if tenant is None else tenant}.")
    if not identity.sees_tenant:
        raise Forbidden(f"{identity.name} needs the scope {TENANT} or {BILLING} to see the tenant's balance.")
    return identity.tenant


def check_may_invoice(identity: Identity, why: str = "") -> None:
    """Raises Forbidden unless the caller is an operator."""
    if not identity.may(OPERATE):
        raise Forbidden(f"{why}{identity.name} needs the scope {OPERATE} to finalise invoices and change what is owed.")


def paying_scope(identity: Identity, tenant: str | None) -> str | None:
    """The tenant whose invoices and credits ``identity`` may see; None: every one's, for an operator who names none. Raises Forbidden."""
    return None if identity.may(OPERATE) and tenant is None else paying_tenant(identity, tenant)


def named_tenant(identity: Identity, tenant: str, lacking: str) -> str:
    """As :func:`paying_tenant`, for a tenant that is part of the path: another's is not there, whether it exists or not.

    ``lacking`` is what a tenant of the caller's would have, if it had it.

    Raises Forbidden, UnknownRecord.
    """
    if not identity.may(OPERATE) and identity.sees_tenant and tenant != identity.tenant:
        raise UnknownRecord(f"The tenant {tenant} has no {lacking} yet.")
    return paying_tenant(identity, tenant)


def paying_tenant(identity: Identity, tenant: str | None) -> str:
    """The tenant for which ``identity`` may see and arrange payments: its own for an admin, any for an operator. Raises Forbidden."""
    if identity.may(OPERATE) and tenant is not None:
        return tenant
    if identity.kind != "user" or identity.tenant is None:
        raise Forbidden(f"{identity.name} belongs to no tenant; an operator names one.")
    if tenant not in (None, identity.tenant):
        raise Forbidden(f"The user {identity.name} belongs to the tenant {identity.tenant} and may not arrange another's payments.")
    if not identity.sees_tenant:
        raise Forbidden(f"{identity.name} needs the scope {TENANT} or {BILLING} to see and arrange the tenant's payments.")
    return identity.tenant


def budget_author(identity: Identity, tenant: str | None, own: bool, any_tenant: bool = False) -> tuple[str, Origin]:
    """The tenant whose budgets ``identity`` may set, and in whose name. Raises Forbidden.

    ``own``: the budget is for one label of the identity's own work, for which anybody who computes may set one. With ``any_tenant`` an
    operator need not name one, and gets the empty string for all.
    """
    if identity.may(OPERATE):
        if tenant is None and not any_tenant:
            raise InvalidRequest("tenant: name the tenant whose budget this is.")
        return tenant or "", "operator"
    if own and identity.may(COMPUTE) and not identity.sees_tenant and identity.tenant is not None and tenant in (None, identity.tenant):
        return identity.tenant, "user"
    return _owned_tenant(identity, tenant, "budgets"), "owner"


def recipient_tenant(identity: Identity, tenant: str | None) -> str | None:
    """The tenant whose reports ``identity`` may have mailed: any for an operator (None: all), its own for an admin."""
    return tenant if identity.may(OPERATE) else _owned_tenant(identity, tenant, "reports")


def channel_tenant(identity: Identity, tenant: str | None) -> str | None:
    """The tenant whose alerts ``identity`` may send somewhere: any for an operator (None: those of all), its own for its admin."""
    return tenant if identity.may(OPERATE) else _owned_tenant(identity, tenant, "alerts")


def own_notices(identity: Identity) -> tuple[str, str]:
    """The tenant and the user whose own notices and channels these are. Raises Forbidden."""
    if identity.kind != "user" or identity.tenant is None:
        raise Forbidden(f"{identity.name} belongs to no tenant, and computes nothing that could be told of.")
    if not identity.may(COMPUTE):
        raise Forbidden(f"{identity.name} needs the scope {COMPUTE} to be told of own work.")
    return identity.tenant, identity.name


def own_preferences(identity: Identity) -> str:
    """The user whose own preferences these are. Raises Forbidden."""
    if identity.kind != "user" or not (identity.may(COMPUTE) or identity.may(OPERATE)):
        raise Forbidden(f"{identity.name} is no user, or needs the scope {COMPUTE}, to choose how to be told.")
    return identity.name


def _owned_tenant(identity: Identity, tenant: str | None, what: str) -> str:
    if identity.kind != "user" or identity.tenant is None:
        raise Forbidden(f"{identity.name} belongs to no tenant, whose {what} could be set.")
    if tenant not in (None, identity.tenant):
        raise Forbidden(f"The user {identity.name} belongs to the tenant {identity.tenant} and may not set another's {what}.")
    if not identity.sees_tenant:
        raise Forbidden(f"{identity.name} needs the scope {TENANT} or {BILLING} to set the tenant's {what}.")
    return identity.tenant
