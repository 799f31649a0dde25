"""Who pays: a tenant is a JupyterHub group of the name ``tenant-NAME``; its owners, and who pays for it, hold roles on that group."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from forebay_service.errors import SettingsError
from forebay_service.identity import group_of
from forebay_service.people.names import LOGIN_RULE, TENANT_RULE, is_login, is_tenant

ROLES = ("owners", "billing", "members")


Role = Literal["owner", "billing", "member"]


@dataclass(frozen=True)
class Decision:
    """What a login is in a tenant, as one of its owners decided; None: nothing any more."""

    tenant: str
    login: str
    role: Role | None


@dataclass(frozen=True)
class Tenant:
    """A customer. ``owners`` administer it, ``billing`` see and pay its bills, ``members`` see their own usage; all may compute."""

    name: str
    owners: frozenset[str]
    billing: frozenset[str]
    members: frozenset[str]

    @property
    def people(self) -> frozenset[str]:
        return self.owners | self.billing | self.members

    def role_of(self, login: str) -> Role:
        """What one of its people is; who is named twice is the first of them."""
        return "owner" if login in self.owners else "billing" if login in self.billing else "member"


@dataclass(frozen=True)
class Directory:
    """Everybody who may sign in. Operators run the installation and belong to no tenant."""

    tenants: tuple[Tenant, ...]
    operators: frozenset[str]
    guests: frozenset[str] = frozenset()
    """Who belonged to a tenant, and may sign in to take another invitation."""

    def __post_init__(self) -> None:
        owner: dict[str, str] = dict.fromkeys(self.operators, "the operators")
        for tenant in self.tenants:
            for person in sorted(tenant.people):
                if person in owner:
                    raise SettingsError(f"{person} is in {owner[person]} and in tenant {tenant.name}; a login belongs to one of them")
                owner[person] = f"tenant {tenant.name}"
        for names, fits, rule in ((owner, is_login, LOGIN_RULE), ([one.name for one in self.tenants], is_tenant, TENANT_RULE)):
            for name in names:
                if not fits(name):
                    raise SettingsError(f"{name!a} cannot be a name: {rule}; names of services are nobody's")

    @property
    def people(self) -> frozenset[str]:
        return self.operators.union(self.guests, *(tenant.people for tenant in self.tenants))

    def overlaid(self, decisions: Iterable[Decision]) -> Directory:
        """The directory with what owners decided, the oldest decision first.

        Whom the file places in another tenant stands there: an operator's word counts more. A login of an older release that is none by now
        is left out.
        """
        made = {(one.tenant, one.login): one for one in decisions if is_login(one.login)}
        tenants = {one.name: {login: one.role_of(login) for login in one.people} for one in self.tenants}
        for one in made.values():
            if one.role is None and one.tenant in tenants:
                tenants[one.tenant].pop(one.login, None)
        for one in made.values():
            elsewhere = [name for name, people in tenants.items() if one.login in people and name != one.tenant]
            if one.role is not None and one.tenant in tenants and not elsewhere and one.login not in self.operators:
                tenants[one.tenant][one.login] = one.role
        placed = self.operators.union(*tenants.values())
        guests = {one.login for one in made.values()} - placed
        return Directory(tuple(_tenant_from(name, people) for name, people in tenants.items()), self.operators, frozenset(guests))

    @property
    def groups(self) -> dict[str, dict[str, Any]]:
        """The tenants as ``JupyterHub.load_groups``."""
        return {group_of(tenant.name): {"users": sorted(tenant.people)} for tenant in self.tenants}


def _tenant_from(name: str, people: Mapping[str, Role]) -> Tenant:
    owners, billing, members = (frozenset(one for one in people if people[one] == role) for role in ("owner", "billing", "member"))
    return Tenant(name, owners, billing, members)


def read_file(path: Path) -> dict[str, Any]:
    """What ``hub.toml`` says. Raises SettingsError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not TOML: {error}") from None


def read_directory(path: Path) -> Directory:
    """The directory in a TOML file: ``operators = [...]`` and ``[tenants.NAME]`` with ``owners``, ``billing`` and ``members``.

    Raises SettingsError."""
    return directory_of(read_file(path))


def directory_of(content: Mapping[str, Any]) -> Directory:
    """Checks what a file says. Raises SettingsError."""
    refuse_unknown(content, {"operators", "tenants", "look", "culling", "operator_groups"}, "the file")
    tenants = content.get("tenants", {})
    if not isinstance(tenants, Mapping):
        raise SettingsError("tenants must be tables: [tenants.NAME]")
    return Directory(
        tenants=tuple(_tenant_of(name, table) for name, table in tenants.items()),
        operators=names_of(content.get("operators", []), "operators"),
    )


def _tenant_of(name: str, table: object) -> Tenant:
    if not isinstance(table, Mapping):
        raise SettingsError(f"tenant {name} must be a table: [tenants.{name}]")
    refuse_unknown(table, {*ROLES, "groups"}, f"[tenants.{name}]")
    owners, billing, members = (names_of(table.get(role, []), f"tenants.{name}.{role}") for role in ROLES)
    return Tenant(name, owners, billing, members)


def names_of(value: object, where: str) -> frozenset[str]:
    """Checks a list of names. Raises SettingsError."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise SettingsError(f"{where} must be a list of names, not {value!r}")
    return frozenset(value)


def refuse_unknown(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Raises SettingsError."""
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise SettingsError(f"{where} has the unknown setting {unknown[0]!r}; known are {', '.join(sorted(known))}")
