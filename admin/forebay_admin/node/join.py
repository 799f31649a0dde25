"""On a host with devices: checks, joins the cluster, says how it stands, and leaves."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from forebay_admin import systemd
from forebay_admin.host.files import PRIVATE, File
from forebay_admin.host.init import lay
from forebay_admin.host.layout import Layout
from forebay_admin.node import checks
from forebay_admin.node import invitation as invitations
from forebay_admin.node.checks import Devices, Finding
from forebay_admin.node.invitation import Invitation, NodeError
from forebay_admin.node.units import ACCOUNTS, NODE, WEB_AUTHORITY, node_unit
from forebay_admin.node.view import NO_TOKEN, Row, View, standing

MODEL_LABEL, NAME_LABEL, SWITCH_LABEL, RELEASE_LABEL = "forebay.io/model", "forebay.io/node", "forebay.io/switch", "forebay.io/release"
"""What the pool reads of Ray's nodes (``forebay_pool.hosts.ray_nodes``)."""
APPEAR_SECONDS_MAX = 120.0
QUIET_SECONDS = 15.0
"""After so long without one more parked session moving, what is left stays."""
LOST = "lost"


def perform_join(arguments: argparse.Namespace) -> int:
    """Checks, and unless only that is asked for, joins. The status is 1 where a check fails, or the pool does not take the node."""
    layout = Layout(arguments.root.absolute())
    invitation = invitations.read(arguments.invitation or kept(layout))
    devices = _checked(invitation, layout)
    if devices is None:
        return 1
    if arguments.check:
        return 0
    changed = lay(files(invitation, layout, devices), layout)
    if layout.root != Path("/"):
        return 0
    systemd.make_accounts()
    systemd.start(NODE, again=changed)
    sys.stdout.write(f"{NODE} runs.\n")
    return _appear(View(invitation, layout.settings / WEB_AUTHORITY), devices)


def _checked(invitation: Invitation, layout: Layout) -> Devices | None:
    """Tells what each check found; the devices, if all is good."""
    findings, devices = checks.check_all(invitation, layout.python, systemd.is_active(NODE))
    sys.stdout.write("".join(f"{line(finding)}\n" for finding in findings))
    return devices if all(finding.good for finding in findings) else None


def line(finding: Finding) -> str:
    """For people."""
    return f"{'ok' if finding.good else 'NO':3}{finding.check:9}{finding.sentence}"


def kept(layout: Layout) -> Path:
    """Where the invitation is that this host has joined with."""
    return layout.settings / "node.toml"


def files(invitation: Invitation, layout: Layout, devices: Devices) -> list[File]:
    """All that a node has, beside the environment."""
    tls = layout.settings / "tls"
    labels = {NAME_LABEL: invitation.name, MODEL_LABEL: devices.model, SWITCH_LABEL: invitation.switch, RELEASE_LABEL: invitation.forebay}
    web = invitation.web_authority
    unit = node_unit(layout, invitation, labels, devices.gpus)
    return [
        File(tls / "nodes-ca.crt", invitation.authority.encode()),
        File(tls / "node.crt", invitation.certificate.encode()),
        File(tls / "node.key", invitation.key.encode(), PRIVATE),
        *([File(layout.settings / WEB_AUTHORITY, web.encode())] if web else []),
        File(layout.accounts.with_name(f"{NODE}.conf"), ACCOUNTS.encode()),
        File(layout.units / f"{NODE}.service", unit.encode()),
        File(kept(layout), invitation.toml.encode(), PRIVATE),
    ]


def _appear(view: View, devices: Devices) -> int:
    """Waits until the pool lends the devices."""
    if not view.is_told:
        sys.stdout.write(f"{NO_TOKEN} and join waits until the pool lends the devices; `forebay admin nodes list` shows them, too.\n")
        return 0
    if not view.wait(lambda row: row is not None and row["state"] != LOST, APPEAR_SECONDS_MAX):
        group = devices.group.replace("\n", "\n  ")
        raise NodeError(
            f"The pool does not lend this host's devices after {APPEAR_SECONDS_MAX:g} s. `journalctl -u {NODE}` says why if Ray did not;"
            f" and pool.toml needs:\n  {group}"
        )
    view.drain(False)
    sys.stdout.write(f"{view.name} is on the device map: {standing(view.row())}.\n")
    return 0


