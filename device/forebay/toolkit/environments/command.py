"""``forebay env``: one's own environments of packages."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from forebay.toolkit import table
from forebay.toolkit.environments import environment
from forebay.toolkit.environments.environment import Environment

DESCRIPTION = """\
Your own environments of packages, in ~/.forebay. Each sees the packages that everybody has, and takes what pip installs.
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand with its own."""
    command = commands.add_parser("env", help="list, make and choose your environments of packages", description=DESCRIPTION)
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list them, and what they take on the disk", description="Lists your environments.")
    listing.add_argument("--json", action="store_true", help="print JSON instead of a table")
    listing.set_defaults(perform=perform_list)
    for name, what, perform in (
        ("create", "make one, with a kernel of its own", perform_create),
        ("remove", "remove one with all that is installed in it", perform_remove),
        ("use", "have new terminals and jobs of scripts use it", perform_use),
    ):
        action = actions.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
        action.add_argument("name", help="small letters, digits, _ and -" if name == "create" else "as `forebay env list` shows it")
        action.set_defaults(perform=perform)
    for name, what, perform in (
        ("record", "write into a notebook which packages its environment has", perform_record),
        ("restore", "install the packages that a notebook has recorded", perform_restore),
    ):
        action = actions.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
        action.add_argument("notebook", type=Path, help="its file; its kernel says which environment is meant")
        action.set_defaults(perform=perform)


def perform_list(arguments: argparse.Namespace) -> int:
    """Prints the environments."""
    used, found = environment.in_use(), environment.environments()
    if arguments.json:
        rows = [{**_row(each), "in_use": each == used} for each in found]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return 0
    lines = [
        [each.name, "yes" if each == used else "", each.kernel, str(len(each.packages())), table.memory(each.size_bytes())]
        for each in found
    ]  # fmt: skip
    sys.stdout.write(table.render(["Environment", "In use", "Kernel", "Packages", "On disk"], lines) + "\n")
    return 0


def _row(each: Environment) -> dict[str, object]:
    return {
        "name": each.name,
        "kernel": each.kernel,
        "path": str(each.path),
        "size_bytes": each.size_bytes(),
        "packages": each.packages(),
    }  # fmt: skip


def perform_create(arguments: argparse.Namespace) -> int:
    """Makes one."""
    made = environment.create(arguments.name)
    used = f"`forebay env use {made.name}` is for terminals and jobs"
    sys.stdout.write(f"{made.name} is made. Notebooks choose its kernel, {made.kernel}; {used}.\n")
    return 0


def perform_remove(arguments: argparse.Namespace) -> int:
    """Removes one."""
    environment.remove(arguments.name)
    again = " It is there again, without packages of its own." if arguments.name == environment.DEFAULT else ""
    sys.stdout.write(f"{arguments.name} is removed.{again} Restart the kernels that had it.\n")
    return 0


def perform_use(arguments: argparse.Namespace) -> int:
    """Chooses one."""
    used = environment.use(arguments.name)
    sys.stdout.write(f"New terminals and jobs of scripts use {used.name}. In this terminal: source {used.path}/bin/activate\n")
    return 0


def perform_record(arguments: argparse.Namespace) -> int:
    """Writes a notebook's packages into it."""
    from forebay.toolkit.environments import requirements

    lines = requirements.record(arguments.notebook)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.write(f"{table.counted(len(lines), 'package is', 'packages are')} recorded in {arguments.notebook}.\n")
    return 0


def perform_restore(arguments: argparse.Namespace) -> int:
    """Installs a notebook's packages."""
    from forebay.toolkit.environments import requirements

    of, status = requirements.restore(arguments.notebook)
    if not status:
        sys.stdout.write(f"The packages of {arguments.notebook} are in the environment {of.name}.\n")
    return status
