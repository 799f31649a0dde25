"""The checkpoints of this process: ``forebay.checkpoint()``, ``restore()``, ``undo()``.

The worker keeps them (``docs/wire.md``, Checkpoints). Here is what it does not know: names, generators, and which one came from which.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

from forebay import _C, process
from forebay.errors import ForebayError, NotConfigured
from forebay.facade import names
from forebay.facade.checkpoint import Checkpoint, WentBack
from forebay.forking.forks import numbers
from forebay.spans import running_shell

CHECKPOINTS_MAX = 1024
"""As many are known by name here; a worker keeps as many (``forebay/checkpoints.h``)."""
DROPPED = "checkpoints were dropped, or could not be taken; forebay.checkpoints() lists those that there are"
LOST = "its session is over"
MOVED = "the session goes on at another worker, which does not have them"


class History:
    """The checkpoints of this process."""

    def __init__(self) -> None:
        self._taken: dict[int, Checkpoint] = {}
        self._present: int | None = None
        """The one that was taken, or gone back to, last."""
        self._follows_cells = self._tells_dropped = False
        self._went_back_at: tuple[int | None, int] | None = None
        """In which cell it was gone back last, and how many calls were recorded then."""

    def take(self, name: str | None) -> Checkpoint:
        """Does not wait. Raises ForebayError where no device can have one, or none has done anything yet."""
        return self._take(name, _cell())

    def _take(self, name: str | None, cell: int | None) -> Checkpoint:
        devices = _devices()
        self._tell_dropped()
        if not devices:
            raise ForebayError("There is nothing to keep yet: no tensor of this process has been on a device.")
        for device in devices:
            if not _C.keeps_checkpoints(device):
                raise ForebayError(f"cuda:{device} has no checkpoints: it computes nothing, or its worker's release does not know them.")
        with numbers.lock:
            number = numbers.new()
            newer = {device: _C.take_checkpoint(number, name is not None, device) for device in devices}
        generators = [(generator, generator.get_state()) for generator in names.generators()]
        name = name or (f"number {number}" if cell is None else f"cell {cell}")
        taken = Checkpoint(number, name, self._present, generators, newer, dict(names.storages()))
        self._taken[number] = taken
        self._present = number
        if len(self._taken) > CHECKPOINTS_MAX:
            del self._taken[min(self._taken)]
        return taken

    def list(self) -> list[Checkpoint]:
        """Those that are still there, the oldest first. Waits for all that was recorded."""
        there = _there()
        return [taken for taken in self._taken.values() if all(taken.number in there.get(device, {}) for device in taken.newer)]

    def restore(self, name: str) -> WentBack:
        """Raises ForebayError where there is no such checkpoint any more."""
        found = next((taken for taken in reversed(self._taken.values()) if taken.name == name), None)
        if found is None:
            known = ", ".join(dict.fromkeys(taken.name for taken in self._taken.values())) or "there are none"
            raise ForebayError(f"There is no checkpoint {name!r}: {known}.")
        return self._go_back(found)

    def undo(self, count: int) -> WentBack:
        """The ``count``-th checkpoint before what tensors hold now. Raises ForebayError, ValueError."""
        if count < 1:
            raise ValueError(f"undo goes back 1 checkpoint or more, and not {count}.")
        there = _there()
        line = [taken for taken in self._line() if not all(there.get(device, {}).get(taken.number, False) for device in taken.newer)]
        if len(line) < count:
            raise ForebayError(f"There is no checkpoint to go back to: {len(line)} came before what tensors hold now.")
        return self._go_back(line[count - 1])

    def follow_cells(self, on: bool) -> None:
        """Takes one at the end of each cell, or no more. Raises ForebayError where there are no cells."""
        shell = running_shell()
        if shell is None:
            raise ForebayError("There are no cells in this process; call forebay.checkpoint() where you want one.")
        if on and not self._follows_cells:
            shell.events.register("post_run_cell", self._end_cell)
        elif self._follows_cells and not on:
            shell.events.unregister("post_run_cell", self._end_cell)
        self._follows_cells = on

    def _end_cell(self, result: Any) -> None:
        devices = _devices()
        if devices and all(map(_C.keeps_checkpoints, devices)) and self._went_back_at != (result.execution_count, _calls()):
            self._take(None, result.execution_count)

    def forget(self) -> None:
        """In a forked child: its session has none."""
        self._taken.clear()
        self._present, self._went_back_at = None, None

    def _tell_dropped(self, _result: object = None) -> None:
        """What a worker drops it says when it is done with a cell: the user hears of it after the next one."""
        if any([_C.dropped_checkpoints(device) for device in _devices()]) and process.installed is not None:
            process.installed.warn(DROPPED)
        shell = running_shell()
        if shell is not None and not self._tells_dropped:
            shell.events.register("post_run_cell", self._tell_dropped)
            self._tells_dropped = True

    def _line(self) -> Iterator[Checkpoint]:
        """The one that tensors came from, the one before it, and so on."""
        number = self._present
        while number is not None and number in self._taken:
            taken = self._taken[number]
            yield taken
            number = taken.parent

    def _go_back(self, taken: Checkpoint) -> WentBack:
        for device in taken.newer:
            there, why = _C.reported_checkpoints(taken.number, device) if _C.connected(device) else ({}, LOST)
            if taken.number not in there:
                raise ForebayError(f"Checkpoint {taken.name} is not there any more, and nothing has changed: {why or MOVED}.")
        went = {device: _C.go_back(taken.number, device) for device in taken.newer}
        objects = gc.get_objects() if any(one["changed"] for one in went.values()) else []
        for device, one in went.items():
            is_listed = len(one["storages"]) == one["changed"]
            _C.note_writes(objects, set(one["storages"]) if is_listed else None, device)
        for generator, state in taken.generators:
            generator.set_state(state)
        self._present, self._went_back_at = taken.number, (_cell(), _calls())
        now = dict(names.storages())
        gone = [name for name, storage in taken.names.items() if now.get(name) != storage]
        newer = [name for name, (device, number) in now.items() if number >= taken.newer.get(device, 0) and name not in gone]
        changed, resized = (sum(int(one[key]) for one in went.values()) for key in ("changed", "resized"))
        return WentBack(taken.name, changed, gone, newer, resized)


def history() -> History:
    """The checkpoints of this process. Raises NotConfigured where it has no virtual device."""
    if process.installed is None:
        raise NotConfigured(f"There is no virtual device in this process: {process.failure or 'FOREBAY_URL is not set.'}")
    return _history


def _devices() -> list[int]:
    return [device for device in range(_C.device_count()) if _C.connected(device)]


def _there() -> dict[int, dict[int, bool]]:
    """The checkpoints that each device has, and whether they are what tensors hold now."""
    return {device: _C.reported_checkpoints(0, device)[0] for device in _devices()}


def _cell() -> int | None:
    """The number of the cell that runs."""
    shell = running_shell()
    return None if shell is None else int(shell.execution_count)


def _calls() -> int:
    """As many were recorded so far."""
    return sum(_C.statistics(device)["commands"] for device in _devices())


_history = History()
os.register_at_fork(after_in_child=_history.forget)
