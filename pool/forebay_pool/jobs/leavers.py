"""Ends the jobs and schedules of people who left the tenant that pays for them."""

from __future__ import annotations

import asyncio
import logging

from forebay_service.people.memberships import PACE_SECONDS, People, PeopleUnknown

from forebay_pool.errors import JobConflict, StoreUnavailable
from forebay_pool.jobs.dispatcher import Dispatcher
from forebay_pool.model.jobs import Job, Schedule, cancelled
from forebay_pool.store.audit import AuditEntry

log = logging.getLogger(__name__)


class Leavers:
    """One for each pool that leads. ``who`` stands in the audit."""

    def __init__(self, dispatcher: Dispatcher, people: People, who: str) -> None:
        self._dispatcher = dispatcher
        self._store = dispatcher.store
        self._people = people
        self._who = who

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.look()
            except (PeopleUnknown, StoreUnavailable) as error:
                log.warning("jobs of people who left are not looked for: %s", error, extra={"action": "leavers_wait"})
            await asyncio.sleep(PACE_SECONDS)

    async def look(self) -> None:
        """What there is is read before the hub is asked: who joined since is in its answer. Raises PeopleUnknown, StoreUnavailable."""
        schedules = await asyncio.to_thread(self._store.schedules, None, None)
        jobs = await asyncio.to_thread(self._store.unfinished)
        if not schedules and not jobs:
            return
        roster = await self._people.everybody()
        for schedule in schedules:
            if not roster.belongs(schedule.tenant, schedule.user):
                await self._end_schedule(schedule)
        for job in jobs:
            if not roster.belongs(job.tenant, job.user):
                await self._end_job(job)

    async def _end_schedule(self, schedule: Schedule) -> None:
        subject, after = f"{schedule.tenant}/{schedule.user}/schedule #{schedule.id}", {"removed": True}
        entry = AuditEntry(self._who, "schedule.remove", subject, {"cron": schedule.cron}, after)
        await self._dispatcher.write(lambda: self._store.remove_schedule(schedule.id, entry))
        self._tell("schedule", schedule)

    async def _end_job(self, seen: Job) -> None:
        now_ns = self._dispatcher.clock_ns()
        subject, before = f"{seen.tenant}/{seen.user}/#{seen.id}", {"state": seen.state}
        entry = AuditEntry(self._who, "job.cancel", subject, before, {"state": "cancelled"})
        try:
            job = await self._dispatcher.write(lambda: self._store.change(seen.id, lambda now: cancelled(now, False, now_ns), entry))
        except JobConflict:  # it came to its end meanwhile
            return
        if job is not None:
            self._dispatcher.told(job)
            self._tell("job", job)

    def _tell(self, what: str, of: Job | Schedule) -> None:
        fields = {"action": f"{what}_of_leaver_ended", what: of.id, "tenant": of.tenant, "user": of.user}
        log.info("%s %d ends, since %s left %s", what, of.id, of.user, of.tenant, extra=fields)
