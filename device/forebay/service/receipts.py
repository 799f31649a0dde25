"""Where records are: a folder for each pool's key and user, below ``forebay/receipts`` of ``XDG_STATE_HOME`` (``~/.local/state``)."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote

from forebay_wire.message_parts import RECEIPTS_HEADER, Receipts

from forebay.service.record import KEY, Record

VARIABLE = "FOREBAY_RECEIPTS"
OFF = "off"
POOLS = "pools"
"""The folder that has the key of the pool at each address, as it was seen first."""
KEY_CHARACTERS = 16
"""How much of a key the name of a folder has."""


class Records:
    """All records of this account on this machine."""

    def __init__(self, root: Path | None) -> None:
        self.root = root
        """None: none are kept."""
        self._told = False

    @classmethod
    def configured(cls, environment: Mapping[str, str] = os.environ) -> Records:
        """What FOREBAY_RECEIPTS says: a folder, or `off`."""
        given = environment.get(VARIABLE, "").strip()
        state = environment.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        return cls(None if given == OFF else Path(given or Path(state) / "forebay" / "receipts"))

    @property
    def headers(self) -> Mapping[str, str]:
        """What asks a pool for receipts."""
        return {} if self.root is None else {RECEIPTS_HEADER: "1"}

    def keep(self, url: str, message: Receipts, warn: Callable[[str], None]) -> None:
        """Adds what the pool at this address sent to its record. ``warn`` is told, once, where that cannot be done."""
        if self.root is None:
            return
        try:
            self._check_key(self.root, url, message.key, warn)
            record = self.record(message.key, _user_of(message))
            record.pin(message.key)
            record.append(message.receipts)
        except ValueError as error:
            self._warn(f"the pool at {url} sent receipts that cannot be read ({error})", warn)
        except OSError as error:
            self._warn(f"receipts cannot be kept in {self.root} ({error.strerror}): set {VARIABLE} to another folder, or to `{OFF}`", warn)

    def record(self, key: str, user: str) -> Record:
        """That of a user, and of the pool that has this key."""
        return Record(Path(self.root or "") / key[:KEY_CHARACTERS] / quote(user, safe="").replace(".", "%2E"))

    def all(self) -> list[Record]:
        """Those that are there."""
        return [] if self.root is None else [Record(found.parent) for found in sorted(self.root.glob(f"*/*/{KEY}"))]

    def _check_key(self, root: Path, url: str, key: str, warn: Callable[[str], None]) -> None:
        """The pool at an address has the key that it had first, or there is a warning."""
        kept = root / POOLS / hashlib.sha256(url.encode()).hexdigest()[:KEY_CHARACTERS]
        if not kept.exists():
            kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            kept.write_text(f"{key} {url}\n", encoding="utf-8")
        elif kept.read_text(encoding="utf-8").split(" ")[0] != key:
            self._warn(f"the pool at {url} signs receipts with another key than it did first; ask its operator why", warn)

    def _warn(self, text: str, warn: Callable[[str], None]) -> None:
        if not self._told:
            self._told = True
            warn(text)


def _user_of(message: Receipts) -> str:
    """Whose leases these receipts are of; they are one user's."""
    receipts = (json.loads(one.text) for one in message.receipts)
    return next((str(receipt["user"]) for receipt in receipts if isinstance(receipt, dict) and "user" in receipt), "")
