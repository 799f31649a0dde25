"""Where the time of a stretch of a program went: in recording, in waits, on the device. All times are integers of nanoseconds."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch  # noqa: F401 what _C is linked to

from forebay import _C, gang_work
from forebay.gang_work import GangWork

RECORD, LEASE = "record", "lease"

Comings = dict[int, int]
"""How often each segment of a device came, by its identity."""


@dataclass(frozen=True)
class Operator:
    """The calls of one operator on one device."""

    device: int
    name: str
    calls: int
    recording_ns: int


@dataclass(frozen=True)
class Wait:
    """All waits of one kind for one device at one source line."""

    device: int
    kind: str
    """``lease``, ``item``, ``read``, ``synchronize``, ``ask`` (a call whose result only the device knows), ``upload`` or
    ``send`` (the commands themselves, where the device is behind)."""
    file: str
    """Empty where no line of the program waited: for what was recorded before the stretch, or was left at its end."""
    line: int
    function: str
    count: int
    bytes: int
    ns: int
    longest_ns: int


@dataclass(frozen=True)
class DeviceUse:
    """What one device was given to do."""

    device: int
    calls: int
    expected: int
    """Steps, of calls and allocations, that took no bytes of their own."""
    templates: int
    """Kinds of calls that were new."""
    bytes_up: int
    bytes_down: int
    bytes_held: int
    """Bytes of uploads that were not sent, because the worker held the same."""
    busy_ns: int
    """How long its worker carried out commands, as the worker measured it."""


@dataclass(frozen=True)
class Segment:
    """Calls that came between two cuts of the command stream, a training step for one, each time the same."""

    device: int
    identity: str
    """16 hexadecimal digits, the same for the same calls in any session."""
    times: int
    """How often it came in the stretch."""
    came_before: bool
    calls: int
    """Each time."""
    words: int
    """What its calls bind: storages, offsets, numbers."""
    varying: int
    """Of them, numbers that came otherwise than the time before."""
    births: int
    """Storages that it makes."""
    frees: int
    """Storages that are freed on its way."""
    library: bool = False
    """Whether a library serves it."""
    why: str = ""
    """It has no higher tier; or what its library takes of tier 1's time, how long it took to make, and for which sizes it is. In words."""

    @property
    def tier(self) -> int:
        """How the worker carried it out the last time: 0 call by call as it read them, 1 as a segment that it had, 2 by a library."""
        return 2 if self.library else int(self.came_before or self.times > 1)


@dataclass(frozen=True)
class Profile:
    """One stretch of a program. Recording and waits hold nothing twice; with several threads at work they may be more than ``wall_ns``."""

    wall_ns: int
    devices: tuple[DeviceUse, ...]
    waits: tuple[Wait, ...]
    """The longest first."""
    operators: tuple[Operator, ...]
    """The one that took longest to record first."""
    segments: tuple[Segment, ...]
    """The one with the most calls, of all times, first."""
    gangs: tuple[GangWork, ...] = ()
    """Of each device that is several."""

    @property
    def recording_ns(self) -> int:
        """Within the recorder; PyTorch's own share of a call is the program's."""
        return sum(operator.recording_ns for operator in self.operators)

    @property
    def lease_ns(self) -> int:
        return self.waited_ns([LEASE])

    @property
    def program_ns(self) -> int:
        """What is left of the stretch: Python, PyTorch, and all else that the program does here."""
        return max(0, self.wall_ns - self.recording_ns - sum(wait.ns for wait in self.waits))

    def waited_ns(self, kinds: Iterable[str]) -> int:
        """All waits of some kinds."""
        wanted = set(kinds)
        return sum(wait.ns for wait in self.waits if wait.kind in wanted)

    def as_json(self) -> dict[str, Any]:
        """The fields of this class, and the sums."""
        segments = [{**asdict(segment), "tier": segment.tier} for segment in self.segments]
        sums = {"recording_ns": self.recording_ns, "lease_ns": self.lease_ns, "program_ns": self.program_ns}
        gangs = [gang.as_json() for gang in self.gangs]
        return {**asdict(self), "segments": segments, "gangs": gangs, **sums}


