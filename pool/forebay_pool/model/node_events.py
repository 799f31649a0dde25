"""Events: what operators, probes and launchers say of nodes, devices and models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay_pool.model.health import Reading
    from forebay_pool.model.policies import Policy
    from forebay_pool.model.types import Device


@dataclass(frozen=True, slots=True)
class PolicySet:
    policy: Policy


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node with these devices is there, for the first time or again."""

    node: str
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class NodeLost:
    """The node is given up: whatever runs on it is gone, or is ended should it come back."""

    node: str
    cause: str


@dataclass(frozen=True, slots=True)
class NodeDrain:
    """Nothing new starts on the node, and what is there leaves; or an end of that."""

    node: str
    drains: bool
    grace_seconds: float | None = None
    """Leases that are still open after so long are taken back; None: they end by themselves."""
    reclaimed: bool = False
    """Whether the node's provider takes it back then."""


@dataclass(frozen=True, slots=True)
class DeviceSet:
    """An operator closes a device to new leases, or opens it again."""

    device: str
    cordoned: bool
    cause: str = ""


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """A probe's reading."""

    reading: Reading
