"""What can be wrong with the hub's settings; each message says what to change."""

from __future__ import annotations


class LoginsError(RuntimeError):
    """The file with the demo logins cannot be used."""


class LoginTaken(RuntimeError):
    """Somebody has a login of this name."""
