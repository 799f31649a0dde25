"""``forebay node``, which the command ``forebay`` finds by the entry-point group ``forebay.commands``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from forebay_admin.actions import Parsers
from forebay_admin.host.upgrade import arguments_of
from forebay_admin.node import head, join, upgrade

DESCRIPTION = "More hosts with devices: makes hosts nodes of the pool's Ray cluster, and lets them leave it."
EPILOG = """\
On the control host: head, invite. On a host with devices: join, status, drain, leave, upgrade, rollback. Draining, and seeing the device
map, takes an operator's token in FOREBAY_TOKEN.
"""
DRAIN_SECONDS_MAX = 3600.0


def add_to(commands: Parsers) -> None:
    """Adds the subcommand with its own."""
    command = commands.add_parser("node", help="for operators: more hosts with devices", description=DESCRIPTION, epilog=EPILOG)
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")
    leading = _action(actions, "head", head.perform_head, "make this host, set up by `forebay admin init`, the head of a cluster")
    leading.add_argument("address", help="IP address at which the nodes reach this host")
    _add_invite(actions)
    joining = _action(actions, "join", join.perform_join, "check this host, and make it a node: again, to bring it up to date")
    joining.add_argument("invitation", nargs="?", type=Path, help="file that `forebay node invite` wrote (default: the one joined with)")
    joining.add_argument("--check", action="store_true", help="only check, and write nothing")
    _action(actions, "status", join.perform_status, "how this node stands, here and at the pool")
    draining = _action(actions, "drain", join.perform_drain, "no new leases here; wait until sessions have moved or are parked")
    _add_drain(draining)
    draining.add_argument("--undo", action="store_true", help="lend the devices again")
    _add_upgrade(actions)
    leaving = _action(actions, "leave", join.perform_leave, "drain this node, and stop it for good")
    _add_drain(leaving)
    leaving.add_argument("--now", action="store_true", help="do not drain: sessions on this host are lost")


def _add_invite(actions: Parsers) -> None:
    inviting = _action(actions, "invite", head.perform_invite, "write what a host needs to join, its private key included")
    inviting.add_argument("name", help="its name on the device map, which no other bears")
    inviting.add_argument("address", help="its IP address, at which all others reach it")
    inviting.add_argument("--out", type=Path, metavar="FILE", help="where it is written (default: NAME.toml)")
    inviting.add_argument("--model", metavar="NAME", help="what the pool calls its devices (default: as PyTorch does, with - for blanks)")
    inviting.add_argument("--switch", metavar="NAME", help="the switch it hangs on, which leases over several nodes prefer to share")
    inviting.add_argument("--cpu", action="store_true", help="for trying: a device that computes on its CPU")


def _add_upgrade(actions: Parsers) -> None:
    text = "bring this node to the release in a folder, which the pool has already"
    upgrading = actions.add_parser("upgrade", help=text, description=text[0].upper() + text[1:] + ".")
    arguments_of(upgrading)
    upgrading.set_defaults(perform=upgrade.perform_upgrade)
    _action(actions, "rollback", upgrade.perform_rollback, "go back to the release before the last upgrade")


def _add_drain(action: argparse.ArgumentParser) -> None:
    action.add_argument("--grace", type=float, metavar="SECONDS", help="take leases back that are open after so long (default: never)")
    action.add_argument("--timeout", type=float, default=DRAIN_SECONDS_MAX, metavar="SECONDS", help="wait no longer (default: 3600)")


def _action(actions: Parsers, name: str, perform: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    made = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    root = "below which all is laid, and nothing is started (default: /)"
    made.add_argument("--root", type=Path, default=Path("/"), metavar="FOLDER", help=root)
    made.set_defaults(perform=perform)
    return made
