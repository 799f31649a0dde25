"""The one table of who may do what: Forebay's custom scopes, and the roles that hold them.

JupyterHub's own scopes: https://jupyterhub.readthedocs.io/en/stable/rbac/scopes.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from forebay_service.identity import BILLING, COMPUTE, OPERATE, OPERATOR_ROLE, SERVICE, TENANT, billing_role, group_of, owner_role

from forebay_hub.groups import NO_GROUPS, Groups
from forebay_hub.tenants import Directory

SCOPES = {
    COMPUTE: "Hold devices of the pool, and see one's own sessions.",
    TENANT: "Own a tenant: see what its members use and spend, and set its bounds.",
    BILLING: "See what a tenant's members use and spend, and pay for it.",
    OPERATE: "Operate the installation: devices, flavors, prices, every tenant's usage.",
    SERVICE: "Act as one of Forebay's services towards the others.",
}
"""Custom scopes and what they permit; shown on JupyterHub's consent pages."""

SERVER_TOKEN_SCOPES = ("users:activity!user", "access:servers!server", f"{COMPUTE}!user")
"""What a notebook server's token may do: report activity, be visited, hold devices on behalf of its user."""

OAUTH_SCOPES = (COMPUTE, TENANT, BILLING, OPERATE)
"""What a service may do on behalf of a visitor; JupyterHub narrows it to what the visitor holds."""

OPERATOR_SCOPES = (
    OPERATE,
    "access:services",
    "admin-ui",
    "delete:servers",
    "list:groups",
    "list:services",
    "list:users",
    "read:hub",
    "read:metrics",
    "servers",
)


SERVICE_SCOPES = (SERVICE, "list:groups")


@dataclass(frozen=True)
class Role:
    """A role as JupyterHub loads it. The description is what an operator reads on the admin page."""

    name: str
    description: str
    scopes: tuple[str, ...]
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    services: tuple[str, ...] = field(default=())

    @property
    def spec(self) -> dict[str, str | list[str]]:
        """The role as an entry of ``JupyterHub.load_roles``."""
        return {
            "name": self.name,
            "description": self.description,
            "scopes": list(self.scopes),
            "users": list(self.users),
            "groups": list(self.groups),
            "services": list(self.services),
        }


POOL = "pool"
METRICS_SERVICE = "prometheus"
METRICS_ROLE = Role(
    "forebay-metrics", "Prometheus, which reads the hub's metrics and nothing else", ("read:metrics",), services=(METRICS_SERVICE,)
)
CULLER = "culler"
CULLER_ROLE = Role(
    "forebay-culler",
    "What stops notebook servers that nobody uses",
    ("list:users", "read:users:activity", "read:servers", "delete:servers"),
    services=(CULLER,),
)


def roles(directory: Directory, services: Sequence[str], groups: Groups = NO_GROUPS) -> list[Role]:
    """Every role of an installation with these people, services, and groups of an identity provider."""
    visits = tuple(f"access:services!service={name}" for name in services)
    tenants = tuple(group_of(tenant.name) for tenant in directory.tenants)
    members = Role("forebay-member", "Members of tenants compute, and visit the pages", (f"{COMPUTE}!user", *visits), groups=tenants)
    owners = [
        Role(
            owner_role(tenant.name),
            f"Owners of tenant {tenant.name}",
            tuple(f"{scope}!group={group_of(tenant.name)}" for scope in (TENANT, "list:users", "read:groups")),
            users=tuple(sorted(tenant.owners)),
            groups=groups.of(tenant.name, "owners"),
        )
        for tenant in directory.tenants
    ]
    billing = [
        Role(
            billing_role(tenant.name),
            f"Who sees and pays the bills of tenant {tenant.name}",
            (f"{BILLING}!group={group_of(tenant.name)}",),
            users=tuple(sorted(tenant.billing)),
            groups=groups.of(tenant.name, "billing"),
        )
        for tenant in directory.tenants
    ]
    operators = Role(
        OPERATOR_ROLE,
        "Operators of this installation",
        OPERATOR_SCOPES,
        users=tuple(sorted(directory.operators)),
        groups=tuple(sorted(groups.operators)),
    )
    what = "Forebay's services; they read which tenants there are"
    ours = Role("forebay-service", what, SERVICE_SCOPES, services=tuple(services))
    what = "The pool, which starts and stops the servers that jobs run in, and tells who computes"
    starts_jobs = Role("forebay-jobs", what, ("servers", "users:activity"), services=(POOL,))
    return [members, *owners, *billing, operators, ours, *([starts_jobs] if POOL in services else [])]
