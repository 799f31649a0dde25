"""The people of a tenant in JupyterHub's own tables: its group, and the roles of owners and of who pays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from forebay_service.errors import Conflict, Fault, NotFound
from forebay_service.identity import OPERATOR_ROLE, billing_role, group_of, owner_role
from forebay_service.languages import Text
from forebay_service.people.memberships import Membership
from forebay_service.people.names import TENANT_GROUP, is_login
from jupyterhub import orm
from jupyterhub.roles import grant_role, strip_role
from sqlalchemy import or_
from sqlalchemy.orm import Session

from forebay_hub.people import invitations
from forebay_hub.people.decisions import decide
from forebay_hub.tenants import Decision, Role


def members_of(db: Session, tenant: str) -> dict[str, Role]:
    """Everybody who belongs to the tenant, by name. Raises NotFound."""
    group = _group(db, tenant)
    return {user.name: _role(user, tenant) for user in sorted(group.users, key=lambda user: user.name)}


def everybody(db: Session) -> list[Membership]:
    """Of all tenants, in three queries, however many there are."""
    of_tenants = orm.Group.name.startswith(TENANT_GROUP, autoescape=True)
    places = db.query(orm.Group.name, orm.User.name).select_from(orm.Group).join(orm.Group.users).filter(of_tenants)
    of_ours = or_(*(orm.Role.name.startswith(role(""), autoescape=True) for role in (owner_role, billing_role)))
    held: defaultdict[str, set[str]] = defaultdict(set)
    names = db.query(orm.User.name, orm.Role.name).select_from(orm.Role)
    for holders in (names.join(orm.Role.users), names.join(orm.Role.groups).join(orm.Group.users)):
        for name, role in holders.filter(of_ours):
            held[name].add(role)
    found = []
    for group, name in places.order_by(orm.Group.name, orm.User.name):
        tenant = group.removeprefix(TENANT_GROUP)
        found.append(Membership(name, tenant, _role_among(held[name], tenant)))
    return found


def operators(db: Session) -> list[str]:
    """Who operates the installation."""
    role = orm.Role.find(db, OPERATOR_ROLE)
    return [] if role is None else sorted({user.name for holder in (role, *role.groups) for user in holder.users})


def set_member(db: Session, decision: Decision, who: str, now_ns: int) -> None:
    """Has somebody who belongs to the tenant be something else in it, or, without a role, belong to it no more. Nothing is committed.

    Open invitations of who may invite nobody any more end with it, and the tokens of who leaves. Raises NotFound, Conflict.
    """
    members = members_of(db, decision.tenant)
    before = members.get(decision.login)
    if before is None:
        raise NotFound(f"{decision.login} does not belong to the tenant {decision.tenant}.", Fault("no_member"))
    owners = [name for name, role in members.items() if role == "owner"]
    by_group = {role.name for group in orm.User.find(db, decision.login).groups for role in group.roles}
    if _role_among(by_group, decision.tenant) != "member":
        raise Conflict(
            f"{decision.login} is {before} of {decision.tenant} by a group of the identity provider; change it there.",
            Fault("role_by_group", values={"name": decision.login}),
        )
    if owners == [decision.login] and decision.role != "owner":
        raise Conflict(
            f"{decision.login} is the only owner of {decision.tenant}; make somebody else an owner first.",
            Fault("last_owner", values={"name": decision.login}),
        )
    _place(db, decision)
    decide(db.connection(), decision, before, who, now_ns)
    if not may_invite(db, decision.login, decision.tenant):
        invitations.revoke_of(db.connection(), decision.tenant, decision.login, who, now_ns)
    if decision.role is None:
        _end_tokens(db, decision.login)


def may_invite(db: Session, login: str, tenant: str) -> bool:
    """Whether the login owns the tenant, or operates the installation, now."""
    user = orm.User.find(db, login)
    if user is None:
        return False
    held = roles_of(user)
    owns = owner_role(tenant) in held and any(group.name == group_of(tenant) for group in user.groups)
    return owns or OPERATOR_ROLE in held


def _end_tokens(db: Session, login: str) -> None:
    """Programs of somebody who left know tokens that would act for the next tenant. The person signs in again."""
    user = orm.User.find(db, login)
    if user is not None:
        for token in list(user.api_tokens):
            db.delete(token)


def join(db: Session, decision: Decision, now_ns: int) -> None:
    """Has a login that belongs to no tenant belong to this one. Nothing is committed. Raises NotFound, Conflict."""
    group, user = _group(db, decision.tenant), orm.User.find(db, decision.login)
    if user is None:
        raise NotFound(f"There is no login {decision.login}.")
    if not is_login(decision.login):
        raise Conflict(
            Text("A login that belongs to a tenant has small letters, digits and “. _ - + @”, at most 128 of them; yours has others.")
        )
    if group in user.groups:
        raise Conflict(Text("You belong to %(tenant)s already.", tenant=decision.tenant))
    if any(one.name.startswith(TENANT_GROUP) for one in user.groups):
        raise Conflict(Text("You belong to another tenant, and a login belongs to one. Sign out, and join with another login."))
    if OPERATOR_ROLE in roles_of(user):
        raise Conflict(Text("You operate this installation, and operators belong to no tenant. Sign out, and join with another login."))
    _place(db, decision)
    decide(db.connection(), decision, None, decision.login, now_ns)


def _place(db: Session, decision: Decision) -> None:
    group, user = _group(db, decision.tenant), orm.User.find(db, decision.login)
    for name, wanted in ((owner_role(decision.tenant), "owner"), (billing_role(decision.tenant), "billing")):
        role = orm.Role.find(db, name)
        if role is None:
            raise Conflict(f"JupyterHub has no role {name}: the tenant {decision.tenant} is not in the directory of people.")
        (grant_role if decision.role == wanted else strip_role)(db, user, role, commit=False)
    if decision.role is None:
        group.users.remove(user)
    elif user not in group.users:
        group.users.append(user)


def _group(db: Session, tenant: str) -> orm.Group:
    group = orm.Group.find(db, group_of(tenant))
    if group is None:
        raise NotFound(f"There is no tenant {tenant}.")
    return group


def _role(user: orm.User, tenant: str) -> Role:
    return _role_among(roles_of(user), tenant)


def roles_of(user: orm.User) -> set[str]:
    """The roles that a person holds, by groups of an identity provider too."""
    return {role.name for holder in (user, *user.groups) for role in holder.roles}


def _role_among(held: Collection[str], tenant: str) -> Role:
    if owner_role(tenant) in held:
        return "owner"
    return "billing" if billing_role(tenant) in held else "member"
