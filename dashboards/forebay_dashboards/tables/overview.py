"""What an operator sees first: how the devices are used, who waits and why, and what needs a look. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from forebay_service.languages import Text

from forebay_dashboards.live.pool_copy import PoolCopy
from forebay_dashboards.rows.bases import WHOLE_MILLI
from forebay_dashboards.rows.pool import Device, Flavor, Lease, Node, Session
from forebay_dashboards.text import codes
from forebay_dashboards.text.causes import cause

ALERTS_SHOWN = 12
Use = Literal["held", "idle", "free", "closed"]
USES: dict[Use, Text] = {
    "held": Text("held by a lease"),
    "idle": Text("idle, with tensors of sessions that rest"),
    "free": Text("free"),
    "closed": Text("closed, draining or lost"),
}


@dataclass(frozen=True)
class Stretch:
    """One part of the bar of devices: ``count`` of them from ``start`` on are in this ``use``."""

    use: Use
    text: Text
    start: int
    count: int


@dataclass(frozen=True)
class Reason:
    """How many wait for the reason ``code``; ``sentence`` is what the first of them is told."""

    code: str
    count: int
    sentence: Text


@dataclass(frozen=True)
class Alert:
    """Something that an operator should look at. ``kind`` and ``name`` say where."""

    kind: Literal["device", "node"]
    name: str
    state: str
    sentence: Text


@dataclass(frozen=True)
class Overview:
    """The pool at a glance; ``alerts`` are the first of ``alert_count``."""

    devices: int
    stretches: tuple[Stretch, ...]
    leases: int
    sessions: int
    waiting: int
    reasons: tuple[Reason, ...]
    alerts: tuple[Alert, ...]
    alert_count: int


def overview(pool_copy: PoolCopy) -> Overview:
    """The pool as its copy shows it."""
    devices, waiting = pool_copy.devices(), pool_copy.queue()
    alerts = [*_node_alerts(pool_copy.nodes()), *_device_alerts(devices)]
    return Overview(
        devices=len(devices),
        stretches=_stretches(devices),
        leases=len(pool_copy.seen_leases()),
        sessions=len(pool_copy.seen_sessions()),
        waiting=len(waiting),
        reasons=_reasons(waiting),
        alerts=tuple(alerts[:ALERTS_SHOWN]),
        alert_count=len(alerts),
    )


def use_of(device: Device) -> Use:
    """A lease comes first: a closed device whose lease goes on is held."""
    if device.leases or device.state in ("leased", "placing"):
        return "held"
    if device.cordoned or device.state in ("cordoned", "draining", "lost"):
        return "closed"
    return "idle" if device.residents else "free"


def efficiency(sessions: Iterable[Session], leases: Iterable[Lease], flavors: Iterable[Flavor]) -> float | None:
    """The devices that all users' flavors add up to ÷ the devices that leases hold; None while none is held.

    A flavor counts for what it has on the model that the session is on, else for its first equivalent.
    """
    known = {flavor.name: flavor for flavor in flavors}
    asked = sum(_devices_milli(known, session) for session in sessions)
    held = sum(lease.devices * lease.share_milli for lease in leases)
    return asked / held if held else None


def _devices_milli(flavors: Mapping[str, Flavor], session: Session) -> int:
    flavor = flavors.get(session.flavor)
    if flavor is None or not flavor.equivalents:
        return WHOLE_MILLI
    here = [one for one in flavor.equivalents if one.model == session.device_model] or [*flavor.equivalents]
    return here[0].count * here[0].share_milli


def _stretches(devices: Iterable[Device]) -> tuple[Stretch, ...]:
    counts = Counter(use_of(device) for device in devices)
    found, start = [], 0
    for use, text in USES.items():
        found.append(Stretch(use, text, start, counts[use]))
        start += counts[use]
    return tuple(found)


def _reasons(waiting: Iterable[Session]) -> tuple[Reason, ...]:
    counts: Counter[str] = Counter()
    sentences: dict[str, Text] = {}
    for session in waiting:
        code = session.code or "unknown"
        counts[code] += 1
        sentences.setdefault(code, codes.why(session))
    return tuple(Reason(code, count, sentences[code]) for code, count in counts.most_common())


def _node_alerts(nodes: Iterable[Node]) -> list[Alert]:
    return [Alert("node", node.node, node.state, _story(node)) for node in nodes if node.state != "up"]


def _story(node: Node) -> Text:
    words = {"lost": Text("It was given up"), "draining": Text("It is being drained")}
    story = words.get(node.state) or codes.word(node.state, "state")
    return Text("%(story)s: %(cause)s", story=story, cause=cause(node.causes)) if node.causes else Text("%(story)s.", story=story)


def _device_alerts(devices: Iterable[Device]) -> list[Alert]:
    return [
        Alert(
            "device",
            device.device,
            "closed" if device.cordoned else "look",
            cause(device.causes) if device.causes else Text("No cause was given."),
        )
        for device in devices
        if device.state != "lost" and (device.cordoned or device.causes)
    ]
