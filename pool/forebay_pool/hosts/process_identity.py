"""This host, and processes on it by what names them for ever."""

from __future__ import annotations

import functools
import os
from pathlib import Path


@functools.cache
def boot_id() -> str:
    """Names this run of this host: while it lasts, so does its monotonic clock. See proc(5), random/boot_id."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@functools.cache
def process_space() -> str:
    """Names what process ids are unique in: this run of this host, and a container's namespace on it."""
    return f"{boot_id()}/{os.stat('/proc/self/ns/pid').st_ino}"


def started(pid: int) -> int | None:
    """When the process began, in clock ticks since the boot; None if it is no more. A zombie is no more."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])
