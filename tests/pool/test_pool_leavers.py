"""Jobs and schedules of people who left their tenant end, and those of nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from forebay_pool.jobs.dispatcher import Dispatcher
from forebay_pool.jobs.leavers import Leavers
from forebay_pool.model import jobs as decisions
from forebay_pool.model.jobs import JobLimits, Program
from forebay_pool.store.database import Store
from forebay_pool.store.jobs import JobStore
from forebay_pool.store.tables import AUDIT
from forebay_service.people.memberships import Membership, Memberships, PeopleUnknown
from sqlalchemy import select

NOW = 1_700_000_000 * 10**9
LIMITS = JobLimits(9, 9, 9, 9, 9, 1_000, 1_000, 1_000, 1_000)
PROGRAM = Program("script", "train.py", (), "", "train.py", None, 2, None)
KEY = "a" * 32


class Hub:
    """Who belongs where, as the hub says it when it is asked."""

    def __init__(self, *people: Membership) -> None:
        self.people = list(people)
        self.asked = 0
        self.away = False
        self.meanwhile: Callable[[], object] = lambda: None

    async def everybody(self) -> Memberships:
        self.asked += 1
        self.meanwhile()
        if self.away:
            raise PeopleUnknown("away")
        return Memberships(self.people, ["operator"])


class NoServers:
    async def start(self, user: str, name: str) -> None: ...

    async def is_there(self, user: str, name: str) -> bool:
        return False

    async def remove(self, user: str, name: str) -> bool:
        return True


async def at_once(call: Callable[[], Any]) -> Any:
    return call()


ADA, BEN = Membership("ada", "acme", "owner"), Membership("ben", "acme", "member")


@pytest.fixture
def jobs(store: Store) -> JobStore:
    return JobStore(store, LIMITS)


def leavers(jobs: JobStore, hub: Hub) -> Leavers:
    return Leavers(Dispatcher(jobs, NoServers(), at_once, LIMITS, lambda: NOW), hub, "pool-1")


def test_who_left_or_moved_has_no_schedule_and_no_job_left_and_the_others_keep_theirs(jobs: JobStore, store: Store) -> None:
    made = {}
    for tenant, user in (("acme", "ada"), ("acme", "ben"), ("globex", "ben"), ("acme", "cy")):
        schedule = jobs.add_schedule(tenant, user, PROGRAM, "0 3 * * *", "UTC", NOW, NOW)
        waits, runs, over = (jobs.add(tenant, user, PROGRAM, NOW) for _ in range(3))
        jobs.change(runs.id, lambda one: decisions.begun(decisions.started(one, NOW), KEY, NOW))
        jobs.change(over.id, lambda one: decisions.closed(one, "succeeded", None, NOW))
        made[tenant, user] = (schedule.id, waits.id, runs.id, over.id)
    hub = Hub(ADA, Membership("ben", "globex", "member"), Membership("cy", "globex", "owner"))
    asyncio.run(leavers(jobs, hub).look())
    stay = {("acme", "ada"), ("globex", "ben")}
    assert {(one.tenant, one.user) for one in jobs.schedules(None, None)} == stay
    for owner, (_, waits, runs, over) in made.items():
        states = [found.state for number in (waits, runs, over) if (found := jobs.job(number)) is not None]
        assert states == (["queued", "running", "succeeded"] if owner in stay else ["cancelled", "cancelled", "succeeded"]), owner
    with store.engine.connect() as connection:
        entries = [(row.who, row.action, row.subject) for row in connection.execute(select(AUDIT).order_by(AUDIT.c.subject))]
    gone = [(owner, made[owner]) for owner in (("acme", "ben"), ("acme", "cy"))]
    wanted = [
        entry
        for (tenant, user), (schedule, waits, runs, _) in gone
        for entry in (
            ("pool-1", "job.cancel", f"{tenant}/{user}/#{waits}"),
            ("pool-1", "job.cancel", f"{tenant}/{user}/#{runs}"),
            ("pool-1", "schedule.remove", f"{tenant}/{user}/schedule #{schedule}"),
        )
    ]
    assert sorted(entries) == sorted(wanted)
    asyncio.run(leavers(jobs, hub).look())
    with store.engine.connect() as connection:
        assert len(connection.execute(select(AUDIT)).all()) == len(wanted), "what has ended is not ended again"


def test_nothing_ends_while_the_hub_does_not_say_and_it_is_not_asked_for_nothing(jobs: JobStore) -> None:
    hub = Hub()
    asyncio.run(leavers(jobs, hub).look())
    assert hub.asked == 0
    schedule = jobs.add_schedule("acme", "ada", PROGRAM, "0 3 * * *", "UTC", NOW, NOW)
    hub.away = True
    with pytest.raises(PeopleUnknown):
        asyncio.run(leavers(jobs, hub).look())
    assert [one.id for one in jobs.schedules(None, None)] == [schedule.id]


def test_who_joins_while_the_hub_is_asked_keeps_what_they_begin(jobs: JobStore) -> None:
    """The hub's answer is newer than what is looked at, and never older."""
    hub = Hub(ADA)
    jobs.add("acme", "ada", PROGRAM, NOW)
    hub.meanwhile = lambda: jobs.add("acme", "ben", PROGRAM, NOW)
    asyncio.run(leavers(jobs, hub).look())
    assert {one.user: one.state for one in jobs.jobs("acme", None, 9, None)} == {"ada": "queued", "ben": "queued"}


def test_a_job_that_ends_meanwhile_stays_as_it_ended(jobs: JobStore) -> None:
    hub, job = Hub(ADA), jobs.add("acme", "ben", PROGRAM, NOW)
    hub.meanwhile = lambda: jobs.change(job.id, lambda one: decisions.closed(one, "succeeded", None, NOW))
    asyncio.run(leavers(jobs, hub).look())
    found = jobs.job(job.id)
    assert found is not None and found.state == "succeeded"
