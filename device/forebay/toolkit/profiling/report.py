"""A profile as text for people."""

from __future__ import annotations

import linecache
import os
from collections.abc import Sequence

from forebay_wire.gang_work import Alone

from forebay.gang_work import GangWork
from forebay.profile import LEASE, Profile, Wait
from forebay.toolkit import table
from forebay.toolkit.planner import executed

CODE_CHARACTERS_MAX = 48
ANSWERS, UPLOADS, SENDING = ("item", "read", "synchronize", "ask"), ("upload",), ("send",)
REASONS = {
    Alone.NO_BATCH: "no batch of rows had come again",
    Alone.NO_ROOM: "a device had no room for a copy",
    Alone.NO_RULE: "no rule divides it",
    Alone.VIEWS: "not given in whole rows",
    Alone.SIZES: "only computing tells the sizes of its results",
    Alone.KEPT: "one device keeps what it is given",
}
"""Why calls ran on one device alone."""


def text(profile: Profile, top: int) -> str:
    """The whole profile; of source lines and operators the first ``top``."""
    parts = [_shares(profile), *_devices(profile)]
    for gang in profile.gangs:
        parts += [_gang(gang, top), *([executed.text(gang).rstrip()] if gang.plan else [])]
    if profile.waits:
        parts.append(_waits(profile.waits, top))
    if profile.operators:
        parts.append(_operators(profile, top))
    if profile.segments:
        parts.append(_segments(profile, top))
    return "\n".join(parts) + "\n"


def _shares(profile: Profile) -> str:
    calls = sum(use.calls for use in profile.devices)
    rows = [
        ("the program itself", profile.program_ns, "Python, PyTorch, and what else it does here"),
        ("recording", profile.recording_ns, table.counted(calls, "call")),
        ("waiting for a lease", profile.lease_ns, _count(profile, (LEASE,))),
        ("waiting for the device", profile.waited_ns(ANSWERS), _count(profile, ANSWERS)),
        ("uploading", profile.waited_ns(UPLOADS), _count(profile, UPLOADS)),
        ("sending commands", profile.waited_ns(SENDING), _count(profile, SENDING)),
    ]
    shown = [[name, _seconds(ns), _percent(ns, profile.wall_ns), note] for name, ns, note in rows]
    return f"Profile of {_seconds(profile.wall_ns)}\n" + table.render(["Time went to", "Time", "Share", ""], shown)


def _devices(profile: Profile) -> list[str]:
    """One line for each device that was used: its time is beside that of the program, not a part of it."""
    lines = []
    for use in profile.devices:
        held = f" ({_bytes(use.bytes_held)} more were there already)" if use.bytes_held else ""
        lines.append(
            f"cuda:{use.device} worked {_seconds(use.busy_ns)} ({_percent(use.busy_ns, profile.wall_ns)} of the time) "
            f"on {table.counted(use.calls, 'call')}; "
            f"{table.counted(use.templates, 'kind of calls was', 'kinds of calls were')} new, "
            f"{table.counted(use.expected, 'step was', 'steps were')} expected; "
            f"{_bytes(use.bytes_up)} up{held}, {_bytes(use.bytes_down)} down"
        )
    return lines or ["No device was used."]


def _gang(gang: GangWork, top: int) -> str:
    """How the devices of a session shared its calls, and what one of them did alone."""
    works = [
        ("divided, each its part", gang.divided.calls, gang.divided.ns),
        ("copies, each the same", gang.copies.calls, gang.copies.ns),
        ("one alone", sum(lone.work.calls for lone in gang.alone), gang.alone_ns),
    ]
    rows = [[name, f"{calls:,}", _seconds(ns), _percent(ns, gang.ns)] for name, calls, ns in works]
    shared = table.render([f"The {gang.devices} devices of cuda:{gang.device}", "Calls", "Time", "Share"], rows)
    if not gang.alone:
        return shared
    lone = [
        [one.operator, f"{one.work.calls:,}", _seconds(one.work.ns), _percent(one.work.ns, gang.ns), REASONS[one.reason]]
        for one in gang.alone[:top]
    ]
    alone = table.render(["On one device alone", "Calls", "Time", "Share", "Why"], lone)
    return f"{shared}\n{alone}{_more(len(gang.alone) - top, 'operators')}"


def _waits(waits: Sequence[Wait], top: int) -> str:
    rows = [
        [
            wait.kind,
            _seconds(wait.ns),
            f"{wait.count:,}",
            _seconds(wait.longest_ns),
            _bytes(wait.bytes),
            f"cuda:{wait.device}",
            _place(wait),
        ]
        for wait in waits[:top]
    ]
    return table.render(["Wait", "Time", "Count", "Longest", "Bytes", "Device", "Where"], rows) + _more(len(waits) - top, "lines")


def _operators(profile: Profile, top: int) -> str:
    rows = [
        [operator.name, f"{operator.calls:,}", _seconds(operator.recording_ns), per_call(operator.recording_ns / operator.calls)]
        for operator in profile.operators[:top]
    ]
    return table.render(["Operator", "Calls", "Recording", "Each"], rows) + _more(len(profile.operators) - top, "operators")


def _segments(profile: Profile, top: int) -> str:
    """What repeats itself between reads and uploads: of a training loop that goes well its step, and little else."""
    head = ["Segment", "Calls", "Times", "Tier", "Words", "Varying", "Makes", "Frees", "Device"]
    if any(segment.why for segment in profile.segments):
        head.append("What its library gains, or why no higher tier")
    rows = [
        [
            segment.identity,
            f"{segment.calls:,}",
            f"{segment.times:,}",
            str(segment.tier),
            f"{segment.words:,}",
            f"{segment.varying:,}",
            f"{segment.births:,}",
            f"{segment.frees:,}",
            f"cuda:{segment.device}",
            segment.why,
        ][: len(head)]
        for segment in profile.segments[:top]
    ]
    return table.render(head, rows) + _more(len(profile.segments) - top, "segments")


def _place(wait: Wait) -> str:
    if not wait.file:
        return "what was recorded before, or left at the end"
    name = "cell" if _is_cell(wait.file) else os.path.relpath(wait.file) if os.path.exists(wait.file) else wait.file
    code = linecache.getline(wait.file, wait.line).strip()
    shown = code if len(code) <= CODE_CHARACTERS_MAX else code[: CODE_CHARACTERS_MAX - 1] + "…"
    return f"{name}:{wait.line} {shown}".rstrip()


def _is_cell(file: str) -> bool:
    return file.startswith("<ipython-input") or "/ipykernel_" in file


def _count(profile: Profile, kinds: Sequence[str]) -> str:
    found = [wait for wait in profile.waits if wait.kind in kinds]
    if not found:
        return ""
    count = sum(wait.count for wait in found)
    return f"{count:,} time{'' if count == 1 else 's'}, at most {_seconds(max(wait.longest_ns for wait in found))}"


def _more(left: int, what: str) -> str:
    return f"\n{left:,} more {what}" if left > 0 else ""


def _seconds(ns: int) -> str:
    return f"{ns / 1e9:,.3f} s" if ns >= 10**9 else f"{ns / 1e6:,.3f} ms"


def _percent(ns: int, whole_ns: int) -> str:
    return f"{100 * ns / whole_ns:.1f} %" if whole_ns else ""


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} B"


def per_call(duration_ns: float) -> str:
    """In the unit in which it is a short number."""
    for unit, unit_ns in (("s", 1e9), ("ms", 1e6)):
        if duration_ns >= unit_ns:
            return f"{duration_ns / unit_ns:.1f} {unit}"
    return f"{duration_ns / 1e3:.1f} us"
