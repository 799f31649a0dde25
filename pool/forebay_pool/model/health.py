"""What a device's readings mean: whether it may be leased, and the cause. A pure function of readings.

Temperatures follow the bands that operators of data-centre accelerators use: the devices slow down from the middle of the eighties on,
and shut down near 100 degrees. Xids are the driver's error numbers, https://docs.nvidia.com/deploy/xid-errors/: those of
APPLICATION_XIDS are what a program can cause by itself; all others are taken for the device's. AMD's driver has no such numbers; its
uncorrectable errors count alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from forebay_pool.model.causes import Cause

WARN_CELSIUS = 86
CORDON_CELSIUS = 94
DRAIN_CELSIUS = 98
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 69})
"""Graphics engine exception, memory page fault, reset channel, preemptive removal, video processor exceptions, class error."""

Level = Literal["good", "warning", "cordon", "drain"]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a probe saw of a device. None: the device or its driver does not say."""

    device: str
    """Its id in the pool."""
    temperature_celsius: int | None = None
    uncorrectable_errors: int | None = None
    """Memory errors that were not corrected, since the driver was loaded."""
    xid: int | None = None
    """The last error that the driver reported since the reading before."""
    lost: str | None = None
    """Why the driver cannot reach the device any more."""
    utilisation_percent: int | None = None
    """Of its time, how much it computed since about a second ago. Like all that follows only shown, never judged."""
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    power_watts: float | None = None
    uuid: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows for the device."""

    level: Level
    cause: Cause | None = None
    lasting: bool = False
    """Whether it holds until an operator says otherwise; the others go when the readings do."""


GOOD = Verdict("good")


def judge(reading: Reading, errors_known: int) -> Verdict:
    """The gravest that follows from the reading; ``errors_known`` uncorrectable errors were there when an operator last looked."""
    if reading.lost is not None:
        return Verdict("drain", Cause("device_lost", reason=reading.lost), lasting=True)
    if reading.xid is not None and reading.xid not in APPLICATION_XIDS:
        return Verdict("drain", Cause("xid", number=reading.xid), lasting=True)
    errors = reading.uncorrectable_errors
    if errors is not None and errors > errors_known:
        return Verdict("drain", Cause("memory_errors", count=errors - errors_known), lasting=True)
    celsius = reading.temperature_celsius
    if celsius is not None and celsius >= WARN_CELSIUS:
        level: Level = "drain" if celsius >= DRAIN_CELSIUS else "cordon" if celsius >= CORDON_CELSIUS else "warning"
        return Verdict(level, Cause("hot", celsius=celsius))
    if reading.xid is not None:
        return Verdict("warning", Cause("xid_of_programs", number=reading.xid))
    return GOOD


@dataclass(frozen=True, slots=True)
class Cordon:
    """Why a device is not leased: what an operator typed, what its health says, or both."""

    causes: tuple[str, ...]
    by: Literal["operator", "health"]
    drains: bool = False
    """Whether its residents leave too, and its leases end."""
    lasting: bool = True
    """Whether it stays until an operator opens the device again."""

    @property
    def cause(self) -> str:
        """All of them as one sentence."""
        return "; ".join(self.causes)
