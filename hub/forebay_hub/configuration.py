"""Sets on JupyterHub what every installation of Forebay needs, whatever its proxy, spawner and sign-in are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay_service.identity import OPERATOR_ROLE, billing_role, owner_role
from forebay_service.people.names import LOGIN_PATTERN, RESERVED, TENANT_GROUP
from forebay_service.process import keep_secrets

from forebay_hub import branding, health
from forebay_hub.branding import OURS, PAGES, Branding
from forebay_hub.clients import sign_in
from forebay_hub.culling import NEVER, Culling
from forebay_hub.groups import NO_GROUPS, Groups, placing
from forebay_hub.people import api, joining
from forebay_hub.people.decisions import read_decisions
from forebay_hub.roles import CULLER_ROLE, METRICS_ROLE, METRICS_SERVICE, SCOPES, SERVER_TOKEN_SCOPES, roles
from forebay_hub.services import ExternalService, ManagedService
from forebay_hub.tenants import Directory
from forebay_hub.turns import limit_rate


@dataclass(frozen=True)
class Settings:
    """Whom an installation serves, its services, and where the hub keeps what outlives it. ``metrics_token``, if there is one, reads the
    hub's metrics. ``culling`` says when servers that nobody uses are stopped."""

    directory: Directory
    services: tuple[ManagedService, ...] | tuple[ExternalService, ...]
    database_url: str
    metrics_token: str = ""
    branding: Branding = OURS
    culling: Culling = NEVER
    groups: Groups = NO_GROUPS


def configure(c: Any, settings: Settings) -> Directory:
    """Writes tenants, scopes, roles and services into a JupyterHub configuration object. The directory that counts, with what owners
    decided. Raises SettingsError.
    """
    keep_secrets("JupyterHub", "tornado.access", "tornado.application", "tornado.general")
    directory = settings.directory.overlaid(read_decisions(settings.database_url))
    limit_rate(c)
    c.JupyterHub.db_url = settings.database_url
    c.JupyterHub.extra_handlers = [*api.ROUTES, *joining.ROUTES, *sign_in.ROUTES, *branding.ROUTES, *health.ROUTES]
    c.JupyterHub.custom_scopes = {scope: {"description": description} for scope, description in SCOPES.items()}
    c.JupyterHub.load_groups = directory.groups
    table = roles(directory, [service.name for service in settings.services], settings.groups)
    c.JupyterHub.services = _specs(settings.services)
    if settings.metrics_token:
        table.append(METRICS_ROLE)
        c.JupyterHub.services.append({"name": METRICS_SERVICE, "api_token": settings.metrics_token})
    if settings.culling.enabled:
        table.append(CULLER_ROLE)
        c.JupyterHub.services.append(settings.culling.spec)
    c.JupyterHub.load_roles = [role.spec for role in table]
    c.JupyterHub.default_url = landing
    c.JupyterHub.allow_named_servers = True  # each job has one; the spawner refuses all others
    c.JupyterHub.template_paths = [str(Path(__file__).parent / "templates")]
    c.JupyterHub.jinja_environment_options = {"extensions": [branding.templates_of(settings.branding)]}
    c.JupyterHub.logo_file = settings.branding.logo_file
    c.Spawner.server_token_scopes = list(SERVER_TOKEN_SCOPES)
    c.Authenticator.allowed_users = set(directory.people)
    c.Authenticator.username_pattern = LOGIN_PATTERN
    c.Authenticator.blocked_users = set(RESERVED)
    return directory


def let_groups_place(c: Any, settings: Settings, authenticator: object) -> None:
    """Has groups of the identity provider decide who belongs where, if the settings name any. Raises SettingsError."""
    if not settings.groups:
        return

    def directory() -> Directory:
        return settings.directory.overlaid(read_decisions(settings.database_url))

    c.JupyterHub.authenticator_class = placing(authenticator, settings.groups, directory)
    c.JupyterHub.load_groups = {}  # JupyterHub takes no others where an authenticator manages them
    c.Authenticator.manage_groups = True
    c.Authenticator.allow_all = True  # whom no group places is refused by the authenticator itself


def landing(handler: Any) -> str:
    """Where somebody arrives after signing in: operators at the console, who owns or pays for a tenant at its page, others at their
    notebooks, as JupyterHub does it, which is what an empty address says."""
    user = handler.current_user
    if user is None:
        return ""
    groups = [group.name for group in user.groups]
    held = {role.name for holder in (user, *user.groups) for role in holder.roles}
    tenants = [name.removeprefix(TENANT_GROUP) for name in groups if name.startswith(TENANT_GROUP)]
    pages = f"{handler.settings['base_url']}{PAGES}"
    if OPERATOR_ROLE in held and not tenants:
        return f"{pages}operator"
    return f"{pages}tenant" if any(held & {owner_role(tenant), billing_role(tenant)} for tenant in tenants) else ""


def _specs(services: Iterable[ManagedService | ExternalService]) -> list[dict[str, Any]]:
    return [service.spec for service in services]
