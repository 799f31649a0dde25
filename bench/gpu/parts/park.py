"""Part ``park``: a session's tensors leave the device and come back, through host memory, the disk, and another worker."""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path

from forebay_wire import messages

from gpu.figures import PARK_SIZES_GB
from gpu.peer import Peer
from gpu.trial import NOT_REHEARSED, Trial
from gpu.worker import DISK, HOST, Session

ROOM_BYTES = 2 << 30
"""Beside a session's tensors: buffers of both sides, and what PyTorch sets aside."""
FREED_SHARE = 0.9
BYTES_PER_SECOND = 0.5e9
"""Of a session that goes all its ways: what is asked for beside the time that the size before took, most of which was to start workers."""


def run(trial: Trial, _: float | None) -> None:
    """Takes the part's figures, the small sizes first."""
    largest, seconds = 0.0, 0.0
    with trial.native() as native:
        for size in PARK_SIZES_GB:
            with trial.report.figures(*names_of(size)):
                count_bytes = trial.sizes.park_bytes.get(size)
                why = NOT_REHEARSED if count_bytes is None else lacking(trial, native, count_bytes)
                if count_bytes is None or why:
                    for name in names_of(size):
                        trial.report.skip(name, why)
                    continue
                trial.report.need(seconds + count_bytes / BYTES_PER_SECOND, f"{size:g} GB")
                began = time.monotonic()
                with trial.session(count_bytes + ROOM_BYTES) as session:
                    through_size(trial, session, native, size, count_bytes)
                largest, seconds = size, time.monotonic() - began
    if trial.is_host:
        trial.report.skip("device memory is free while parked", "a host has no device memory")
    elif not largest:
        trial.report.skip("device memory is free while parked", "no size could be parked")


def names_of(size: float) -> list[str]:
    """The figures of a size."""
    gb = f"{size:g} GB"
    kept = [f"bytes are the same after {gb}"]
    timed = [f"{way} {gb}{against}" for against in (" ÷ plain pinned copy", "") for way in ("park", "restore")]
    return [*timed, *kept, f"disk: park {gb}", f"disk: restore {gb}", f"move {gb} to another worker"]


def lacking(trial: Trial, native: Peer, count_bytes: int) -> str:
    """Why this machine cannot take a session of that size; empty where it can."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    if available < 2 * count_bytes + ROOM_BYTES // 8:
        return f"the host has {available / 1e9:.0f} GB of memory free"
    if trial.is_host:
        return ""
    free = native.call("programs.free_bytes")
    return "" if free > count_bytes + ROOM_BYTES else f"the device has {free / 1e9:.1f} GB free"


def through_size(trial: Trial, session: Session, native: Peer, size: float, count_bytes: int) -> None:
    """All paths of a session of that size."""
    session.peer.call("programs.fill", count_bytes=count_bytes)
    before = session.peer.call("programs.digest")
    session.rest()
    through_memory(trial, session, native, size, count_bytes)
    through_disk(trial, session, size, count_bytes)
    session.open()
    same = session.peer.call("programs.digest") == before
    moved = move(trial, session, size)
    trial.report.take(f"bytes are the same after {size:g} GB", same and moved == before, "" if same else "they differ before the move")


def park(session: Session, where: tuple[int, int]) -> float:
    """Seconds until the tensors are off the device."""
    host_bytes_max, spill_bytes_max = where
    began = time.monotonic()
    session.worker.send(messages.Park(host_bytes_max=host_bytes_max, spill_bytes_max=spill_bytes_max))
    session.worker.expect(messages.Parked)
    return time.monotonic() - began


def restore(session: Session) -> float:
    """Seconds until they are back."""
    began = time.monotonic()
    session.worker.send(messages.Restore())
    session.worker.expect(messages.Restored)
    return time.monotonic() - began


def through_memory(trial: Trial, session: Session, native: Peer, size: float, count_bytes: int) -> None:
    """Host memory, by turns with a plain copy; the first turn, which pins the memory, is said in the note."""
    parks, restores, park_ratios, restore_ratios = [], [], [], []
    for turn in range(trial.sizes.park_turns + 1):
        plain = native.call("programs.plain_copy", count_bytes=count_bytes)
        free = None if trial.is_host else native.call("programs.free_bytes")
        parks.append(park(session, HOST))
        if free is not None and turn == 0:
            freed = native.call("programs.free_bytes") - free
            trial.report.take("device memory is free while parked", freed >= FREED_SHARE * count_bytes, f"{freed / 1e9:.2f} of {size:g} GB")
        restores.append(restore(session))
        park_ratios.append(plain["to_host"] / parks[-1])
        restore_ratios.append(plain["to_device"] / restores[-1])
    for way, seconds, ratios in (("park", parks, park_ratios), ("restore", restores, restore_ratios)):
        note = f"the first time {seconds[0]:.3g} s, {ratios[0]:.2f}"
        trial.report.take(f"{way} {size:g} GB", statistics.median(seconds[1:]), note)
        trial.report.take(f"{way} {size:g} GB ÷ plain pinned copy", statistics.median(ratios[1:]), note)


def through_disk(trial: Trial, session: Session, size: float, count_bytes: int) -> None:
    """The disk, once."""
    names = f"disk: park {size:g} GB", f"disk: restore {size:g} GB"
    free = shutil.disk_usage(session.worker.folder).free
    if free < 1.2 * count_bytes:
        for name in names:
            trial.report.skip(name, f"{session.worker.folder.parent} has {free / 1e9:.0f} GB free")
        return
    trial.report.take(names[0], park(session, DISK))
    trial.report.take(names[1], restore(session))


def move(trial: Trial, session: Session, size: float) -> object:
    """To another worker on the same device, once the first has put them away. Returns the digest there."""
    with trial.worker() as there:
        began = time.monotonic()
        session.peer.call("programs.leave")
        left = session.worker.expect(messages.Left)
        there.assign(session.worker.limit_bytes, messages.Source(address=left.address, ticket=left.ticket))
        trial.report.take(f"move {size:g} GB to another worker", time.monotonic() - began)
        after = Session(there, session.peer)
        after.connect()
        return after.peer.call("programs.digest")
