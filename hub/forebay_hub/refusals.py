"""What a login is told that JupyterHub knows, but that can use nothing."""

from __future__ import annotations

from forebay_hub.identity import IdentityRefused
from forebay_hub.languages import Text


def two_tenants(refused: IdentityRefused) -> Text:
    """Why nobody can say who pays, and who can mend it."""
    tenants = ", ".join(refused.tenants)
    return Text(
        "%(name)s is in the groups of several tenants (%(tenants)s); an operator must leave it in one of them.",
        name=refused.name,
        tenants=tenants,
    )
