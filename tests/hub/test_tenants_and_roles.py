"""The directory of people, and the table of roles made from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from forebay_hub.errors import SettingsError
from forebay_hub.identity import COMPUTE, OPERATE, SERVICE, TENANT
from forebay_hub.roles import SCOPES, roles
from forebay_hub.tenants import Directory, Tenant, directory_of, read_directory

ACME = {"acme": {"admins": ["ann"], "members": ["bob"]}}


def test_the_local_installation_has_the_demo_tenants() -> None:
    directory = read_directory(Path(__file__).parents[2] / "deploy" / "local" / "hub.toml")
    assert directory == Directory(
        (
            Tenant("acme", frozenset({"acme-owner"}), frozenset({"acme-member"})),
            Tenant("globex", frozenset({"globex-owner"}), frozenset()),
        ),
        frozenset({"operator"}),
    )


def test_tenants_are_groups_of_their_admins_and_members() -> None:
    assert directory_of({"tenants": ACME}).groups == {"acme": {"users": ["ann", "bob"]}}


def test_everybody_may_sign_in() -> None:
    assert directory_of({"operators": ["op"], "tenants": ACME}).people == {"op", "ann", "bob"}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"operators": ["ann"], "tenants": ACME}, "ann is in the operators and in tenant acme"),
        ({"tenants": {**ACME, "globex": {"members": ["bob"]}}}, "bob is in tenant acme and in tenant globex"),
        ({"tenants": {"Acme!": {}}}, "'Acme!' cannot be a name"),
        ({"operators": ["Op Erator"]}, "'Op Erator' cannot be a name"),
        ({"operators": "operator"}, "operators must be a list of names"),
        ({"tenants": {"acme": {"owner": ["ann"]}}}, r"\[tenants.acme\] has the unknown setting 'owner'"),
        ({"tenant": {}}, "unknown setting 'tenant'"),
        ({"tenants": []}, "tenants must be tables"),
        ({"tenants": {"acme": ["ann"]}}, "tenant acme must be a table"),
    ],
)
def test_a_directory_that_is_wrong_is_refused_with_its_reason(content: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        directory_of(content)


def test_a_file_that_is_missing_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        read_directory(tmp_path / "hub.toml")
    (tmp_path / "hub.toml").write_text("operators = [")
    with pytest.raises(SettingsError, match="is not TOML"):
        read_directory(tmp_path / "hub.toml")


def test_each_of_our_scopes_is_held_by_exactly_the_roles_that_need_it() -> None:
    table = roles(directory_of({"operators": ["op"], "tenants": ACME}), ["pool"])
    holders = {scope: [role.name for role in table if any(held.split("!")[0] == scope for held in role.scopes)] for scope in SCOPES}
    assert holders == {
        COMPUTE: ["forebay-member"],
        TENANT: ["forebay-admin-acme"],
        OPERATE: ["forebay-operator"],
        SERVICE: ["forebay-service"],
    }


def test_a_tenants_admin_is_admin_of_that_tenant_alone() -> None:
    (role,) = [role for role in roles(directory_of({"tenants": ACME}), []) if role.name == "forebay-admin-acme"]
    assert role.users == ("ann",)
    assert all(scope.endswith("!group=acme") for scope in role.scopes)


def test_no_role_inherits() -> None:
    table = roles(directory_of({"operators": ["op"], "tenants": ACME}), ["pool", "billing"])
    assert not [role for role in table if "inherit" in role.scopes]
