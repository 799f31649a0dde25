"""``forebay admin``: what operators do at the pool: nodes, devices, models, flavors, quotas, the queue and sessions.

What they do at billing is in :mod:`forebay_admin.billing`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import Any

from forebay.errors import ForebayError, NotConfigured
from forebay.service import URL_VARIABLE, Service
from forebay.toolkit import pool, table
from forebay.toolkit.smi import served_by
from forebay.waiting import of_row
from forebay_wire.remote.places import place
from forebay_wire.remote.runtimes import RUNTIMES

from forebay_admin.actions import Parsers
from forebay_admin.actions import action as _action
from forebay_admin.actions import cells as _table
from forebay_admin.actions import part as _part
from forebay_admin.actions import show as _show
from forebay_admin.actions import things as _things

Row = Mapping[str, Any]
HOUR_SECONDS = 3600
DAY_SECONDS = 86_400
UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
MODEL_HEADERS = ["Model", "Devices", "Free", "Closed", "Tenants"]
FLAVOR_HEADERS = ["Flavor", "Memory", "Rate", "Served by", "Residents", "Images", "Offers", "Why not"]
SUGGESTION_HEADERS = ["Flavor", "Memory", "Served by", "Remark", "Proposed rate"]
NOTHING_SUGGESTED = "The devices that are here have their flavors: there is nothing to suggest."
NOTHING_MADE = "Nothing is made yet: `forebay admin flavors suggest --apply` makes all of them, with names those alone."
NOT_BILLED = "A new flavor is not billed until it has a price: `forebay admin prices set NAME --per-hour 2.49 --currency USD --new`."
QUOTA_HEADERS = ["Tenant", "User", "Devices", "Held", "Device hours", "Used", "Window", "Then", "Priority", "Weight", "Parks", "Parked"]


def add_to(things: Parsers) -> None:
    """Adds the subcommands."""
    _add_nodes(things)
    _add_devices(things)
    _add_models(things)
    _add_flavors(things)
    _add_quotas(things)
    _add_sessions(things)
    queue = _action(things, "queue", perform_queue, "who waits, at which position, and why")
    queue.add_argument("--tenant", help="of this tenant alone")
    _action(things, "forecast", perform_forecast, "what each flavor's demand will come to, if it goes on")


def _service() -> Service:
    """Raises NotConfigured."""
    service = pool.remote()
    if service is None:
        raise NotConfigured(f"There is nothing to administer without a service: set {URL_VARIABLE} to your pool's address.")
    return service


def _put(path: str, body: Mapping[str, Any], key: str) -> Row:
    """What was changed, as it is then; it has ``key``."""
    service = _service()
    return pool.row(service, service.put(path, body), key)


# Nodes and devices


def _add_nodes(things: Parsers) -> None:
    actions = _things(things, "nodes", "hosts with devices")
    _action(actions, "list", perform_nodes, "all nodes and what goes on there")
    drain = _action(actions, "drain", perform_drain, "no new leases on a node; its sessions move or are parked")
    drain.add_argument("node")
    drain.add_argument("--grace", type=_amount, metavar="SECONDS", help="take leases back that are open after so long (default: never)")
    drain.add_argument("--undo", action="store_true", help="lend its devices again")


def perform_nodes(arguments: argparse.Namespace) -> int:
    nodes = pool.rows(_service(), "api/nodes")
    headers = ["Node", "Switch", "State", "Devices", "Closed", "Free", "Leases", "Residents", "Parked", "Remark"]
    return _show(arguments, nodes, lambda: _table(headers, [_node(node) for node in nodes], "No node."))


def _node(node: Row) -> list[object]:
    free = table.thousandths(node["free_milli"])
    return [
        *(node["node"], node["switch"], node["state"], node["devices"], node["closed"], free),
        *(node["leases"], node["residents"], node["parked"], node["cause"]),
    ]


def perform_drain(arguments: argparse.Namespace) -> int:
    body = {"drain": not arguments.undo, "grace_seconds": arguments.grace}
    answer = _put(f"api/nodes/{_part(arguments.node)}", body, "node")
    done = "lends its devices again" if arguments.undo else "gets no new lease"
    return _show(arguments, answer, lambda: f"Node {arguments.node} {done}.")


def _add_devices(things: Parsers) -> None:
    actions = _things(things, "devices", "physical devices")
    listing = _action(actions, "list", perform_devices, "all devices, who holds them, and how they are")
    listing.add_argument("--node", help="of this node alone")
    cordon = _action(actions, "cordon", perform_cordon, "no new leases on a device")
    cordon.add_argument("device")
    cordon.add_argument("--cause", default="", help="why, for other operators to read")
    uncordon = _action(actions, "uncordon", perform_cordon, "lend a device again")
    uncordon.add_argument("device")


def perform_devices(arguments: argparse.Namespace) -> int:
    devices = [row for row in pool.rows(_service(), "api/devices") if arguments.node in (None, row["node"])]
    headers = ["Device", "Node", "Model", "Memory", "State", "Free", "Leases", "Residents", "Remark"]
    return _show(arguments, devices, lambda: _table(headers, [_device(device) for device in devices], "No device."))


def _device(device: Row) -> list[object]:
    free, leases = table.thousandths(device["free_milli"]), ", ".join(device["leases"])
    return [
        *(device["device"], device["node"], device["model"], table.memory(device["memory_bytes"]), device["state"], free),
        *(leases, len(device["residents"]), device["cause"]),
    ]


def perform_cordon(arguments: argparse.Namespace) -> int:
    cordoned = hasattr(arguments, "cause")
    body = {"cordoned": True, "cause": arguments.cause} if cordoned else {"cordoned": False}
    answer = _put(f"api/devices/{_part(arguments.device)}", body, "device")
    return _show(arguments, answer, lambda: f"Device {arguments.device} {'gets no new lease' if cordoned else 'is lent again'}.")


def _add_models(things: Parsers) -> None:
    actions = _things(things, "models", "makes of devices")
    _action(actions, "list", perform_models, "all models, what is free of them, and who may have them")
    setting = _action(actions, "set", perform_set_model, "say who may have a model")
    setting.add_argument("model")
    setting.add_argument("--tenant", action="append", help="who may have it; may be repeated (default: all)")


def perform_models(arguments: argparse.Namespace) -> int:
    models = pool.rows(_service(), "api/models")
    return _show(arguments, models, lambda: _table(MODEL_HEADERS, [_model(model) for model in models], "No model."))


def _model(model: Row) -> list[object]:
    tenants = "all" if model["tenants"] is None else ", ".join(model["tenants"]) or "none"
    return [model["model"], model["devices"], model["free"], model["closed"], tenants]


def perform_set_model(arguments: argparse.Namespace) -> int:
    body = {"tenants": arguments.tenant}
    answer = _put(f"api/models/{_part(arguments.model)}", body, "model")
    return _show(arguments, answer, lambda: _table(MODEL_HEADERS, [_model(answer)], ""))


# Flavors


def _add_flavors(things: Parsers) -> None:
    actions = _things(things, "flavors", "sizes of virtual devices")
    _action(actions, "list", perform_flavors, "all flavors and what serves them")
    setting = _action(actions, "set", perform_set_flavor, "make a flavor, or change one for later leases")
    setting.add_argument("name")
    setting.add_argument("--memory", required=True, type=_bytes, metavar="SIZE", help="its memory, for example 64GiB")
    setting.add_argument(
        "--served-by", required=True, action="append", type=_equivalent, metavar="N*MODEL", help="16*MI250, or 0.25*A100; may be repeated"
    )
    setting.add_argument("--residents-max", type=int, metavar="N", help="resident sessions on a device (default: as memory allows)")
    where = "where images of its sessions are kept (default: as the pool's setting says)"
    setting.add_argument("--images", choices=("process", "disk", "node", "none"), help=where)
    what = f"what it offers, of {', '.join(RUNTIMES)}, with commas between (default: all that its hosts serve)"
    setting.add_argument("--runtimes", type=_runtimes, metavar="NAMES", help=what)
    out = "places that its processes may reach, as host:port with commas between, or none (default: those of the pool's setting)"
    setting.add_argument("--egress", type=_egress, metavar="PLACES", help=out)

    suggesting = _action(
        actions, "suggest", perform_suggest, "which flavors the devices that are here could serve, and that are not there yet"
    )
    suggesting.add_argument("name", nargs="*", help="of these alone")
    suggesting.add_argument("--apply", action="store_true", help="make them")


def perform_flavors(arguments: argparse.Namespace) -> int:
    flavors = pool.rows(_service(), "api/flavors")
    return _show(arguments, flavors, lambda: _table(FLAVOR_HEADERS, [_flavor(flavor) for flavor in flavors], "No flavor."))


def _flavor(flavor: Row) -> list[object]:
    rate = table.rate(flavor["price_nano_per_hour"], flavor["currency"])
    size = table.memory(flavor["memory_bytes"])
    offers = ", ".join(flavor.get("runtimes_served") or [])
    return [flavor["name"], size, rate, served_by(flavor), flavor["residents_max"], flavor["images_kept"], offers, flavor["reason"]]


def perform_set_flavor(arguments: argparse.Namespace) -> int:
    bounds = {"memory_bytes": arguments.memory, "residents_max": arguments.residents_max}
    runtimes = {} if arguments.runtimes is None else {"runtimes": arguments.runtimes}
    egress = {} if arguments.egress is None else {"egress": arguments.egress}
    body = {**bounds, **runtimes, **egress, "equivalents": arguments.served_by, "images": arguments.images}
    answer = _put(f"api/flavors/{_part(arguments.name)}", body, "name")
    return _show(arguments, answer, lambda: _table(FLAVOR_HEADERS, [_flavor(answer)], ""))


def perform_suggest(arguments: argparse.Namespace) -> int:
    service = _service()
    found = pool.rows(service, "api/suggestions")
    unknown = sorted(set(arguments.name) - {row["name"] for row in found})
    if unknown:
        raise ForebayError(f"No flavor {unknown[0]!r} is suggested; `forebay admin flavors suggest` shows all that are.")
    wanted = [row for row in found if row["name"] in (arguments.name or [row["name"]])]
    if not arguments.apply:
        return _show(arguments, wanted, lambda: _suggestions(wanted))
    made = [_make(service, row) for row in wanted]
    return _show(arguments, made, lambda: _made(made, wanted))


def _make(service: Service, row: Row) -> Row:
    """The flavor as it is once it is made, unless somebody made or changed one of its name meanwhile."""
    ways = [{key: way[key] for key in ("model", "count", "share_milli")} for way in row["equivalents"]]
    kept = {name: row[name] for name in ("runtimes", "egress") if row.get(name) is not None}
    body = {"equivalents": ways, **kept, **{name: row[name] for name in ("memory_bytes", "residents_max", "images")}}
    expected = {"If-None-Match": "*"} if row["etag"] is None else {"If-Match": row["etag"]}
    return pool.row(service, service.put(f"api/flavors/{_part(row['name'])}", body, expected), "name")


def _suggestions(rows: Sequence[Row]) -> str:
    shown = _table(SUGGESTION_HEADERS, [_suggestion(row) for row in rows], NOTHING_SUGGESTED)
    return "\n".join([shown, *([NOTHING_MADE, NOT_BILLED] if rows else [])])


def _suggestion(row: Row) -> list[object]:
    nano = row["proposed_nano_per_hour"]
    rate = None if nano is None else f"{table.rate(nano, row['currency'])}, as {row['priced_as']}"
    remark = "new" if row["etag"] is None else "is there: more serves it"
    return [row["name"], table.memory(row["memory_bytes"]), served_by({"equivalents": row["added"]}), remark, rate]


def _made(flavors: Sequence[Row], suggested: Sequence[Row]) -> str:
    """What was made, and for each that is new the command that prices it as was proposed."""
    shown = _table(FLAVOR_HEADERS, [_flavor(flavor) for flavor in flavors], NOTHING_SUGGESTED)
    proposed = [row for row in suggested if row["proposed_nano_per_hour"] is not None]
    commands = [f"  forebay admin prices set {row['name']} {_price(row)} --new" for row in proposed]
    return "\n".join([shown, *([NOT_BILLED] if any(row["etag"] is None for row in suggested) else []), *commands])


def _price(row: Row) -> str:
    """The proposed one, as the command takes it."""
    rate = table.rate(row["proposed_nano_per_hour"], row["currency"])
    return f"--per-hour {rate.split()[0]} --currency {row['currency']}"


# Quotas


def _add_quotas(things: Parsers) -> None:
    actions = _things(things, "quotas", "how much tenants and users may hold and use")
    _action(actions, "list", perform_quotas, "all quotas, and what of them is held and used")
    setting = _action(actions, "set", perform_set_quota, "set the quota of a tenant or a user; what is left out has no bound")
    setting.add_argument("who", help="TENANT or TENANT/USER")
    setting.add_argument("--devices", type=_thousandths, metavar="N", help="devices held at a time, for example 4 or 0.5")
    setting.add_argument("--device-hours", type=_amount, metavar="HOURS", help="device time in a sliding window")
    setting.add_argument("--window-days", type=_amount, metavar="DAYS", default=30.0, help="the window's length (default: 30)")
    setting.add_argument("--revoke", action="store_true", help="take leases back once the device time is used up, not only refuse new ones")
    setting.add_argument("--priority-max", type=int, metavar="P", help="highest priority that may be asked for, -99 to 99")
    setting.add_argument("--parked", type=_bytes, metavar="SIZE", help="tensors kept off devices, for example 64GiB")
    setting.add_argument("--end-when-full", action="store_true", help="end sessions that may not be parked, rather than keep their place")
    setting.add_argument("--weight", type=int, default=1, metavar="W", help="weight in the fair share (default: 1)")


def perform_quotas(arguments: argparse.Namespace) -> int:
    quotas = pool.rows(_service(), "api/quotas")
    return _show(arguments, quotas, lambda: _table(QUOTA_HEADERS, [_quota(row) for row in quotas], "No quota is set."))


def _quota(row: Row) -> list[object]:
    devices, seconds, window = row["devices_milli"], row["device_seconds"], row["window_seconds"]
    parked = row["parked_bytes"]
    return [
        *(row["tenant"], row["user"], None if devices is None else table.thousandths(devices), table.thousandths(row["held_milli"])),
        *(None if seconds is None else f"{seconds / HOUR_SECONDS:g}", f"{row['used_device_seconds'] / HOUR_SECONDS:.2f}"),
        *(None if window is None else f"{window / DAY_SECONDS:g} days", row["on_exhausted"], row["priority_max"], row["weight"]),
        *(None if parked is None else table.memory(parked), table.memory(row["parked_bytes_held"])),
    ]


def perform_set_quota(arguments: argparse.Namespace) -> int:
    hours = arguments.device_hours
    body = {
        "devices_milli": arguments.devices,
        "device_seconds": None if hours is None else round(hours * HOUR_SECONDS),
        "window_seconds": None if hours is None else round(arguments.window_days * DAY_SECONDS),
        "on_exhausted": "revoke" if arguments.revoke else "wait",
        "priority_max": arguments.priority_max,
        "weight": arguments.weight,
        "parked_bytes": arguments.parked,
        "on_parked_full": "end" if arguments.end_when_full else "stay",
    }
    path = "/".join(_part(part) for part in arguments.who.split("/", 1))
    answer = _put(f"api/quotas/{path}", body, "tenant")
    return _show(arguments, answer, lambda: f"The quota of {arguments.who} is set.")


# The queue and sessions


def perform_queue(arguments: argparse.Namespace) -> int:
    waiting = [row for row in pool.rows(_service(), "api/queue") if arguments.tenant in (None, row["tenant"])]
    headers = ["Position", "Session", "Tenant", "User", "Flavor", "Priority", "Estimate", "Reason"]
    return _show(arguments, waiting, lambda: _table(headers, [_waiting(row) for row in waiting], "Nobody waits."))


def _waiting(row: Row) -> list[object]:
    return [
        *(row["position"], row["session"], row["tenant"], row["user"], row["flavor"], row["priority"]),
        *(of_row(row), f"{row['code']}: {row['reason']}"),
    ]


def perform_forecast(arguments: argparse.Namespace) -> int:
    flavors = pool.rows(_service(), "api/forecast")
    headers = ["Flavor", "Busy devices", "With its rivals", "Devices", "Utilisation", "Missing", "Waits"]
    return _show(arguments, flavors, lambda: _table(headers, [_forecast(row) for row in flavors], "No flavor."))


def _forecast(row: Row) -> list[object]:
    utilisation = row["utilisation"]
    return [
        *(row["flavor"], f"{row['offered_devices']:.2f}", f"{row['rival_devices']:.2f}", f"{row['devices']:g}"),
        *(None if utilisation is None else f"{utilisation:.0%}", f"{row['missing_devices']:.2f}", f"{row['wait_probability']:.0%}"),
    ]


def _add_sessions(things: Parsers) -> None:
    actions = _things(things, "sessions", "virtual devices of processes")
    listing = _action(actions, "list", perform_sessions, "all sessions and what they do")
    listing.add_argument("--tenant", help="of this tenant alone")
    for name, text in (
        ("revoke", "take a session's lease back, with grace"),
        ("move", "let a session go on on another device"),
        ("end", "end a session; its tensors are lost"),
    ):
        action = _action(actions, name, perform_on_session, text)
        action.add_argument("session")
        action.set_defaults(verb=name)


def perform_sessions(arguments: argparse.Namespace) -> int:
    sessions = [row for row in pool.rows(_service(), "api/sessions") if arguments.tenant in (None, row["tenant"])]
    headers = ["Session", "Tenant", "User", "Flavor", "Model", "State", "Memory", "Process"]
    return _show(arguments, sessions, lambda: _table(headers, [_session(row) for row in sessions], "No session."))


def _session(row: Row) -> list[object]:
    memory = table.memory(row["memory_bytes"])
    return [row["session"], row["tenant"], row["user"], row["flavor"], row["device_model"], row["state"], memory, row["process"]]


def perform_on_session(arguments: argparse.Namespace) -> int:
    path = f"api/sessions/{_part(arguments.session)}"
    service, name = _service(), arguments.session
    if arguments.verb == "end":
        return _show(arguments, service.delete(path), lambda: f"Session {name} is over.")
    answer = pool.row(service, service.post(f"{path}/{arguments.verb}", {}), "from" if arguments.verb == "move" else "lease")
    if arguments.verb == "move":
        return _show(arguments, answer, lambda: f"Session {name} leaves {answer['from']}.")
    return _show(arguments, answer, lambda: f"Session {name} gives its lease {answer['lease']} back within {answer['seconds']:g} s.")


# What people write


def _amount(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 on")
    return number


def _thousandths(text: str) -> int:
    return round(_amount(text) * table.MILLI)


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text.strip())
    if found is None or found[2].upper() not in UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write for example 64GiB")
    return int(found[1]) * UNITS[found[2].upper()]


def _runtimes(text: str) -> list[str]:
    """``torch,xla``."""
    named = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in named if name not in RUNTIMES]
    if unknown or not named:
        raise argparse.ArgumentTypeError(f"{text!r} is not like torch,xla: there are {', '.join(RUNTIMES)}")
    return named


def _egress(text: str) -> list[str]:
    """``pypi.org:443,files.pythonhosted.org:443``, or ``none``."""
    if text.strip().lower() == "none":
        return []
    try:
        return [place(one) for one in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _equivalent(text: str) -> dict[str, Any]:
    """``16*MI250`` is a gang of 16 devices, ``0.25*A100`` a quarter of one."""
    found = re.fullmatch(r"\s*([0-9.]+)\s*[*x]\s*(\S.*?)\s*", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 16*MI250 or 0.25*A100")
    milli = _thousandths(found[1])
    if milli < table.MILLI:
        return {"model": found[2], "count": 1, "share_milli": milli}
    if milli % table.MILLI:
        raise argparse.ArgumentTypeError(f"{text!r}: either a part of one device, or whole ones")
    return {"model": found[2], "count": milli // table.MILLI, "share_milli": table.MILLI}
