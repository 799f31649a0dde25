"""``forebay smi``: the user's virtual devices and what they hold, in the manner of nvidia-smi."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from forebay.errors import PoolUnreachable
from forebay.service import embedded
from forebay.toolkit import pool, table
from forebay.waiting import of_row

PROCESS_CHARACTERS_MAX = 48
NAMED_MAX = 3
"""Of more ways to serve a flavor those are named that are here, or so many if none is."""
DESCRIPTION = (
    "Shows the virtual devices of your processes, one row each: those at the configured service, "
    "else those of the programs that `forebay run` runs on this machine."
)

Row = Mapping[str, Any]


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    help_text = "show your virtual devices, their memory and state"
    command = commands.add_parser("smi", help=help_text, description=DESCRIPTION)
    command.add_argument("--json", action="store_true", help="print the sessions as JSON instead of tables")
    command.set_defaults(perform=perform)


def perform(arguments: argparse.Namespace) -> int:
    """Prints the tables, or JSON."""
    sessions: list[Row] = []
    flavors: dict[str, Row] = {}
    remote = pool.remote()
    for service in [remote] if remote is not None else embedded.running():
        try:
            sessions += pool.rows(service, "api/sessions")
            flavors |= {str(flavor["name"]): flavor for flavor in pool.rows(service, "api/flavors")}
        except PoolUnreachable:
            if service is remote:
                raise
    if arguments.json:
        json.dump(sessions, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return 0
    if remote is None and not sessions:
        sys.stdout.write(f"{pool.NO_SERVICE} No program runs so now.\n")
        return 0
    sys.stdout.write(text(sessions, flavors) + "\n")
    return 0


def text(sessions: Sequence[Row], flavors: Mapping[str, Row]) -> str:
    """Both tables, or a sentence where there is no session."""
    if not sessions:
        return "No process of yours has a virtual device now."
    devices = [_device(number, session, flavors.get(session["flavor"], {})) for number, session in enumerate(sessions)]
    processes = [_process(number, session) for number, session in enumerate(sessions)]
    return "\n".join(
        [
            table.render(["Device", "Flavor", "Model", "Memory usage", "Total memory", "Last image", "State"], devices),
            "",
            "Processes",
            table.render(["Device", "Session", "User", "Process", "Memory usage"], processes),
        ]
    )


def served_by(flavor: Row) -> str:
    """The physical devices that may serve the flavor, for example ``16 x MI250 or 0.25 x A100``; of many those that are here."""
    ways = flavor.get("equivalents") or []
    named = ways if len(ways) <= NAMED_MAX else [one for one in ways if one.get("devices")] or ways[:NAMED_MAX]
    words = [f"{table.thousandths(one['count'] * one.get('share_milli', table.MILLI))} x {one['model']}" for one in named]
    return " or ".join([*words, *([table.counted(len(ways) - len(named), "other")] if len(named) < len(ways) else [])]) or "-"


def _device(number: int, session: Row, flavor: Row) -> list[str]:
    """Its model is that of the physical device which holds the session, else of those which may."""
    total = flavor.get("memory_bytes")
    return [
        str(number),
        str(session["flavor"]),
        str(session.get("device_model") or served_by(flavor)),
        table.memory(session.get("memory_bytes") or 0),
        table.memory(total) if total is not None else "-",
        _image(session),
        _state(session),
    ]


def _image(session: Row) -> str:
    """What another worker would go on from: how large it is, and how old."""
    image = session.get("image")
    return "-" if image is None else f"{table.memory(image['bytes'])}, {max(0, time.time_ns() - image['at_ns']) / 1e9:.0f} s ago"


def _state(session: Row) -> str:
    if session["state"] != "queued":
        return str(session["state"])
    return " ".join(filter(None, [f"queued, position {session.get('position')}: {session.get('reason')}", of_row(session)]))


def _process(number: int, session: Row) -> list[str]:
    process = str(session.get("process") or "")
    shown = process if len(process) <= PROCESS_CHARACTERS_MAX else process[: PROCESS_CHARACTERS_MAX - 1] + "…"
    return [str(number), str(session["session"]), str(session["user"]), shown, table.memory(session.get("memory_bytes") or 0)]
