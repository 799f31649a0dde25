"""``forebay flavor``: lists the sizes of a virtual device, and chooses one."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from forebay.errors import ForebayError, NotConfigured
from forebay.service import URL_VARIABLE, Service, configured
from forebay.toolkit import pool, table
from forebay.toolkit.smi import served_by
from forebay.waiting import english, offered

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
    described = 'Lists the flavors that can be had; "*" marks your choice.'
    listing = actions.add_parser("list", help="list flavors", description=described)
    listing.add_argument("--all", action="store_true", help="also those that this installation cannot serve, and why")
    listing.add_argument("--json", action="store_true", help="print all of them as JSON instead of a table")
    listing.set_defaults(perform=perform_list)
    setting = actions.add_parser("set", help="choose a flavor", description="Chooses the flavor of your new sessions.")
    setting.add_argument("name", help="as `forebay flavor list` shows it")
    setting.set_defaults(perform=perform_set)


def add_switch_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``forebay switch flavor``, as those know it who switch models by number."""
    command = commands.add_parser("switch", help="choose a flavor by number or name", description="Chooses another flavor.")
    things = command.add_subparsers(title="things", required=True, metavar="THING")
    described = "Chooses the flavor of your new sessions, as `forebay flavor set` does; without a name it shows all, and asks."
    switching = things.add_parser("flavor", help="choose a flavor", description=described)
    switching.add_argument("name", nargs="?", help="its name, or its number in the table")
    switching.set_defaults(perform=perform_switch)


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
        sys.stdout.write(text(flavors, chosen, "forebay flavor list --all", whole=arguments.all) + "\n")
    return 0


def text(flavors: Sequence[Row], chosen: str | None, command: str, *, whole: bool = False, numbered: bool = False) -> str:
    """The flavors that can be had as a table; below it how many others there are, and the command that shows them, or why not each."""
    here, elsewhere = parted(flavors)
    if not here and not whole:
        return f"No device here can be lent. {_folded(len(elsewhere), command)}"
    rows = [_row(flavor, flavor["name"] == chosen) for flavor in [*here, *(elsewhere if whole else [])]]
    headers = ["", "Flavor", "Memory", "Rate", "Served by", "Images", "Offers", "Available"]
    if numbered:
        headers, rows = ["No.", *headers], [[str(number), *row] for number, row in enumerate(rows, 1)]
    lines = [table.render(headers, rows)]
    priced = next((flavor for flavor in here if flavor.get("parked_nano_per_gib_hour")), None)
    if priced is not None:
        price = table.rate(priced["parked_nano_per_gib_hour"], priced.get("currency"))
        lines.append(f"\nEach GiB of images, and of tensors that are parked, costs {price} more.")
    several = [str(flavor["name"]) for flavor in here if _is_several(flavor)]
    if several:
        lines.append(f"\n{SEVERAL} This holds for {', '.join(several)}.")
    if elsewhere and not whole:
        mine = [flavor for flavor in elsewhere if flavor["name"] == chosen]
        lines += ["", *(f"Your choice, {chosen}, cannot be had: {_reason(flavor)}" for flavor in mine), _folded(len(elsewhere), command)]
    elif elsewhere:
        lines += ["", "Not available:", *(f"  {_reason(flavor)}" for flavor in elsewhere)]
    return "\n".join(lines)


def parted(flavors: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Those that this installation can serve, and the others."""
    return [one for one in flavors if one["servable"]], [one for one in flavors if not one["servable"]]


def _folded(count: int, command: str) -> str:
    return f"{table.counted(count, 'more flavor')}, which this installation cannot serve: see `{command}`."


def _reason(flavor: Row) -> str:
    return str(flavor.get("reason") or f"{flavor['name']}: no device serves it.")


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
        str(flavor.get("images_kept") or ""),
        ", ".join(flavor.get("runtimes_served") or ()),
        offered(flavor, english()) if flavor.get("servable") else "no",
    ]


def perform_set(arguments: argparse.Namespace) -> int:
    """Stores the choice at the pool."""
    service = _keeping(arguments.name)
    return _choose(service, pool.rows(service, "api/flavors"), arguments.name)


def perform_switch(arguments: argparse.Namespace) -> int:
    """The same, by a number too, and of a person who is asked."""
    service = _keeping(arguments.name or "NAME")
    flavors = pool.rows(service, "api/flavors")
    wanted = arguments.name
    if wanted is None:
        if not sys.stdin.isatty():
            raise ForebayError("There is nobody to ask: give a flavor's name, as `forebay flavor list` shows it.")
        sys.stdout.write(text(flavors, pool.chosen_flavor(service), "forebay flavor list --all", whole=True, numbered=True) + "\n")
        wanted = _asked()
    if not wanted:
        sys.stdout.write("Your choice stays as it is.\n")
        return 0
    return _choose(service, flavors, _named(wanted, flavors))


def _keeping(name: str) -> Service:
    """The pool that keeps the choice. Raises NotConfigured."""
    service = pool.remote()
    if service is None:
        local = f"On this machine alone nothing keeps a choice: use `forebay run --flavor {name} script.py`"
        raise NotConfigured(f"{local}, sign in with `forebay login`, or set {URL_VARIABLE} to your pool's address.")
    return service


def _asked() -> str:
    """What a person answers; nothing: no flavor."""
    sys.stdout.write("Number or name of your flavor (Enter: leave it): ")
    sys.stdout.flush()
    return sys.stdin.readline().strip()


def _named(wanted: str, flavors: Sequence[Row]) -> str:
    """The name of a flavor that is given by its name, or by its number in the table."""
    names = [str(flavor["name"]) for part in parted(flavors) for flavor in part]
    if wanted in names or not wanted.isdecimal():
        return wanted
    if not 1 <= int(wanted) <= len(names):
        raise ForebayError(f"There is no flavor {wanted}; the numbers are 1 to {len(names)}.")
    return names[int(wanted) - 1]


def _choose(service: Service, flavors: Sequence[Row], name: str) -> int:
    flavor = next((one for one in flavors if one["name"] == name), None)
    if flavor is None:
        raise ForebayError(unknown(name, [str(one["name"]) for one in flavors]))
    pool.row(service, service.put("api/choice", {"flavor": name}), "flavor")
    price = table.rate(flavor.get("price_nano_per_hour"), flavor.get("currency"))
    size = table.memory(flavor["memory_bytes"])
    sys.stdout.write(f"Your new sessions get {name}: {size}, {price}. A notebook gets it when its kernel is restarted.\n")
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
