"""Codes by which a waiting client and a person in a browser find each other, after RFC 8628 (OAuth 2.0 Device Authorization Grant).

They are kept in memory: the hub is one process, and a code that a restart forgets is asked for again.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

CODE_SECONDS = 600
"""So long a code can be confirmed."""
POLL_SECONDS = 2
"""A client that asks more often than this is told to slow down (RFC 8628, section 3.5)."""
LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
"""No vowels, so no words; no digits (RFC 8628, section 6.1)."""
LETTERS_COUNT = 8
CODES_MAX = 1_000
"""Codes that wait at a time."""


@dataclass(frozen=True)
class Asker:
    """Who asks to be signed in, for the person who confirms: what the client says of itself, and what the hub sees."""

    host: str
    address: str
    at: float
    """Unix time."""


@dataclass
class Waiting:
    """A client that waits for somebody to confirm its code."""

    asker: Asker
    user_code: str
    expires: float
    """By the clock of the codes."""
    state: Literal["pending", "confirmed", "refused"] = "pending"
    user: str = ""
    """Who confirmed it."""
    asked: float = field(default=float("-inf"))
    """When the client asked last."""


class TooManyCodes(Exception):
    """So many clients wait that no other can begin."""


class Unknown(Exception):
    """The code is wrong, was used, or is too old."""


class TooSoon(Exception):
    """The client asks too often."""


class Codes:
    """Of clients that wait."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_device: dict[str, Waiting] = {}
        self._by_user: dict[str, Waiting] = {}

    def begin(self, asker: Asker) -> tuple[str, Waiting]:
        """Another client waits: the secret by which it asks, and what stands for it in the browser. Raises TooManyCodes."""
        self._forget_old()
        if len(self._by_device) >= CODES_MAX:
            raise TooManyCodes
        code = "".join(secrets.choice(LETTERS) for _ in range(LETTERS_COUNT))
        while code in self._by_user:
            code = "".join(secrets.choice(LETTERS) for _ in range(LETTERS_COUNT))
        device_code = secrets.token_urlsafe(32)
        waiting = Waiting(asker, code, self._clock() + CODE_SECONDS)
        self._by_device[_hash(device_code)] = self._by_user[code] = waiting
        return device_code, waiting

    def shown(self, typed: str) -> Waiting:
        """The client whose code somebody typed, while nobody has decided. Raises Unknown."""
        self._forget_old()
        waiting = self._by_user.get("".join(typed.split()).replace("-", "").upper())
        if waiting is None or waiting.state != "pending":
            raise Unknown
        return waiting

    def decide(self, typed: str, user: str, confirmed: bool) -> Waiting:
        """``user`` confirms the client, or refuses it. Raises Unknown."""
        waiting = self.shown(typed)
        waiting.state, waiting.user = ("confirmed", user) if confirmed else ("refused", "")
        return waiting

    def ask(self, device_code: str) -> Waiting:
        """What became of the client that asks; what is decided is told once. Raises Unknown, TooSoon."""
        self._forget_old()
        key, now = _hash(device_code), self._clock()
        waiting = self._by_device.get(key)
        if waiting is None:
            raise Unknown
        if waiting.state == "pending":
            before, waiting.asked = waiting.asked, now
            if now - before < POLL_SECONDS / 2:
                raise TooSoon
        else:
            del self._by_device[key], self._by_user[waiting.user_code]
        return waiting

    def _forget_old(self) -> None:
        now = self._clock()
        old = [key for key, waiting in self._by_device.items() if waiting.expires <= now]
        for key in old:
            del self._by_user[self._by_device.pop(key).user_code]


def written(code: str) -> str:
    """As people read and type it: ``BCDF-GHJK``."""
    return f"{code[: LETTERS_COUNT // 2]}-{code[LETTERS_COUNT // 2 :]}"


def _hash(device_code: str) -> str:
    return hashlib.sha256(device_code.encode()).hexdigest()
