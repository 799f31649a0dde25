"""How the devices of a process stand, as front ends get it: a plain value, complete each time. Pure but for a look at the memory."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forebay import process
from forebay.journal import Device, Entry, Journal, Running
from forebay.notebook.notice import CAUSES_MAX
from forebay.service import FLAVOR_VARIABLE, configured
from forebay.waiting import in_words, left

if TYPE_CHECKING:
    from forebay_wire.messages import Flavor, Queued

    from forebay.gang_work import GangWork
    from forebay.texts import Texts

CELLS_SHOWN = 10
SEGMENT = ("calls", "times", "tier", "why")
BUDGET = ("left_nano", "limit_nano", "currency", "user")

Snapshot = dict[str, Any]


def snapshot(
    journal: Journal | None, home: Mapping[str, Any] | None, budget: Mapping[str, Any] | None, quiet: bool, texts: Texts
) -> Snapshot:
    """``home`` is the flavor that a device begins with, a row of api/flavors; ``budget`` a row of api/budgets."""
    now_ns = time.monotonic_ns()
    devices = {} if journal is None else journal.devices()
    first = _device(0, devices.get(0, Device(since_ns=now_ns)), home, now_ns, texts)
    money, device_ns = ({}, 0) if journal is None else journal.spent()
    return {
        "type": "state",
        "configured": configured() is not None,
        "failure": process.failure,
        "devices": [first, *(_device(index, device, home, now_ns, texts) for index, device in sorted(devices.items()) if index)],
        "spent": _money(money),
        "device_ns": device_ns,
        "cells": [] if journal is None else [_entry(entry) for entry in journal.entries() if entry.leases][:CELLS_SHOWN],
        "budget": None if budget is None else _budget(budget, texts),
        "quiet": quiet,
    }


def _budget(budget: Mapping[str, Any], texts: Texts) -> Snapshot:
    from forebay_wire.causes import cause_of_budget

    cause = cause_of_budget(budget)
    known = {name: budget.get(name) for name in BUDGET}
    return {**known, "sentence": texts.cause(cause, budget.get("sentence")), "cause": None if cause is None else cause.model_dump()}


def _device(index: int, device: Device, home: Mapping[str, Any] | None, now_ns: int, texts: Texts) -> Snapshot:
    return {
        "device": index,
        "session": device.session,
        "flavor": _flavor(device.flavor, home if index == 0 else None),
        "state": device.state,
        "since_ns": now_ns - device.since_ns,
        "queued": None if device.queued is None else _queued(device.queued, (now_ns - device.queued_ns) / 1e9, texts),
        "model": device.model,
        "running": [_price(lease) for lease in device.leases.values() if lease.price_nano_per_hour is not None],
        "memory_bytes": _memory_bytes(index) if device.session is not None else 0,
        "alone": _alone(device.gang) if device.gang is not None else None,
        "segments": [{name: getattr(segment, name) for name in SEGMENT} for segment in device.segments],
    }


def _alone(gang: GangWork) -> Snapshot | None:
    """What one device of several did alone in the last cell, where that was most of it."""
    if not gang.mostly_alone:
        return None
    return {"devices": gang.devices, "percent": gang.alone_percent, "causes": gang.causes(CAUSES_MAX)}


def _price(lease: Running) -> Snapshot:
    """Of an open lease, per hour: its flavor may be another than the one chosen for the next."""
    return {"currency": lease.currency, "nano": lease.price_nano_per_hour}


def _flavor(flavor: Flavor | None, home: Mapping[str, Any] | None) -> Snapshot | None:
    names = ("name", "memory_bytes", "price_nano_per_hour", "currency")
    if flavor is not None:
        return {name: getattr(flavor, name) for name in names}
    if home is not None:
        return {name: home.get(name) for name in names}
    name = os.environ.get(FLAVOR_VARIABLE)
    return {"name": name, "memory_bytes": None, "price_nano_per_hour": None, "currency": None} if name else None


def _queued(queued: Queued, passed_seconds: float, texts: Texts) -> Snapshot:
    """``reason`` is for front ends that make no sentence of ``cause``; ``left`` says how long yet, as the line below the cell does."""
    known = {name: getattr(queued, name) for name in ("position", "code", "ahead")}
    known |= {"reason": texts.reason(queued), "cause": None if queued.cause is None else queued.cause.model_dump()}
    remaining = left(queued.estimate, passed_seconds)
    return known | {"left": "" if remaining is None else in_words(remaining, texts)}


def _entry(entry: Entry) -> Snapshot:
    return {
        "cell": entry.cell,
        "cell_id": entry.cell_id,
        "first_line": entry.first_line,
        "flavor": entry.flavor,
        "device_ns": entry.device_ns,
        "waited_ns": entry.waited_ns,
        "cost": _money(entry.cost),
        "cost_known": not entry.unpriced and not entry.unheard,
        "open": entry.open > 0,
    }


def _money(amounts: Mapping[str, int]) -> list[Snapshot]:
    return [{"currency": currency, "nano": nano} for currency, nano in sorted(amounts.items())]


def _memory_bytes(index: int) -> int:
    """What the process has allocated on the device."""
    from forebay import _C

    return int(_C.memory(index)["allocated"])
