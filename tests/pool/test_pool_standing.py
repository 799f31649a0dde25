"""What a pool that starts knows of those who waited and of what was used, and that a broken link costs nobody the place in the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from forebay_pool.model.events import Restored, SessionAway
from forebay_pool.model.history import History, Spent
from forebay_pool.model.records import QueuePlace
from forebay_pool.model.snapshot import SessionSnapshot, Snapshot
from forebay_pool.model.types import Quota, UsageRecord
from forebay_pool.queue.accounts import Accounts
from forebay_pool.queue.fair_share import Usage
from forebay_pool.store.batch import Batch
from forebay_pool.store.database import Store
from forebay_wire import messages as wire
from pool_world import World

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
UNIX_OFFSET_NS = 1_700_000_000 * SECOND
SPAN = wire.Span(id="s", kind="cell", label="n", cell=1)


def waiting(name: str, order: int, priority: int = 0) -> SessionSnapshot:
    waits = QueuePlace(1, UNIX_OFFSET_NS - order * SECOND, order)
    return SessionSnapshot(name, b"k" * 32, "acme", "ada", "python", "dev.8gb", 7, 0, None, None, False, 0, None, priority, waits)


def back(w: World, name: str, number: int = 1) -> None:
    w.client(name, wire.ResumeSession(session=name, key="0" * 64))
    w.acquire(name, number)
    w.settle()


def test_nobody_takes_what_another_waited_for_who_is_not_back_yet(world: World) -> None:
    w = world(resume_seconds=20.0)
    w.do(Restored(Snapshot(sessions=(waiting("late", 8), waiting("early", 3)))))
    back(w, "late")
    told = w.last("late")
    assert (told.code, told.reason) == ("starting", "The pool has just started; those who waited before are heard first.")
    back(w, "early")
    assert w.machine.sessions["early"].lease is not None and w.machine.sessions["late"].lease is None
    request = w.machine.sessions["late"].request
    assert (request.order, request.arrived_unix_ns) == (8, UNIX_OFFSET_NS - 8 * SECOND)
    w.join("new", "dev.8gb")
    w.acquire("new")
    assert w.machine.sessions["new"].request.order > 8


def test_who_does_not_come_back_holds_nobody_up_for_more_than_two_seconds(world: World) -> None:
    w = world(resume_seconds=20.0)
    w.do(Restored(Snapshot(sessions=(waiting("late", 8), waiting("early", 3)))))
    back(w, "late")
    w.wait(1.9)
    w.tick()
    assert w.machine.sessions["late"].lease is None
    w.wait(0.2)
    w.tick()
    w.settle()
    assert w.machine.sessions["late"].lease is not None


def test_a_session_that_asks_for_something_else_than_it_waited_for_comes_last(world: World) -> None:
    w = world(resume_seconds=20.0)
    w.do(Restored(Snapshot(sessions=(waiting("one", 3),))))
    back(w, "one", 2)
    assert w.machine.sessions["one"].lease is not None and w.machine.sessions["one"].lease.order != 3


def test_a_link_that_breaks_and_is_made_again_keeps_the_place_in_the_line(world: World) -> None:
    w = world(resume_seconds=20.0)
    w.lease("holder", flavor="dev.8gb")
    for name in ("first", "second"):
        w.join(name, "dev.8gb")
        w.acquire(name)
    since = w.machine.sessions["first"].request.arrived_unix_ns
    w.do(SessionAway("first"))
    w.wait(3)
    back(w, "first")
    assert w.machine.sessions["first"].request.arrived_unix_ns == since
    w.drain("holder")
    w.settle()
    assert w.machine.sessions["first"].lease is not None


# What was used


def record(number: int, user: str, started_ago_ns: int, duration_ns: int, now_ns: int, **more: Any) -> UsageRecord:
    name, at_ns = f"{user}{number}", now_ns - started_ago_ns
    return UsageRecord(f"{name}/1", "acme", user, "s", name, SPAN, "f", "m", more.pop("devices", 1), at_ns, duration_ns, "drained", **more)


def test_windows_and_shares_begin_with_what_the_records_tell(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now_unix_ns, now_ns = UNIX_OFFSET_NS + 500 * HOUR, 40 * HOUR
    monkeypatch.setattr("forebay_pool.store.database.time.time_ns", lambda: now_unix_ns)
    monkeypatch.setattr("forebay_pool.store.database.time.monotonic_ns", lambda: now_ns)
    short = [record(number, "ada", HOUR + number * SECOND, SECOND // 2, now_unix_ns) for number in range(100)]
    others = [
        record(0, "ben", 11 * HOUR, 2 * HOUR, now_unix_ns, devices=4),  # half of it is out of the window of ten hours
        record(1, "ben", 300 * HOUR, HOUR, now_unix_ns),
        record(2, "ben", 2 * HOUR, HOUR, now_unix_ns, share_milli=250),
    ]
    store.write(Batch(records=[*short, *others]), deliver=False)
    quota = Quota(device_seconds=1, window_seconds=36_000)
    for user in (None, "ada", "ben"):
        store.set_quota("acme", user, quota, "operator")
    history = store.kept(4 * 3600).history
    accounts = Accounts(4 * 3600)
    for account in store.quotas():
        accounts.set_quota(*account, now_ns)
    accounts.begin_with(history, [Spent("acme", "ada", now_ns - 5 * SECOND, now_ns, 2000)], now_ns)
    used = {user: accounts.of("acme", user).window for user in (None, "ada", "ben")}
    milli_seconds = {user: window.used(now_ns) / SECOND for user, window in used.items() if window is not None}
    assert milli_seconds == {"ada": 60_000, "ben": 4000 * 3600 + 250 * 3600, None: 60_000 + 4250 * 3600}
    later = {user: window.used(now_ns + 9 * HOUR + 60 * SECOND) / SECOND for user, window in used.items() if window is not None}
    assert later == {"ada": 10_000, "ben": 0, None: 10_000}
    exact = Usage(4 * HOUR)
    for each in (*short, *others):
        start_ns = each.started_at_unix_ns - now_unix_ns + now_ns
        exact.spent(each.devices * each.share_milli, start_ns, start_ns + each.duration_ns)
    exact.spent(2000, now_ns - 5 * SECOND, now_ns)
    assert accounts.of("acme").usage.device_seconds(now_ns) == pytest.approx(exact.device_seconds(now_ns), rel=0.01)


def test_nothing_on_disk_is_no_use_at_all(store: Store) -> None:
    assert store.kept(3600).history == History()


@pytest.mark.parametrize("split", [1, 7, 100])
def test_use_in_pieces_counts_as_much_as_in_one(split: int, world: Callable[..., Any]) -> None:
    whole, pieces = Usage(HOUR), Usage(HOUR)
    whole.spent(500, 0, 2 * HOUR)
    for number in range(split):
        pieces.spent(500, number * 2 * HOUR // split, (number + 1) * 2 * HOUR // split)
    assert pieces.level(3 * HOUR) == pytest.approx(whole.level(3 * HOUR), rel=1e-9)
