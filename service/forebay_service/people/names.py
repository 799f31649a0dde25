"""What people and tenants may be called: one rule, wherever a login or a tenant gets its name.

A login is a user name of RFC 8265 (the profile UsernameCaseMapped of PRECIS), of small letters of ASCII, digits and ``. _ - + @`` alone,
such as ``ada.lovelace@example.org``. So no two logins look the same, and none has a capital letter, a space, or a character that nobody
sees.
A tenant's name has letters, digits and ``-`` alone, since groups and roles of JupyterHub are named after it.
"""

from __future__ import annotations

import hashlib
import re

from precis_i18n import get_profile

LOGIN_CHARS_MAX = 128
"""Longest name of a login that pool and billing serve, although JupyterHub keeps longer ones."""
TENANT_CHARS_MAX = 63
TENANT_GROUP = "tenant-"
"""What the name of a group begins with that stands for a tenant; other groups mean nothing here."""
LOGIN_PATTERN = r"[a-z0-9][a-z0-9._+@-]{0,127}"
TENANT_PATTERN = r"[a-z0-9][a-z0-9-]{0,62}"
RESERVED = frozenset(
    ("billing", "dashboards", "forebay", "hub", "jupyterhub", "pool", "prometheus", "proxy", "service", "services", "system", "worker")
)
"""Names of services and of what acts by itself: in an audit they are nobody's login, and on a bill no tenant."""
LOGIN_RULE = "a login has at most 128 small letters of ASCII, digits, '.', '_', '-', '+' and '@', begins with a letter or a digit"
TENANT_RULE = f"a tenant's name has at most 63 small letters of ASCII, digits and '-', and does not begin with '-' or '{TENANT_GROUP}'"

_LOGIN = re.compile(LOGIN_PATTERN)
_TENANT = re.compile(TENANT_PATTERN)
_PLAIN = re.compile(r"[a-z0-9]+(-{1,2}[a-z0-9]+)*-{0,2}")
_UNPLAIN = re.compile(r"[^a-z0-9]+")
_PROFILE = get_profile("UsernameCaseMapped")
_SLUG_CHARS_MAX = 40
_DIGEST_CHARS = 12


def login_of(typed: str) -> str | None:
    """The login that somebody means, in small letters; None where it is none."""
    try:
        name = _PROFILE.enforce(typed)
    except UnicodeError:
        return None
    return name if is_login(name) else None


def is_login(name: str) -> bool:
    """Whether it is a login as it stands."""
    return _LOGIN.fullmatch(name) is not None and name not in RESERVED


def is_tenant(name: str) -> bool:
    """Whether a tenant may be called so."""
    return _TENANT.fullmatch(name) is not None and not name.startswith(TENANT_GROUP) and name not in RESERVED


def slug_of(login: str) -> str:
    """The login as the name of a folder, a file or an account: of letters, digits and ``-``, and another one for each login.

    What is plain stays as it is. KubeSpawner names pods and volumes by the same scheme, and so do we.
    """
    if _PLAIN.fullmatch(login):
        return login
    readable = _UNPLAIN.sub("-", login).strip("-")[:_SLUG_CHARS_MAX].strip("-")
    return f"{readable}---{hashlib.sha256(login.encode()).hexdigest()[:_DIGEST_CHARS]}"
