"""What the devices of those that are several did in a cell, as their workers tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.journal import Device, Entry, Journal

if TYPE_CHECKING:
    from forebay.gang_work import GangWork


class Gangs:
    """Looks after cells, and notes in the journal what was done since the look before."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._before: dict[int, GangWork] = {}

    def look(self, entry: Entry) -> None:
        """At devices that do nothing now: another's answer would wait for their work. What came since is the entry's."""
        several = [index for index, device in self._journal.devices().items() if device.devices > 1 and _rests(device)]
        found = [gang for gang in map(self._since_before, several) if gang is not None]
        if found:
            self._journal.note_gangs(entry, tuple(found))

    def _since_before(self, index: int) -> GangWork | None:
        """None where nobody knows."""
        from forebay import gang_work

        try:
            now = gang_work.read(index)
        except RuntimeError:  # its session is over, which is told where it is used next
            return None
        if now is None:
            return None
        before, self._before[index] = self._before.get(index), now
        return now.since(before)


def _rests(device: Device) -> bool:
    return device.state == "resident" and not device.leases and device.asked is None
