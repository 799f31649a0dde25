"""The sign-in that ``forebay login`` keeps: which hub, whose token, and until when.

One file holds it, ``forebay/login.json`` below ``XDG_CONFIG_HOME`` (``~/.config``), for its owner alone (mode 0600). The token is kept by
the system's keyring where the package keyring is installed and has a backend, else in that file.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from forebay.errors import NotConfigured

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

KEYRING_SERVICE = "forebay"
"""What the keyring calls who keeps a token in it."""


@dataclass(frozen=True)
class Login:
    """Somebody who signed in at a hub."""

    hub: str
    """The hub's address, with a slash at its end: ``https://hub.example.org/``."""
    pool: str
    """The pool's address there."""
    user: str
    expires_at: int
    """Unix time in seconds."""
    token: str | None
    """None: the keyring has it."""

    def reaches(self, url: str) -> bool:
        """Whether an address is of the same origin as the hub, so that the token may be sent there."""
        return urlsplit(url)[:2] == urlsplit(self.hub)[:2]

    def renewal(self) -> str:
        """How to sign in again, as part of a sentence."""
        return f"sign in again: `forebay login {self.hub.rstrip('/')}`"

    def secret(self) -> str:
        """The token. Raises NotConfigured where it has expired, or the keyring does not have it any more."""
        if self.expires_at <= time.time():
            raise NotConfigured(f"The sign-in at {self.hub} has expired; {self.renewal()}.")
        token = self.token or _from_keyring(self)
        if not token:
            raise NotConfigured(f"The keyring has no token for {self.user} at {self.hub}; {self.renewal()}.")
        return token


def place() -> Path:
    """Where a sign-in is kept."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(folder) / "forebay" / "login.json"


def kept() -> Login | None:
    """The sign-in of this account, if there is one. Raises NotConfigured where its file cannot be used."""
    path = place()
    try:
        text = path.read_text(encoding="utf-8")
        if path.stat().st_mode & 0o077:
            raise NotConfigured(f"Others may read {path}, which holds a token; run `chmod 600 {path}`, and sign in again.")
        return Login(**json.loads(text))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NotConfigured(f"The sign-in in {path} cannot be read: {error.strerror}.") from None
    except (ValueError, TypeError):
        raise NotConfigured(f"{path} holds no sign-in; remove it, and run `forebay login`.") from None


def keep(login: Login, token: str) -> str:
    """Keeps it in place of what was kept before, and says where the token is. Raises OSError."""
    keyring = _keyring()
    if keyring is not None:
        keyring.set_password(KEYRING_SERVICE, _name(login), token)
    fields = asdict(login) | {"token": token if keyring is None else None}
    path = place()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(fields, file)
    draft.replace(path)
    return str(path) if keyring is None else f"the keyring ({keyring.name})"


def forget(login: Login) -> None:
    """Keeps it no more. Raises OSError."""
    if login.token is None:
        from keyring import errors

        keyring = _keyring()
        if keyring is not None:
            try:
                keyring.delete_password(KEYRING_SERVICE, _name(login))
            except errors.PasswordDeleteError:  # it was not there
                pass
    place().unlink(missing_ok=True)


def _name(login: Login) -> str:
    return f"{login.user} at {login.hub}"


def _from_keyring(login: Login) -> str | None:
    keyring = _keyring()
    return None if keyring is None else keyring.get_password(KEYRING_SERVICE, _name(login))


def _keyring() -> KeyringBackend | None:
    """The system's keyring; None where there is none that keeps anything."""
    try:
        import keyring
        from keyring.backends import fail, null
    except ImportError:
        return None
    found: Any = keyring.get_keyring()
    return None if isinstance(found, fail.Keyring | null.Keyring) else found
