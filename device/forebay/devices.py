"""How many virtual devices a process has, and of which flavors: FOREBAY_DEVICES, else what `forebay device` saved, and torchrun wants.

And which of several processes that compute together this is, by torchrun or by their process group: their leases are granted together.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from forebay.errors import NotConfigured

DEVICES_VARIABLE = "FOREBAY_DEVICES"
PROCESSES_VARIABLE = "LOCAL_WORLD_SIZE"
"""How many processes torchrun started on this host; each computes on the device of its number, ``cuda:LOCAL_RANK``."""
DEVICES_MAX = 16
"""As many as the extension has streams for (``forebay._C.DEVICES_MAX``)."""

MEETING_VARIABLES = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
"""What torchrun tells all its processes alike, and anew after each restart."""

GROUP_KEY, GROUP_BYTES = "forebay/processes", 32
"""In a process group's store: what the pool knows its processes by, and how long that is."""

Flavors = list[str | None]
"""One a device, in the order of their numbers; None is the flavor of FOREBAY_FLAVOR, else the user's choice at the pool."""


class Rank(NamedTuple):
    """Which one of several processes this is that compute together."""

    group: str
    """The same for all of them, and for no others: 64 hexadecimal digits."""
    rank: int
    size: int
    device: int
    """The number of the device that it computes on."""


def rank_of(count: int, environment: Mapping[str, str] = os.environ) -> Rank | None:
    """What torchrun says to a process with so many devices; None to one that it did not start, or that is alone."""
    rank, size, local = (environment.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    told = rank.isdecimal() and size.isdecimal() and local.isdecimal() and MEETING_VARIABLES[0] in environment
    if not told or int(size) < 2 or int(rank) >= int(size):
        return None
    meeting = [environment.get(name, "") for name in MEETING_VARIABLES]
    if environment.get(PROCESSES_VARIABLE) == size:  # all are one torchrun's children, whose address says nothing of the host
        meeting += [socket.gethostname(), str(os.getppid())]
    group = hashlib.sha256(json.dumps(meeting).encode()).hexdigest()
    return Rank(group, int(rank), int(size), int(local) if int(local) < count else 0)


def has_group() -> bool:
    """Whether this process is in a process group of virtual devices."""
    from torch import distributed

    return distributed.is_available() and distributed.is_initialized() and "nccl" in str(distributed.get_backend_config())


def rank_of_group(device: int) -> Rank | None:
    """Which one of the process group's processes this is, where no torchrun told it; None to one that is alone."""
    from torch import distributed

    size = distributed.get_world_size()
    if size < 2:
        return None
    store = distributed.distributed_c10d._get_default_store()
    group = store.compare_set(GROUP_KEY, "", secrets.token_hex(GROUP_BYTES))  # the first one's, to all
    return Rank(group.decode(), distributed.get_rank(), size, device)


def wanted(environment: Mapping[str, str] = os.environ) -> Flavors:
    """The devices of a process that starts now. Raises NotConfigured where what is set cannot be read."""
    text = environment.get(DEVICES_VARIABLE, "").strip()
    if text:
        return _checked(_parse(text), f"{DEVICES_VARIABLE} is {text!r}")
    return _one_a_process(saved(environment), environment.get(PROCESSES_VARIABLE, ""))


def _one_a_process(flavors: Flavors, processes: str) -> Flavors:
    """As many devices as there are processes at least: the further ones are like the last. Each is a session only where it is used."""
    wanted_count = int(processes) if processes.isdecimal() else 1
    return _checked([*flavors, *[flavors[-1]] * (wanted_count - len(flavors))], f"{PROCESSES_VARIABLE} is {processes!r}")


def saved(environment: Mapping[str, str] = os.environ) -> Flavors:
    """What `forebay device` keeps; one device where nothing is kept. Raises NotConfigured."""
    path = saved_path(environment)
    try:
        kept = json.loads(path.read_text())["devices"]
    except FileNotFoundError:
        return [None]
    except (OSError, ValueError, KeyError, TypeError):
        raise NotConfigured(f"{path} cannot be read as a list of devices; remove it, or write it anew with `forebay device add`.") from None
    if not isinstance(kept, list) or not all(flavor is None or isinstance(flavor, str) for flavor in kept):
        raise NotConfigured(f"{path} holds something else than a list of flavors; remove it.")
    return _checked(kept, str(path))


def save(flavors: Sequence[str | None], environment: Mapping[str, str] = os.environ) -> None:
    """Keeps the devices for later processes. Raises NotConfigured where there are too many, or none."""
    _checked(list(flavors), "What is to be saved")
    path = saved_path(environment)
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f"{path.name}.{os.getpid()}")
    written.write_text(json.dumps({"devices": list(flavors)}) + "\n")
    written.replace(path)


def saved_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the devices are kept: with the user's other settings."""
    return Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "forebay" / "devices.json"


def _parse(text: str) -> Flavors:
    if text.isdecimal():
        return [None] * min(int(text), DEVICES_MAX + 1)
    return [flavor.strip() or None for flavor in text.split(",")]


def _checked(flavors: Flavors, what: str) -> Flavors:
    if not 1 <= len(flavors) <= DEVICES_MAX:
        raise NotConfigured(
            f"{what}: a process has 1 to {DEVICES_MAX} virtual devices; give their number, or their flavors with commas between."
        )
    return flavors
