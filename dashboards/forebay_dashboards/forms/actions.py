"""What operators may do to sessions, devices and nodes, and the words that ask whether it is meant. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from forebay_service.languages import Text, in_context

from forebay_dashboards.errors import FormError
from forebay_dashboards.rows.pool import Device, Node, Session

Act = Literal["park", "move", "revoke", "end", "close", "open", "drain", "return"]
CAUSE_CHARACTERS_MAX = 500
GRACE_SECONDS_MAX = 7 * 86_400


@dataclass(frozen=True)
class Action:
    """``name`` is on the button; ``consequence`` is what happens then; ``grave`` where something is lost."""

    act: str
    name: Text
    consequence: Text
    grave: bool = False


SESSION_ACTIONS: dict[str, Action] = {
    "park": Action(
        "park", in_context("act", "Park"), Text("Its tensors leave the device for the host's memory until its next lease; nothing is lost.")
    ),
    "move": Action(
        "move",
        in_context("act", "Move"),
        Text("It goes on on another device where one is free, in the middle of its lease; nothing is lost."),
    ),
    "revoke": Action(
        "revoke",
        in_context("act", "Revoke"),
        Text("Its lease is taken back after a grace, and it waits again at its old place. Its tensors stay."),
    ),
    "end": Action("end", in_context("act", "End"), Text("The session ends now, and its tensors are lost."), grave=True),
}
DEVICE_ACTIONS = {
    "close": Action("close", in_context("act", "Close"), Text("No lease opens on it any more. One that is open goes on to its end.")),
    "open": Action("open", in_context("act", "Open"), Text("Leases open on it again, and what was known against it is forgotten.")),
}
NODE_ACTIONS = {
    "drain": Action(
        "drain",
        in_context("act", "Drain"),
        Text("Nothing new starts on its devices. Sessions there go on elsewhere as far as there is room."),
    ),
    "return": Action("return", in_context("act", "Return"), Text("Leases open on its devices again.")),
}


def session_actions(session: Session) -> list[Action]:
    """What can be done to a session in its state."""
    fitting: dict[str, tuple[Act, ...]] = {
        "active": ("move", "revoke", "end"),
        "resident": ("park", "move", "end"),
        "queued": ("park", "end") if session.device_model else ("end",),
    }
    return [SESSION_ACTIONS[act] for act in fitting.get(session.state, ("end",))]


def device_actions(device: Device) -> list[Action]:
    """A device is closed, or opened where something stands against it."""
    return [DEVICE_ACTIONS["open"]] if device.cordoned else [DEVICE_ACTIONS["close"]]


def node_actions(node: Node) -> list[Action]:
    """A node that is there is drained or returned."""
    if node.state == "lost":
        return []
    return [NODE_ACTIONS["return" if node.state == "draining" else "drain"]]


def read_cause(text: str) -> str:
    """Why a device is closed. Raises FormError."""
    cause = " ".join(text.split())
    if not cause:
        raise FormError(Text("Say why the device is closed: it stands on the console and in the audit."))
    if len(cause) > CAUSE_CHARACTERS_MAX:
        count, most = len(cause), CAUSE_CHARACTERS_MAX
        raise FormError(Text("The cause has %(count)s characters; %(most)s are the most.", count=count, most=most))
    return cause


def read_grace(text: str) -> float | None:
    """Seconds after which leases are taken back; None: they end by themselves. Raises FormError."""
    if not text.strip():
        return None
    if not (text.strip().isascii() and text.strip().isdigit() and int(text) <= GRACE_SECONDS_MAX):
        typed, most = text.strip()[:20], f"{GRACE_SECONDS_MAX:,}"
        raise FormError(Text("“%(typed)s” is no number of seconds up to %(most)s.", typed=typed, most=most))
    return float(int(text))
