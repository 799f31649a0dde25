"""Logins that are the installation's own, in a file that only its owner can read.

A password that was generated stands there as it is, for the operator to hand out; one that somebody chose, as its hash.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import math
import os
import secrets
import stat
import time
from collections.abc import Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from forebay_service.languages import COOKIE, SOURCE, Text, language_of
from forebay_service.people.names import login_of
from jupyterhub.auth import Authenticator
from tornado.web import HTTPError
from traitlets import Unicode

from forebay_hub.errors import LoginsError, LoginTaken
from forebay_hub.sign_in import SignInDelay

PASSWORD_BYTES = 9
"""Of chance in a generated password: twelve characters."""
PASSWORD_CHARACTERS_MIN = 12
PASSWORD_CHARACTERS_MAX = 200
NAME_CHARACTERS_MAX = 255
SALT_BYTES = 16
COST = {"n": 2**14, "r": 8, "p": 1}
"""Of scrypt (RFC 7914): 16 MiB and a twentieth of a second for each try."""
_HASHED = "scrypt$"
"""What a hash begins with; no generated password does."""


def check_password(password: str) -> Text | None:
    """What is wrong with a password that somebody chose, if anything."""
    if len(password) < PASSWORD_CHARACTERS_MIN:
        return Text("A password has at least %(least)s characters.", least=PASSWORD_CHARACTERS_MIN)
    if len(password) > PASSWORD_CHARACTERS_MAX:
        return Text("A password has at most %(most)s characters.", most=PASSWORD_CHARACTERS_MAX)
    return None


def hashed(password: str) -> str:
    """As it is kept."""
    salt = secrets.token_bytes(SALT_BYTES)
    return f"{_HASHED}{salt.hex()}${hashlib.scrypt(password.encode(), salt=salt, **COST).hex()}"


def matches(kept: str, given: str) -> bool:
    """Whether the password is the one that is kept."""
    if not kept.startswith(_HASHED):
        return hmac.compare_digest(kept.encode(), given.encode())
    salt, _, known = kept.removeprefix(_HASHED).partition("$")
    found = hashlib.scrypt(given.encode(), salt=bytes.fromhex(salt), **COST).hex()
    return hmac.compare_digest(known, found)


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
        _write(path, logins)
    return logins


def _write(path: Path, logins: dict[str, str]) -> None:
    draft = path.with_suffix(".new")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(logins, file, indent=2)
        file.write("\n")
    draft.replace(path)


class LoginsAuthenticator(Authenticator):  # type: ignore[misc]  # jupyterhub has no type information
    """Signs in the people of a logins file, and adds those whom an owner invited."""

    logins_file = Unicode(
        config=True,
        help="JSON file of names and passwords; read at every sign-in, so that a change needs no restart.",
    )

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits)
        self.pace = SignInDelay(time.monotonic)

    async def authenticate(self, handler: Any, data: dict[str, Any]) -> str | None:
        """The name, or None where name and password do not match. Raises TooManyTries."""
        typed, address = str(data["username"])[:NAME_CHARACTERS_MAX], _address_of(handler)
        name = login_of(typed) or typed
        wait_seconds = self.pace.begin(address, name)
        if wait_seconds:
            fields = {"action": "sign_in_waits", "address": address, "seconds": wait_seconds}
            self.log.warning("a sign-in from %s waits %d s, after wrong passwords", address, wait_seconds, extra=fields)
            raise _too_many(wait_seconds, handler)
        expected = read_logins(Path(self.logins_file)).get(name)
        right = await asyncio.to_thread(matches, expected or secrets.token_urlsafe(), data["password"])
        if not (expected and right):
            return None
        self.pace.passed(address, name)
        return name

    def add_login(self, name: str, password: str) -> None:
        """Another one, with a password of its owner's choice. Raises LoginTaken, LoginsError."""
        path = Path(self.logins_file)
        known = read_logins(path)
        if name in known:
            raise LoginTaken
        _write(path, {**known, name: hashed(password)})


class TooManyTries(HTTPError):
    """Wrong passwords came too often; ``headers`` say when another try is made."""

    def __init__(self, sentence: str, wait_seconds: int) -> None:
        super().__init__(HTTPStatus.TOO_MANY_REQUESTS, "%s", sentence)
        self.headers = {"Retry-After": str(wait_seconds)}
        self.jupyterhub_message = sentence


def _too_many(wait_seconds: int, handler: Any) -> TooManyTries:
    minutes = math.ceil(wait_seconds / 60)
    if wait_seconds < 120:
        text = Text("There were too many wrong passwords. Try again in %(seconds)s seconds.", seconds=wait_seconds)
    else:
        text = Text("There were too many wrong passwords. Try again in %(minutes)s minutes.", minutes=minutes)
    language = SOURCE
    if handler is not None:
        language = language_of(handler.get_cookie(COOKIE), handler.request.headers.get("Accept-Language", ""))
    return TooManyTries(text.said(language), wait_seconds)


def _address_of(handler: Any) -> str:
    """Of the browser, as the proxy tells it."""
    return "" if handler is None else str(handler.request.remote_ip or "")
