"""Records that nobody changes, and that are made by the thousand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

from forebay_wire.message_parts import SHARED_IMAGE

Record = TypeVar("Record")


@dataclass_transform(frozen_default=True)
def fact(record: type[Record]) -> type[Record]:
    """A dataclass that the type checker lets nobody change. A frozen one takes three times as long to make."""
    return dataclass(slots=True, unsafe_hash=True)(record)


@fact
class Image:
    """What another worker goes on from, as a session's worker kept it last under this number, on a device of ``model``."""

    bytes: int
    at_ns: int
    at_unix_ns: int
    node: str | None
    """Which alone sees it; None: all do."""
    model: str
    number: int = 0

    @property
    def metered_bytes(self) -> int:
        """What is paid for it: copies of one session share the image that they begin with, and none pays for that."""
        return 0 if self.number == SHARED_IMAGE else self.bytes


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """Where a session stands in the queue."""

    number: int
    """The client's own, of its request."""
    arrived_unix_ns: int
    order: int


@fact
class Estimate:
    """How long somebody waits yet, in seconds, as of ``made_ns``: half wait less than ``middle``, three of four less than ``high``."""

    low: float
    middle: float
    high: float
    running: int
    """Leases that hold what it waits for."""
    running_seconds: float
    """How long the oldest of them ran by then."""
    made_ns: int = 0
    made_unix_ns: int = 0
