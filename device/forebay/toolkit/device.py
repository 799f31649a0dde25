"""``forebay device``: how many virtual devices a process has, and of which flavors."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from forebay import devices
from forebay.devices import DEVICES_VARIABLE
from forebay.errors import ForebayError
from forebay.service import FLAVOR_VARIABLE
from forebay.toolkit import table
from forebay.toolkit.flavor import row_of

YOUR_CHOICE = "(your choice)"
DESCRIPTION = (
    "The virtual devices of your later processes: cuda:0, cuda:1 and so on, each of a flavor of its own. "
    "A device costs nothing until it is used."
)
AFTERWARDS = "Processes that start from now on have it; a notebook when its kernel is restarted."


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand with its own four."""
    command = commands.add_parser("device", help="add, remove and list the virtual devices of a process", description=DESCRIPTION)
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list the devices", description="Lists the devices that a process has which starts now.")
    listing.add_argument("--json", action="store_true", help="print JSON instead of a table")
    listing.set_defaults(perform=perform_list)
    adding = actions.add_parser("add", help="add a device", description="Adds a device behind the others.")
    adding.add_argument("flavor", nargs="?", help="as `forebay flavor list` shows it; without one, your choice at the time of use")
    adding.set_defaults(perform=perform_add)
    removing = actions.add_parser("rm", help="remove a device", description="Removes a device; those behind it move up by one.")
    removing.add_argument("index", type=int, help="its number, as `forebay device list` shows it")
    removing.set_defaults(perform=perform_rm)
    switching = actions.add_parser("switch", help="give a device another flavor", description="Gives a device another flavor.")
    switching.add_argument("index", type=int, help="its number, as `forebay device list` shows it")
    switching.add_argument("flavor", help="as `forebay flavor list` shows it")
    switching.set_defaults(perform=perform_switch)


def perform_list(arguments: argparse.Namespace) -> int:
    """Prints the devices."""
    flavors = devices.wanted()
    if arguments.json:
        json.dump([{"device": f"cuda:{index}", "flavor": flavor} for index, flavor in enumerate(flavors)], sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(text(flavors) + "\n")
    return 0


def text(flavors: Sequence[str | None]) -> str:
    """The devices as a table."""
    otherwise = os.environ.get(FLAVOR_VARIABLE) or YOUR_CHOICE
    return table.render(["Device", "Flavor"], [[f"cuda:{index}", flavor or otherwise] for index, flavor in enumerate(flavors)])


def perform_add(arguments: argparse.Namespace) -> int:
    """Keeps one device more."""
    if arguments.flavor is not None:
        row_of(arguments.flavor)
    return _keep([*devices.saved(), arguments.flavor])


def perform_rm(arguments: argparse.Namespace) -> int:
    """Keeps one device less."""
    kept = devices.saved()
    _check_index(arguments.index, kept)
    if len(kept) == 1:
        raise ForebayError("cuda:0 is the only device and stays; a device costs nothing until it is used.")
    return _keep([flavor for index, flavor in enumerate(kept) if index != arguments.index])


def perform_switch(arguments: argparse.Namespace) -> int:
    """Keeps another flavor for a device."""
    kept = devices.saved()
    _check_index(arguments.index, kept)
    row_of(arguments.flavor)
    kept[arguments.index] = arguments.flavor
    return _keep(kept)


def _keep(flavors: devices.Flavors) -> int:
    devices.save(flavors)
    sys.stdout.write(f"{text(flavors)}\n{AFTERWARDS}\n")
    if os.environ.get(DEVICES_VARIABLE, "").strip():
        sys.stderr.write(f"forebay: {DEVICES_VARIABLE} is set and comes before what is saved; unset it.\n")
    return 0


def _check_index(index: int, kept: devices.Flavors) -> None:
    if not 0 <= index < len(kept):
        raise ForebayError(f"There is no device {index}; `forebay device list` shows all.")
