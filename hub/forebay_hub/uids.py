"""Accounts that are numbers alone: which number each login has, as uid and gid at once.

Plain standard library: ``make up`` reads it before anything is installed.
"""

from __future__ import annotations

import grp
import json
import pwd
from collections.abc import Callable
from pathlib import Path

NUMBERS = "60706-61183"
"""Of FOREBAY_UIDS. Neither Debian's useradd nor systemd gives them out (https://systemd.io/UIDS-GIDS: unused), and containers have them."""


class AccountsError(Exception):
    """Accounts that cannot be used; the message says what to change."""


def range_of(text: str) -> range:
    """What FOREBAY_UIDS says. Raises AccountsError."""
    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) - 4 and int(last) < 2**31):
        raise AccountsError(f"FOREBAY_UIDS={text} cannot be used; give the first and the last of at least five numbers, as in {NUMBERS}")
    return range(int(first), int(last) + 1)


def taken(number: int) -> bool:
    """Whether the machine has a user or a group of this number."""
    for ask in (pwd.getpwuid, grp.getgrgid):
        try:
            ask(number)
        except KeyError:
            continue
        return True
    return False


class Register:
    """Each name's number, uid and gid at once, in ``uids.json``: the same over restarts, and never another's."""

    def __init__(self, file: Path, numbers: range, taken: Callable[[int], bool] = taken) -> None:
        self._file = file
        self._numbers = numbers
        self._taken = taken

    def of(self, name: str) -> int:
        """The name's number; a new one where it has none, or one that the machine or FOREBAY_UIDS no longer allows.

        Raises AccountsError."""
        known: dict[str, int] = json.loads(self._file.read_text(encoding="ascii")) if self._file.exists() else {}
        number = known.get(name)
        if number is not None and self._allowed(number):
            return number
        given = set(known.values())
        free = (number for number in self._numbers if number not in given and self._allowed(number))
        number = next(free, None)
        if number is None:
            raise AccountsError(f"none of the numbers {self._numbers[0]}-{self._numbers[-1]} is left for {name}; give more in FOREBAY_UIDS")
        draft = self._file.with_suffix(".new")
        draft.write_text(json.dumps({**known, name: number}, indent=2) + "\n", encoding="ascii")
        draft.replace(self._file)
        return number

    def _allowed(self, number: int) -> bool:
        return number in self._numbers and not self._taken(number)
