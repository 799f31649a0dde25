"""The directory of people, and the table of roles made from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from forebay_hub.configuration import Settings, configure
from forebay_hub.roles import SCOPES, roles
from forebay_hub.tenants import Directory, Tenant, directory_of, read_directory
from forebay_hub.tokens import ensure_token
from forebay_service.errors import SettingsError
from forebay_service.identity import BILLING, COMPUTE, OPERATE, SERVICE, TENANT
from traitlets.config import Config

ACME = {"acme": {"owners": ["ann"], "billing": ["cyd"], "members": ["bob"]}}


def test_the_local_installation_has_the_demo_tenants() -> None:
    directory = read_directory(Path(__file__).parents[2] / "deploy" / "local" / "hub.toml")
    assert directory == Directory(
        (
            Tenant("acme", frozenset({"acme-owner"}), frozenset(), frozenset({"acme-member"})),
            Tenant("globex", frozenset({"globex-owner"}), frozenset(), frozenset()),
        ),
        frozenset({"operator"}),
    )


def test_tenants_are_groups_of_all_their_people() -> None:
    assert directory_of({"tenants": ACME}).groups == {"tenant-acme": {"users": ["ann", "bob", "cyd"]}}


def test_everybody_may_sign_in() -> None:
    assert directory_of({"operators": ["op"], "tenants": ACME}).people == {"op", "ann", "bob", "cyd"}


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
        TENANT: ["forebay-owner-acme"],
        BILLING: ["forebay-billing-acme"],
        OPERATE: ["forebay-operator"],
        SERVICE: ["forebay-service"],
    }


@pytest.mark.parametrize(("role", "users"), [("owner", ("ann",)), ("billing", ("cyd",))])
def test_what_a_tenants_people_hold_they_hold_of_that_tenant_alone(role: str, users: tuple[str, ...]) -> None:
    (found,) = [each for each in roles(directory_of({"tenants": ACME}), []) if each.name == f"forebay-{role}-acme"]
    assert found.users == users
    assert all(scope.endswith("!group=tenant-acme") for scope in found.scopes)


def test_no_role_inherits() -> None:
    table = roles(directory_of({"operators": ["op"], "tenants": ACME}), ["pool", "billing"])
    assert not [role for role in table if "inherit" in role.scopes]


@pytest.mark.parametrize("token", ["", "0123456789abcdef"])
def test_with_a_token_for_metrics_the_hub_knows_a_service_that_may_read_them_and_nothing_else(token: str) -> None:
    c = Config()
    configure(c, Settings(directory_of({"operators": ["op"], "tenants": ACME}), (), "sqlite://", token))
    assert c.JupyterHub.services == ([{"name": "prometheus", "api_token": token}] if token else [])
    held = [(role["name"], role["scopes"]) for role in c.JupyterHub.load_roles if "prometheus" in role["services"]]
    assert held == ([("forebay-metrics", ["read:metrics"])] if token else [])


def test_a_token_is_made_once_and_is_the_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "scrape-token"
    token = ensure_token(file)
    assert len(token) == 64 and ensure_token(file) == token
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("")
    assert ensure_token(file) not in ("", token)
    file.write_text("chosen-by-an-operator\n")
    assert ensure_token(file) == "chosen-by-an-operator"
