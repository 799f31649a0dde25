"""What was used before this pool began: what fair share and quotas' windows begin with.

It is as the usage records tell it: time in which a lease was being opened is in none of them, and is not known any more after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Spent:
    """Device time of a user: ``milli`` thousandths of devices from ``start_ns`` to ``end_ns``, or ``amount`` at once at ``end_ns``."""

    tenant: str
    user: str
    start_ns: int
    end_ns: int
    milli: int = 0
    amount: int = 0
    """In milli-devices times nanoseconds."""

    def later(self, by_ns: int) -> Spent:
        """The same by a clock that is ahead by so much."""
        return Spent(self.tenant, self.user, self.start_ns + by_ns, self.end_ns + by_ns, self.milli, self.amount)


@dataclass(frozen=True, slots=True)
class History:
    """``shares`` is for the fair share, ``windows`` for the windows of those accounts that have one."""

    shares: tuple[Spent, ...] = ()
    windows: Mapping[tuple[str, str | None], tuple[Spent, ...]] = field(default_factory=dict)

    def later(self, by_ns: int) -> History:
        windows = {account: tuple(spent.later(by_ns) for spent in all_spent) for account, all_spent in self.windows.items()}
        return History(tuple(spent.later(by_ns) for spent in self.shares), windows)
