"""What a login is told that JupyterHub knows, but that can use nothing."""

from __future__ import annotations

from forebay_service.identity import IdentityRefused, SeveralTenants, UnfitLogin, UnfitTenant
from forebay_service.languages import Text, as_sent
from forebay_service.people.names import LOGIN_CHARS_MAX


def reason_of(refused: IdentityRefused) -> Text:
    """Why it cannot be served, and who can mend it."""
    if isinstance(refused, SeveralTenants):
        return Text(
            "%(name)s is in the groups of several tenants (%(tenants)s); an operator must leave it in one of them.",
            name=refused.name,
            tenants=", ".join(refused.tenants),
        )
    if isinstance(refused, UnfitLogin):
        return Text(
            "The login %(name)s cannot be named in bills; an operator must give it a name of small letters of ASCII, digits, '.', '_', "
            "'-', '+' and '@', at most %(most)s of them, that is no service's.",
            name=refused.shown,
            most=LOGIN_CHARS_MAX,
        )
    if isinstance(refused, UnfitTenant):
        return Text(
            "%(name)s is in the group of the tenant %(tenant)s; an operator must name it with at most 63 small letters of ASCII, digits "
            "and '-', not beginning with 'tenant-', and not as a service.",
            name=refused.name,
            tenant=refused.shown,
        )
    return as_sent(str(refused))
