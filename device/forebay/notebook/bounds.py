"""What a cell may cost at most: it is stopped as by *Interrupt*, and its tensors stay.

A cell that catches ``KeyboardInterrupt`` may save something then; it is interrupted again after :data:`AGAIN_SECONDS`.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from forebay.errors import ForebayError
from forebay.notebook import amounts

if TYPE_CHECKING:
    from forebay.journal import Journal
    from forebay.texts import Texts

LOOK_SECONDS = 0.1
AGAIN_SECONDS = 10.0
NANO = 10**9
AMOUNT = re.compile(r"\d{1,12}(?:\.\d{1,9})?")
TIME = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(s|m|min|h)?")
UNITS = {None: 1, "s": 1, "m": 60, "min": 60, "h": 3600}


class CellStopped(ForebayError):
    """The cell was stopped at its bound."""

    def _render_traceback_(self) -> list[str]:
        """IPython's hook: where the cell was is not what went wrong."""
        return [f"{type(self).__name__}: {self}"]


@dataclass(frozen=True)
class Bound:
    """``cost_nano``: nano-units of the currency that the flavor's price is in; ``time_ns``: of device time, which is what costs."""

    cost_nano: int | None = None
    time_ns: int | None = None

    def __bool__(self) -> bool:
        return self.cost_nano is not None or self.time_ns is not None


def bound(max_cost: str | None, max_time: str | None) -> Bound:
    """Of the words behind ``%%gpu``. Raises ValueError."""
    return Bound(None if max_cost is None else _cost(max_cost), None if max_time is None else _time(max_time))


def _cost(word: str) -> int:
    nano = int(Decimal(word).scaleb(9)) if AMOUNT.fullmatch(word) else 0
    if nano <= 0:
        raise ValueError(f"max_cost={word} is no amount above 0, as 0.50")
    return nano


def nanoseconds_of(word: str) -> int:
    """Of ``30s``, ``10m`` or ``1.5h``; 0 for what is no time."""
    found = TIME.fullmatch(word)
    return int(Decimal(found[1]) * UNITS[found[2]] * NANO) if found else 0


def _time(word: str) -> int:
    nanoseconds = nanoseconds_of(word)
    if nanoseconds <= 0:
        raise ValueError(f"max_time={word} is no time above 0, as 30s, 10m or 1.5h")
    return nanoseconds


class _Watch(threading.Thread):
    """Looks at what was spent since it was made, and interrupts the main thread once that is too much."""

    def __init__(self, bound: Bound, journal: Journal) -> None:
        super().__init__(name="forebay-cell-bound", daemon=True)
        self._bound, self._journal = bound, journal
        self._before = journal.spent()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self.reached: tuple[dict[str, int], int] | None = None
        """What the cell had cost when it was stopped, and its device time."""

    def run(self) -> None:
        next_ns = 0
        while not self._over.wait(LOOK_SECONDS):
            spent = self.spent()
            if self._is_within(*spent) or time.monotonic_ns() < next_ns:
                continue
            with self._lock:
                if not self._over.is_set():
                    self.reached = self.reached or spent
                    next_ns = time.monotonic_ns() + int(AGAIN_SECONDS * NANO)
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def spent(self) -> tuple[dict[str, int], int]:
        """By currency, and device time in nanoseconds."""
        (money, device_ns), (before, before_ns) = self._journal.spent(), self._before
        return {currency: nano - before.get(currency, 0) for currency, nano in money.items()}, device_ns - before_ns

    def _is_within(self, money: dict[str, int], device_ns: int) -> bool:
        cost, time_ns = self._bound.cost_nano, self._bound.time_ns
        return (cost is None or all(nano < cost for nano in money.values())) and (time_ns is None or device_ns < time_ns)

    def stop(self) -> None:
        """No interrupt comes after this."""
        with self._lock:
            self._over.set()


@contextmanager
def kept(bound: Bound, journal: Journal, texts: Texts) -> Iterator[None]:
    """Raises CellStopped where the cell inside reached its bound. For the main thread, which is interrupted."""
    watch = _Watch(bound, journal)
    watch.start()
    try:
        try:
            yield
        finally:
            watch.stop()
    except KeyboardInterrupt:
        if watch.reached is None:  # the user's own
            raise
    if watch.reached is not None:
        money, device_ns = watch.reached
        key = "stopped_by_time" if bound.time_ns is not None and device_ns >= bound.time_ns else "stopped_by_cost"
        raise CellStopped(texts(key, device=amounts.seconds(device_ns), cost=amounts.cost(money, texts)))
