"""Who has a role by a group of an identity provider: shown with it, and changed where the group is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from forebay_hub.people.members import everybody, may_invite, members_of, operators, set_member
from forebay_hub.people.tables import METADATA
from forebay_hub.tenants import Decision, Role
from forebay_service.errors import Conflict
from forebay_service.identity import OPERATOR_ROLE, billing_role, group_of, owner_role
from jupyterhub import orm
from sqlalchemy.orm import Session

BY_GROUP = {"ada": "admins", "mona": "money", "olga": "operators"}


@pytest.fixture
def database() -> Iterator[Session]:
    session = orm.new_session_factory("sqlite:///:memory:")()
    METADATA.create_all(session.get_bind())
    tenant = orm.Group(name=group_of("acme"))
    groups = {name: orm.Group(name=name) for name in BY_GROUP.values()}
    roles = {name: orm.Role(name=name) for name in (owner_role("acme"), billing_role("acme"), OPERATOR_ROLE, owner_role("globex"))}
    session.add_all([tenant, *groups.values(), *roles.values()])
    for role, group in ((owner_role("acme"), "admins"), (billing_role("acme"), "money"), (OPERATOR_ROLE, "operators")):
        roles[role].groups.append(groups[group])
    for login in ("ada", "mona", "olga", "ben", "root"):
        user = orm.User(name=login)
        session.add(user)
        if login in BY_GROUP:
            groups[BY_GROUP[login]].users.append(user)
        if login != "olga":
            tenant.users.append(user)
    roles[owner_role("acme")].users.append(orm.User.find(session, "root"))
    session.commit()
    yield session
    session.get_bind().dispose()


def test_owners_by_a_group_are_listed_as_owners_and_may_invite(database: Session) -> None:
    expected = {"ada": "owner", "ben": "member", "mona": "billing", "root": "owner"}
    assert members_of(database, "acme") == expected
    assert {one.name: one.role for one in everybody(database)} == expected
    assert operators(database) == ["olga"]
    assert [login for login in (*expected, "olga") if may_invite(database, login, "acme")] == ["ada", "root", "olga"]
    assert not may_invite(database, "ada", "globex")


@pytest.mark.parametrize("role", ["owner", "billing", "member", None])
@pytest.mark.parametrize("login", ["ada", "mona"])
def test_a_role_by_a_group_is_not_changed_here(database: Session, login: str, role: Role | None) -> None:
    with pytest.raises(Conflict) as refused:
        set_member(database, Decision("acme", login, role), "root", 1)
    assert refused.value.fault is not None and refused.value.fault.code == "role_by_group"
    assert members_of(database, "acme")[login] != "member"


def test_an_owner_by_group_is_enough_for_a_tenant(database: Session) -> None:
    set_member(database, Decision("acme", "root", "member"), "ada", 1)
    assert members_of(database, "acme")["root"] == "member"
