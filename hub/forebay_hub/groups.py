"""Groups of an identity provider as tenants and roles: who is in which is decided there, anew at each sign-in.

``hub.toml`` names them: ``operator_groups = ["gpu-operators"]``, and ``owners``, ``billing`` and ``members`` of ``[tenants.NAME.groups]``.
The authenticator must tell them (JupyterHub's ``manage_groups``). JupyterHub's authenticator for LDAP tells only which of the groups that
it is given by their DN somebody is in, so it is given those of the table, and its answer is read.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from forebay_service.errors import SettingsError
from forebay_service.identity import group_of
from forebay_service.people.names import TENANT_GROUP
from jupyterhub.auth import Authenticator
from tornado.web import HTTPError

from forebay_hub.tenants import ROLES, Directory, names_of, read_file, refuse_unknown


@dataclass(frozen=True)
class Groups:
    """``tenants``: of each tenant the groups by what they make of their people (owners, billing, members)."""

    operators: frozenset[str] = frozenset()
    tenants: Mapping[str, Mapping[str, frozenset[str]]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.operators or any(any(made.values()) for made in self.tenants.values()))

    def __post_init__(self) -> None:
        for group in self.names:
            if group.startswith(TENANT_GROUP):
                raise SettingsError(f"{group!r} cannot be a group of an identity provider: groups of that name are the tenants themselves")

    @property
    def names(self) -> list[str]:
        """All that have a place here."""
        return sorted({*self.operators, *(name for made in self.tenants.values() for some in made.values() for name in some)})

    def of(self, tenant: str, role: str) -> tuple[str, ...]:
        return tuple(sorted(self.tenants.get(tenant, {}).get(role, ())))

    def tenants_of(self, groups: Collection[str]) -> list[str]:
        """Those that somebody in these groups belongs to; more than one is refused later, with both names."""
        return [tenant for tenant, made in self.tenants.items() if any(names & set(groups) for names in made.values())]


NO_GROUPS = Groups()


def read_groups(path: Path) -> Groups:
    """Raises SettingsError."""
    content = read_file(path)
    tenants = {name: table.get("groups", {}) for name, table in content.get("tenants", {}).items()}
    for name, made in tenants.items():
        refuse_unknown(made, ROLES, f"[tenants.{name}.groups]")
    return Groups(
        names_of(content.get("operator_groups", []), "operator_groups"),
        {
            tenant: {role: names_of(names, f"tenants.{tenant}.groups.{role}") for role, names in made.items()}
            for tenant, made in tenants.items()
        },
    )


def placing(authenticator: object, groups: Groups, directory: Callable[[], Directory]) -> type[Authenticator]:
    """The authenticator, with tenants among the groups of who signs in. ``directory`` tells whom the file and owners placed; it counts
    for those whom no group places."""
    base = _loaded(authenticator)
    by_ldap = hasattr(base, "group_search_filter")

    class Placing(base):  # type: ignore[misc, valid-type] # made of what the operator chose
        """Named as the class that it extends, whose settings it has."""

        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            if by_ldap:
                self.allowed_groups = sorted({*(self.allowed_groups or ()), *groups.names})  # type: ignore[has-type] # a trait of the base

        async def get_authenticated_user(self, handler: Any, data: Any) -> Any:
            return self._placed(await super().get_authenticated_user(handler, data))

        async def refresh_user(self, user: Any, handler: Any = None, **more: Any) -> Any:
            found = await super().refresh_user(user, handler, **more)
            return self._placed(found) if isinstance(found, dict) and "groups" in found else found

        def _placed(self, found: dict[str, Any] | None) -> dict[str, Any] | None:
            if found is None:
                return None
            if by_ldap:
                found = {**found, "groups": (found["auth_state"] or {}).get("ldap_groups")}
            told = [name for name in found.get("groups") or () if not name.startswith(TENANT_GROUP)]
            placed = place(found["name"], told, groups, directory())
            if placed is None:
                raise HTTPError(403, reason=f"{found['name']} is in no group that has a place here. Ask an operator of this installation.")
            return {**found, "groups": [*told, *placed]}

    Placing.__name__ = base.__name__
    return Placing


def place(login: str, told: Collection[str], groups: Groups, directory: Directory) -> list[str] | None:
    """The groups of the tenants that a login belongs to; None where it has no place here. Pure."""
    tenants = groups.tenants_of(told)
    if not tenants:
        tenants = [tenant.name for tenant in directory.tenants if login in tenant.people]
    if not tenants and login not in directory.people and not groups.operators & set(told):
        return None
    return [group_of(tenant) for tenant in tenants]


def _loaded(authenticator: object) -> Any:
    """By the name that JupyterHub knows it by, or its import path. Raises SettingsError."""
    if isinstance(authenticator, type):
        return authenticator
    name = str(authenticator)
    for entry in entry_points(group="jupyterhub.authenticators", name=name):
        return entry.load()
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, ValueError, AttributeError) as error:
        raise SettingsError(f"authenticator_class {name!r} is not installed ({error})") from None
