"""The pace of sign-in: whoever gives wrong passwords waits longer each time, and nobody else waits for long.

An address and a login each have their own pace. An address waits up to a quarter of an hour. A login waits up to ten seconds, whoever asks:
somebody who guesses from many addresses is slowed, and the person is not kept out. Addresses that the login has signed in from do not
wait for the login.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

KEYS_MAX = 10_000
"""Addresses, and logins, that are remembered; the one that tried least lately is forgotten first."""
ADDRESS_FREE = 5
ADDRESS_WAIT_SECONDS_MAX = 900.0
LOGIN_FREE = 20
LOGIN_WAIT_SECONDS_MAX = 10.0
FORGET_SECONDS = 3600.0
"""Without a wrong password for so long, a pace begins anew."""
_DOUBLINGS_MAX = 30

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Tries:
    """Of one key, since the last that was right."""

    count: int = 0
    last: float = -math.inf


class GrowingDelay(Generic[K]):
    """So many tries are free; then each waits twice as long as the one before, up to a bound."""

    def __init__(self, free: int, seconds_max: float, clock: Callable[[], float]) -> None:
        self._free = free
        self._seconds_max = seconds_max
        self._clock = clock
        self._tries: OrderedDict[K, _Tries] = OrderedDict()

    def wait_seconds(self, key: K) -> float:
        """How long the key still has to wait; 0: it may try."""
        tries = self._tries.get(key)
        if tries is None or tries.count < self._free:
            return 0.0
        whole = min(self._seconds_max, 2.0 ** min(tries.count - self._free, _DOUBLINGS_MAX))
        return max(0.0, tries.last + whole - self._clock())

    def tried(self, key: K) -> None:
        """Counts a try, which is wrong until :meth:`passed` says otherwise: tries at the same time count each."""
        now, tries = self._clock(), self._tries.pop(key, None)
        if tries is None or now - tries.last > FORGET_SECONDS:
            tries = _Tries()
        tries.count, tries.last = tries.count + 1, now
        self._tries[key] = tries
        while len(self._tries) > KEYS_MAX:
            self._tries.popitem(last=False)

    def passed(self, key: K) -> None:
        """The try was right: the key begins anew."""
        self._tries.pop(key, None)

    def taken_back(self, key: K) -> None:
        """The try counts no more."""
        tries = self._tries.get(key)
        if tries is not None:
            tries.count = max(0, tries.count - 1)


class SignInDelay:
    """Of all who try to sign in to one hub."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._addresses: GrowingDelay[str] = GrowingDelay(ADDRESS_FREE, ADDRESS_WAIT_SECONDS_MAX, clock)
        self._logins: GrowingDelay[str] = GrowingDelay(LOGIN_FREE, LOGIN_WAIT_SECONDS_MAX, clock)
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def begin(self, address: str, login: str) -> int:
        """Whole seconds that the try must wait, which is then not made; 0: it is made, and counts."""
        place = network_of(address)
        waits = [self._addresses.wait_seconds(place)]
        if (login, place) not in self._known:
            waits.append(self._logins.wait_seconds(login))
        wait = math.ceil(max(waits))
        if wait == 0:
            self._addresses.tried(place)
            self._logins.tried(login)
        return wait

    def passed(self, address: str, login: str) -> None:
        """The password was right. The login's pace stays as it was: somebody else may be guessing."""
        place = network_of(address)
        self._addresses.passed(place)
        self._logins.taken_back(login)
        self._known[login, place] = None
        self._known.move_to_end((login, place))
        while len(self._known) > KEYS_MAX:
            self._known.popitem(last=False)


def network_of(address: str) -> str:
    """What counts as one address: of IPv6 the network that one customer has."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found if isinstance(found, ipaddress.IPv4Address) else found.ipv4_mapped)
