"""What a login is told that JupyterHub knows, but that can use nothing."""

from __future__ import annotations

from forebay_service.identity import LOGIN_CHARS_MAX, IdentityRefused, SeveralTenants, UnfitLogin, UnfitTenant
from forebay_service.languages import Text, as_sent


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
            "The login %(name)s cannot be named in bills; an operator must give it a name of at most %(most)s printable characters.",
            name=refused.shown,
            most=LOGIN_CHARS_MAX,
        )
    if isinstance(refused, UnfitTenant):
        return Text(
            "%(name)s is in the group of the tenant %(tenant)s; an operator must name it with 1 to 63 letters of ASCII, digits, "
            "'.', '_', '-'.",
            name=refused.name,
            tenant=refused.shown,
        )
    return as_sent(str(refused))
