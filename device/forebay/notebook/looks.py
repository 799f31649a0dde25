"""What the devices did in a cell, as their workers tell it: those that are several, and what came again and again on others."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from forebay.journal import Device, Entry, Journal

if TYPE_CHECKING:
    from forebay.gang_work import GangWork

SEGMENTS_MAX = 3
"""Of a cell, which are kept: those with the most calls, of all times."""
COMPILE_VARIABLE = "FOREBAY_COMPILE"


class Looks:
    """Looks after cells, and notes in the journal what was done since the look before."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._gangs: dict[int, GangWork] = {}
        self._comings: dict[int, dict[int, int]] = {}

    def look(self, entry: Entry) -> None:
        """At devices that do nothing now: another's answer would wait for their work. What came since is the entry's."""
        resting = {index: device for index, device in self._journal.devices().items() if _rests(device)}
        several = [index for index, device in resting.items() if device.devices > 1]
        found = [gang for gang in map(self._gang, several) if gang is not None]
        if found:
            self._journal.note_gangs(entry, tuple(found))
        if os.environ.get(COMPILE_VARIABLE) == "1":
            for index in resting.keys() - several:
                self._look_at_segments(index)

    def _gang(self, index: int) -> GangWork | None:
        """None where nobody knows."""
        from forebay import gang_work

        try:
            now = gang_work.read(index)
        except RuntimeError:  # its session is over, which is told where it is used next
            return None
        if now is None:
            return None
        before, self._gangs[index] = self._gangs.get(index), now
        return now.since(before)

    def _look_at_segments(self, index: int) -> None:
        from forebay import profile

        try:
            came, self._comings[index] = self._comings.get(index, {}), profile.comings_of(index)
            found = [segment for segment in profile.segments_since(index, came) if segment.times > 1]
        except RuntimeError:  # as above
            return
        found.sort(key=lambda segment: -segment.calls * segment.times)
        self._journal.note_segments(index, tuple(found[:SEGMENTS_MAX]))


def _rests(device: Device) -> bool:
    return device.state == "resident" and not device.leases and device.asked is None