def perform_status(arguments: argparse.Namespace) -> int:
    """How this node stands; the status is 1 where it does not run."""
    layout = Layout(arguments.root.absolute())
    invitation = invitations.read(kept(layout))
    runs = systemd.is_active(NODE)
    view = View(invitation, layout.settings / WEB_AUTHORITY)
    told = standing(view.row()) if view.is_told else f"{NO_TOKEN} to see"
    rows = {"node": f"{invitation.name} at {invitation.address}", "unit": f"{NODE} {'runs' if runs else 'does not run'}", "pool": told}
    sys.stdout.write("".join(f"{name:6}{value}\n" for name, value in rows.items()))
    return 0 if runs else 1


def perform_drain(arguments: argparse.Namespace) -> int:
    """No new leases here, and waits until nothing computes here or lies on a device."""
    view = _view(arguments)
    if arguments.undo:
        view.drain(False)
        sys.stdout.write(f"{view.name} lends its devices again.\n")
        return 0
    _drain(view, arguments)
    return 0


def perform_leave(arguments: argparse.Namespace) -> int:
    """Drains, and stops Ray's node for good. Raises NodeError where tensors would be lost."""
    if not arguments.now:
        parked = _drain(_view(arguments), arguments)
        if parked:
            raise NodeError(
                f"{NODE} goes on, since the tensors of {parked} would be lost with it, and no other host takes them. They move with their"
                " next cell, or end with their notebook; `forebay node leave` again, or lose them with `forebay node leave --now`."
            )
    systemd.stop(NODE)
    sys.stdout.write(f"{NODE} is stopped; `forebay node join` starts it again.\n")
    return 0


def _view(arguments: argparse.Namespace) -> View:
    layout = Layout(arguments.root.absolute())
    return View(invitations.read(kept(layout)), layout.settings / WEB_AUTHORITY)


def _drain(view: View, arguments: argparse.Namespace) -> str:
    """How many sessions are parked here then. Raises NodeError where it takes longer than was asked for; the node stays drained."""
    row = view.row()
    if row is None or row["state"] == LOST:
        sys.stdout.write(f"{view.name} is not on the device map: there is nothing to drain.\n")
        return ""
    view.drain(True, arguments.grace)
    if not view.wait(is_empty, arguments.timeout):
        raise NodeError(
            f"{view.name} still computes after {arguments.timeout:g} s: {standing(view.row())}. It gets no new lease; wait longer,"
            " take leases back with --grace, or end what is there with `forebay node leave --now`."
        )
    view.wait(Moved(), arguments.timeout)
    parked = parked_on(view.row())
    rest = f"Still here in memory or on the disk, since no other host takes them: {parked}." if parked else "Nothing is parked here."
    sys.stdout.write(f"{view.name} gets no new lease, and has none. {rest}\n")
    return parked


def parked_on(row: Row | None) -> str:
    """How many sessions would be lost with the node; empty for none."""
    count = 0 if row is None or row["state"] == LOST else row["parked"]
    return f"{count} parked session{'' if count == 1 else 's'}" if count else ""


class Moved:
    """Whether parked sessions have moved to other hosts, or none of them has for a while."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._parked, self._since = -1, clock()

    def __call__(self, row: Row | None) -> bool:
        if row is None or row["state"] == LOST or not row["parked"]:
            return True
        if row["moving"] or row["parked"] != self._parked:
            self._parked, self._since = row["parked"], self._clock()
        return self._clock() - self._since > QUIET_SECONDS


def is_empty(row: Row | None) -> bool:
    """Whether nothing computes on a node or lies on its devices; something may be parked there."""
    return row is None or row["state"] == LOST or not row["leases"] + row["residents"]