class Profiler:
    """Takes one profile at a time of this process."""

    def __init__(self) -> None:
        self._began = 0
        self._before: list[_C.Statistics] = []
        self._came: list[Comings] = []
        self._gangs: list[GangWork | None] = []

    def start(self) -> None:
        """Begins once the work that is recorded so far is done. Raises RuntimeError where a profile is being taken already."""
        self._began = time.perf_counter_ns()
        _C.begin_profile()
        try:
            self._before = _settled()
            self._came = _comings()
            self._gangs = _gangs()
        except BaseException:
            _C.end_profile()
            raise

    def stop(self) -> tuple[Profile, RuntimeError | None]:
        """The profile, once all work is done; also the failure that waiting for it brought, if one did."""
        failure = None
        try:
            after = _settled()
        except RuntimeError as error:
            failure, after = error, _statistics()
        finally:
            activities = _C.end_profile()
        wall = time.perf_counter_ns() - self._began
        segments = [] if failure else [segment for index, came in enumerate(self._came) for segment in segments_since(index, came)]
        gangs = [] if failure else [now.since(before) for now, before in zip(_gangs(), self._gangs, strict=True) if now is not None]
        devices = (_use(index, *pair) for index, pair in enumerate(zip(self._before, after, strict=True)))
        waits = (_wait(activity) for activity in activities if activity["activity"] != RECORD)
        recorded = (activity for activity in activities if activity["activity"] == RECORD)
        operators = (Operator(item["device"], item["subject"], item["count"], item["ns"]) for item in recorded)
        return Profile(
            wall_ns=wall,
            devices=tuple(device for device in devices if device.calls or device.bytes_up or device.bytes_down),
            waits=tuple(sorted(_by_line(waits), key=lambda wait: -wait.ns)),
            operators=tuple(sorted(operators, key=lambda operator: -operator.recording_ns)),
            segments=tuple(sorted(segments, key=lambda segment: -segment.calls * segment.times)),
            gangs=tuple(gang for gang in gangs if gang.calls),
        ), failure


def _statistics() -> list[_C.Statistics]:
    return [_C.statistics(index) for index in range(_C.device_count())]


def _settled() -> list[_C.Statistics]:
    """Once no device has work left, which is when a worker's own time is told."""
    for index in range(_C.device_count()):
        if _C.connected(index):
            _C.synchronize(index)
    return _statistics()


def _comings() -> list[Comings]:
    return [comings_of(index) for index in range(_C.device_count())]


def comings_of(device: int) -> Comings:
    """Raises RuntimeError where its session is over."""
    return {segment["identity"]: segment["times"] for segment in _C.segments(device)}


def _gangs() -> list[GangWork | None]:
    return [gang_work.read(index) for index in range(_C.device_count())]


def segments_since(device: int, came: Comings) -> Iterable[Segment]:
    """Those of a stretch, before which so many of each had come. Raises RuntimeError where its session is over."""
    for segment in _C.segments(device):
        before = came.get(segment["identity"], 0)
        if before > segment["times"]:
            before = 0  # the steps were dropped within the stretch
        if segment["times"] > before:
            yield Segment(
                device=device,
                identity=f"{segment['identity']:016x}",
                times=segment["times"] - before,
                came_before=before > 0,
                calls=segment["calls"],
                words=segment["words"],
                varying=segment["varying"],
                births=segment["births"],
                frees=segment["frees"],
                library=segment["tier"] == 2,
                why=segment["why"],
            )


def _use(index: int, before: _C.Statistics, after: _C.Statistics) -> DeviceUse:
    def grown(now: int, then: int) -> int:
        return now - then if now >= then else now  # counted from 0 again in a new session

    return DeviceUse(
        device=index,
        calls=grown(after["commands"], before["commands"]),
        expected=grown(after["expected"], before["expected"]),
        templates=grown(after["templates"], before["templates"]),
        bytes_up=after["bytes_sent"] - before["bytes_sent"],
        bytes_down=after["bytes_received"] - before["bytes_received"],
        bytes_held=after["bytes_known"] - before["bytes_known"],
        busy_ns=after["busy_ns"] - before["busy_ns"],
    )


def _wait(activity: _C.Activity) -> Wait:
    place = (activity["subject"], activity["line"], activity["function"])
    return Wait(
        activity["device"], activity["activity"], *place, activity["count"], activity["bytes"], activity["ns"], activity["longest_ns"]
    )


def _by_line(waits: Iterable[Wait]) -> list[Wait]:
    """One for all instructions of a line."""
    found: dict[tuple[int, str, str, int, str], Wait] = {}
    for wait in waits:
        key = (wait.device, wait.kind, wait.file, wait.line, wait.function)
        seen = found.get(key)
        if seen is not None:
            longest = max(seen.longest_ns, wait.longest_ns)
            wait = Wait(*key, seen.count + wait.count, seen.bytes + wait.bytes, seen.ns + wait.ns, longest)
        found[key] = wait
    return list(found.values())
