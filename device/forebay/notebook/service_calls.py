"""What front ends and magics ask of the service: what there is to choose from, own sessions, budgets. Plain HTTP calls."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forebay_wire.causes import cause_of

from forebay import process
from forebay.errors import ForebayError, NotConfigured, NotServable
from forebay.service import FLAVOR_VARIABLE, Service
from forebay.toolkit import pool
from forebay.toolkit.billing import billing
from forebay.toolkit.flavor import unknown
from forebay.toolkit.sharing.command import share as share_notebook

Row = Mapping[str, Any]
STOPPED = ("drain", "refuse")
"""Budgets that let nothing begin."""


def service() -> Service:
    """The pool. Raises NotConfigured where this process has none that answers yet."""
    found = pool.remote()
    if found is None:
        raise NotConfigured("This kernel's pool starts with the first work on cuda:0; run that first.")
    return found


def flavors() -> list[dict[str, Any]]:
    """All flavors, each also with whether it is what this process begins with. Raises ForebayError."""
    asked = service()
    chosen = os.environ.get(FLAVOR_VARIABLE) or pool.chosen_flavor(asked)
    return [{**row, "chosen": row["name"] == chosen} for row in pool.rows(asked, "api/flavors")]


def sessions() -> list[dict[str, Any]]:
    """The user's sessions, each also with whether it is of this process. Raises ForebayError."""
    own = own_sessions()
    return [{**row, "here": row["session"] in own} for row in pool.rows(service(), "api/sessions")]


def own_sessions() -> set[str]:
    """Of this process."""
    devices = process.installed
    return set() if devices is None else {device.session for device in devices.journal.devices().values() if device.session is not None}


def budgets() -> list[dict[str, Any]]:
    """Those that the user may see; none where no billing is named. Raises ForebayError."""
    try:
        books = billing()
    except NotConfigured:
        return []
    return pool.rows(books, "api/budgets")


def post(notice: Mapping[str, Any]) -> None:
    """Has the channels of this kernel's person told. Raises ForebayError."""
    billing().post("api/notices", notice)


def share(name: str, days: int) -> dict[str, Any]:
    """Shares a notebook beside the one that this kernel began with, as it is saved: that one, by its present name.

    The pool's row, with the link's key. Raises ForebayError.
    """
    folder = Path(os.environ.get("JPY_SESSION_NAME", "")).parent
    return share_notebook(service(), folder / Path(name).name, days)


def tightest(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The budget that ends first: one that stops work now, else the one of which the least is left."""
    stopped = [row for row in rows if row.get("state") in STOPPED]
    told = [row for row in rows if row.get("left_nano") is not None]
    if stopped:
        return stopped[0]
    return min(told, key=lambda row: int(row["left_nano"]), default=None)


def release(session: str) -> None:
    """Ends another process's session: its tensors are lost. Raises ForebayError."""
    if session in own_sessions():
        raise ForebayError("This is the session of this notebook; restart the kernel to end it.")
    service().delete(f"api/sessions/{session}")


def choose(name: str, index: int = 0) -> dict[str, Any]:
    """Gives a device of this process another flavor from its next lease on, and has the user's later sessions begin with it.

    Returns the flavor. Raises ForebayError, and then nothing has changed unless it says so.
    """
    rows = {str(row["name"]): row for row in flavors()}
    if name not in rows:
        raise ForebayError(unknown(name, list(rows)))
    if not rows[name]["servable"]:
        cause = cause_of(rows[name].get("cause"))
        sent = rows[name].get("reason") or f"{name}: no device serves it."
        raise NotServable((None if cause is None else cause.said()) or str(sent), cause)
    devices = process.installed
    if devices is not None:
        devices.choose_flavor(index, name)
    if index == 0:
        os.environ[FLAVOR_VARIABLE] = name
        _keep_choice(name)
    return rows[name]


def _keep_choice(name: str) -> None:
    """For later sessions. Raises ForebayError that says what is done all the same."""
    try:
        service().put("api/choice", {"flavor": name})
    except ForebayError as error:
        raise ForebayError(f"This device is {name} from its next lease on, but later sessions begin as before: {error}") from None
