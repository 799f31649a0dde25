"""What this worker's environment and its devices serve beside calls of PyTorch."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

from forebay_wire.remote.runtimes import RUNTIMES, Runtime

from forebay_worker.user_code import programs

if TYPE_CHECKING:
    from forebay_worker.pytorch import SeenDevice

PROCESS_KINDS = ("cpu", "null")
"""Kinds of device beside which a process is confined: it sees no accelerator."""
PROCESS_TOOLS = ("bwrap", "setpriv")


def served(devices: Sequence[SeenDevice]) -> tuple[Runtime, ...] | None:
    """None: all. Whether a process is confined here is tried when one comes; this is quick."""
    lacking = {"xla": programs.why_not_here(devices), "exec": why_no_process(devices)}
    found = tuple(runtime for runtime in RUNTIMES if not lacking.get(runtime))
    return None if found == RUNTIMES else found


def why_no_process(devices: Sequence[SeenDevice]) -> str:
    """Why no process of a user's runs here; empty where nothing is known against it."""
    if any(device.kind not in PROCESS_KINDS for device in devices):
        return f"a process cannot be confined to a device of the kind {devices[0].kind}"
    missing = [name for name in PROCESS_TOOLS if shutil.which(name) is None]
    return f"there is no {' and no '.join(missing)} here, which a process is confined by" if missing else ""
