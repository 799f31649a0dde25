"""Demo logins: one generated password a person, in a file that only the installation's owner can read."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jupyterhub.auth import Authenticator
from traitlets import Unicode

from forebay_hub.errors import LoginsError

PASSWORD_BYTES = 9
"""Of chance in a generated password: twelve characters."""


def read_logins(path: Path) -> dict[str, str]:
    """Name to password. Raises LoginsError."""
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise LoginsError(f"{path} can be read by others; run: chmod 600 {path}")
        logins = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LoginsError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise LoginsError(f"{path} is not JSON ({error}); remove it to get new passwords") from None
    if not isinstance(logins, dict) or not all(isinstance(part, str) for pair in logins.items() for part in pair):
        raise LoginsError(f"{path} must hold an object of names and passwords; remove it to get new passwords")
    return logins


def ensure_logins(path: Path, names: Iterable[str]) -> dict[str, str]:
    """The logins of these people; whoever has no password yet gets one, and the others keep theirs. Raises LoginsError."""
    known = read_logins(path) if path.exists() else {}
    logins = {name: known.get(name) or secrets.token_urlsafe(PASSWORD_BYTES) for name in sorted(names)}
    if logins != known:
        draft = path.with_suffix(".new")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(logins, file, indent=2)
            file.write("\n")
        draft.replace(path)
    return logins


class LoginsAuthenticator(Authenticator):  # type: ignore[misc]  # jupyterhub has no type information
    """Signs in the people of a logins file. Meant for trying Forebay on one's own machine."""

    logins_file = Unicode(
        config=True,
        help="JSON file of names and passwords; read at every sign-in, so that a change needs no restart.",
    )

    async def authenticate(self, handler: object, data: dict[str, Any]) -> str | None:
        """The name, or None where name and password do not match."""
        expected = read_logins(Path(self.logins_file)).get(data["username"])
        given = data["password"].encode()
        matches = hmac.compare_digest((expected or secrets.token_urlsafe()).encode(), given)
        return data["username"] if expected and matches else None
