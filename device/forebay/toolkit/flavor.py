"""``forebay flavor``: lists the sizes of a virtual device, and chooses one."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from forebay.errors import ForebayError, NotConfigured
from forebay.service import URL_VARIABLE, configured
from forebay.toolkit import pool, table
from forebay.toolkit.smi import served_by

NEAREST_SHOWN = 3
SEVERAL = (
    "Of several devices each computes its part of a batch that comes again and again; what cannot be divided runs on the first. "
    "All are billed."
)

Row = Mapping[str, Any]


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand with its own two."""
    command = commands.add_parser(
        "flavor", help="list the sizes of a virtual device, and choose one", description="Sizes of a virtual device."
    )
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list all flavors", description='Lists all flavors; "*" marks your choice.')
    listing.add_argument("--json", action="store_true", help="print JSON instead of a table")
    listing.set_defaults(perform=perform_list)
    setting = actions.add_parser("set", help="choose a flavor", description="Chooses the flavor of your new sessions.")
    setting.add_argument("name", help="as `forebay flavor list` shows it")
    setting.set_defaults(perform=perform_set)


def perform_list(arguments: argparse.Namespace) -> int:
    """Prints the flavors."""
    if configured() is None:
        sys.stderr.write(f"forebay: No service is configured ({URL_VARIABLE}); this is what `forebay run` offers on this machine.\n")
    with pool.remote_or_own() as service:
        flavors = pool.rows(service, "api/flavors")
        chosen = pool.chosen_flavor(service)
    if arguments.json:
        json.dump([{**flavor, "chosen": flavor["name"] == chosen} for flavor in flavors], sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(text(flavors, chosen) + "\n")
    return 0


def text(flavors: Sequence[Row], chosen: str | None) -> str:
    """The flavors as a table, and below it why some cannot be had."""
    rows = [_row(flavor, flavor["name"] == chosen) for flavor in flavors]
    lines = [table.render(["", "Flavor", "Memory", "Rate", "Served by", "Available"], rows)]
    several = [str(flavor["name"]) for flavor in flavors if flavor.get("servable") and _is_several(flavor)]
    if several:
        lines.append(f"\n{SEVERAL} This holds for {', '.join(several)}.")
    reasons = [str(flavor.get("reason") or f"{flavor['name']}: no device serves it.") for flavor in flavors if not flavor.get("servable")]
    return "\n".join([*lines, *(["", "Not available:", *(f"  {reason}" for reason in reasons)] if reasons else [])])


def _is_several(flavor: Row) -> bool:
    """Whether several devices that are here may be leased together for it."""
    return any(way["count"] > 1 and way.get("devices") for way in flavor["equivalents"])


def _row(flavor: Row, is_chosen: bool) -> list[str]:
    return [
        "*" if is_chosen else "",
        str(flavor["name"]),
        table.memory(flavor["memory_bytes"]),
        table.rate(flavor.get("price_nano_per_hour"), flavor.get("currency")),
        served_by(flavor),
        "yes" if flavor.get("servable") else "no",
    ]


def perform_set(arguments: argparse.Namespace) -> int:
    """Stores the choice at the pool."""
    service = pool.remote()
    if service is None:
        local = f"On this machine alone nothing keeps a choice: use `forebay run --flavor {arguments.name} script.py`"
        raise NotConfigured(f"{local}, or set {URL_VARIABLE} to your pool's address.")
    flavors = {str(flavor["name"]): flavor for flavor in pool.rows(service, "api/flavors")}
    flavor = flavors.get(arguments.name)
    if flavor is None:
        raise ForebayError(unknown(arguments.name, list(flavors)))
    pool.row(service, service.put("api/choice", {"flavor": arguments.name}), "flavor")
    price = table.rate(flavor.get("price_nano_per_hour"), flavor.get("currency"))
    size = table.memory(flavor["memory_bytes"])
    sys.stdout.write(f"Your new sessions get {arguments.name}: {size}, {price}. A notebook gets it when its kernel is restarted.\n")
    return 0


def row_of(name: str) -> Row:
    """The flavor of the configured pool, or of this machine's own. Raises ForebayError for one that is not there."""
    with pool.remote_or_own() as service:
        found = {str(row["name"]): row for row in pool.rows(service, "api/flavors")}
    if name not in found:
        raise ForebayError(unknown(name, list(found)))
    return found[name]


def unknown(name: str, names: Sequence[str], kind: str = "flavor", listing: str = "forebay flavor list") -> str:
    """One sentence with the names that are nearest."""
    lowered = {known.lower(): known for known in names}
    nearest = [lowered[one] for one in difflib.get_close_matches(name.lower(), list(lowered), NEAREST_SHOWN, 0.4)]
    if nearest:
        return f"There is no {kind} {name!r}; the nearest are {', '.join(nearest)}."
    return f"There is no {kind} {name!r}; `{listing}` shows all."
