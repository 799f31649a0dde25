"""What a pool leaves on disk, and what the next one makes of it: on SQLite and on PostgreSQL, and in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from forebay_pool.errors import Deposed
from forebay_pool.model.events import Restored, SessionAway, SessionLeft, SessionMoved, SessionReplays, WorkerAway, WorkerGone
from forebay_pool.model.instructions import Confirm, Keep, Kill, Meter, TellClient
from forebay_pool.model.metering import HOUR_NS
from forebay_pool.model.snapshot import LeaseSnapshot, SessionSnapshot, Snapshot, WorkerSnapshot, lease_snapshot, session_snapshot
from forebay_pool.model.types import Device, Equivalent, Flavor, Lease, Price, Session
from forebay_pool.store.batch import Batch
from forebay_pool.store.database import Store
from forebay_wire import messages as wire
from pool_world import World

SECOND = 1_000_000_000
GIB = 2**30
Make = Callable[..., World]
SPAN = wire.Span(id="s-1", kind="cell", label="n.ipynb", cell=1)
WORKER = WorkerSnapshot("p-w1", ("main/cpu:0",), "0" * 64, "boot/1", 4242, 99)


def kept_of(number: int = 1, **changes: Any) -> LeaseSnapshot:
    lease = LeaseSnapshot(
        id=f"s.{number}",
        session="s",
        epoch=number,
        number=1,
        tenant="acme",
        user="ada",
        flavor="dev.1gb",
        devices=("main/cpu:0",),
        device_model="cpu-dev",
        share_milli=1000,
        span=SPAN,
        price=Price(2 * 3600 * SECOND, "EUR"),
        waited_ns=5,
        opened_ns=100 * SECOND,
        opened_unix_ns=1_700_000_100 * SECOND,
        confirmed_ns=3 * SECOND,
    )
    return replace(lease, **changes)


SESSION = SessionSnapshot("s", b"k" * 32, "acme", "ada", "python a\u0000b", "dev.1gb", 7, 1, SPAN, "p-w1", True, 2**30, None)


# On disk


def test_what_was_kept_is_read_as_it_was_and_the_last_word_counts(store: Store) -> None:
    store.write(Batch(sessions={"s": SESSION}, workers={"p-w1": WORKER}, leases={"s.1": kept_of()}), deliver=False)
    later = replace(SESSION, epoch=2, span=None, worker=None, parked_bytes=5)
    store.write(Batch(sessions={"s": later}, confirmed_ns={"s.1": 9 * SECOND, "gone.1": 1}), deliver=False)
    kept = store.kept()
    assert (kept.sessions, kept.workers) == ((later,), (WORKER,))
    assert kept.leases[0] == replace(kept_of(confirmed_ns=9 * SECOND), opened_ns=kept.leases[0].opened_ns)
    store.write(Batch(sessions={"s": None}, workers={"p-w1": None}), deliver=False)
    assert (store.kept().sessions, store.kept().workers) == ((), ())


def test_a_record_ends_its_open_lease_in_one_transaction_and_once(store: Store) -> None:
    lease = kept_of()
    store.write(Batch(leases={lease.id: lease}), deliver=True)
    store.write(Batch(records=lease.failed(HOUR_NS)), deliver=True)
    assert store.kept().leases == ()
    closed_again = replace(lease.failed(HOUR_NS)[0], duration_ns=99 * SECOND, close_reason="drained")
    store.write(Batch(records=[closed_again], leases={}), deliver=True)
    rows = store.undelivered("pool", 10)
    (row,) = rows
    assert (row.payload["id"], row.payload["duration_ns"], row.payload["close_reason"]) == ("s.1/1", 0, "failed")


def test_who_was_deposed_writes_nothing_at_all(store: Store, database_url: str) -> None:
    successor = Store(database_url)
    assert successor.lead("http://there/") == (store.epoch or 0) + 1
    writes: list[Callable[[], object]] = [
        lambda: store.write(Batch(records=kept_of().failed(HOUR_NS), sessions={"s": SESSION}), deliver=True),
        lambda: store.set_choice("acme", "ada", "x"),
        lambda: store.delivered([1]),
    ]
    for write in writes:
        with pytest.raises(Deposed, match="another leads with 2"):
            write()
    assert (store.kept(), store.undelivered("pool", 1), store.choices()) == (Snapshot(), [], {})
    successor.write(Batch(records=kept_of().failed(HOUR_NS)), deliver=True)
    assert len(successor.undelivered("pool", 9)) == 1
    successor.close()


def test_a_lease_of_another_host_goes_on_by_unix_time_and_never_from_the_future() -> None:
    lease = kept_of()
    assert lease.here(now_ns=500, now_unix_ns=1, same_clock=True).opened_ns <= 500 - lease.confirmed_ns
    moved = lease.here(now_ns=10_000 * SECOND, now_unix_ns=lease.opened_unix_ns + 60 * SECOND, same_clock=False)
    assert moved.opened_ns == 9_940 * SECOND


def test_what_was_confirmed_before_a_lease_counts_from_another_start_is_not_written_of_it() -> None:
    first, restarted = kept_of(), kept_of(opened_ns=110 * SECOND, confirmed_ns=0)
    batch = Batch(confirmed_ns={"s.1": 9 * SECOND})
    batch.keep_lease(restarted)
    assert (batch.leases, batch.confirmed_ns) == ({"s.1": restarted}, {})
    failed = Batch(leases={"s.1": first}, confirmed_ns={"s.1": 9 * SECOND, "s.2": 1})
    failed.older_than(batch)
    assert (batch.leases, batch.confirmed_ns) == ({"s.1": restarted}, {"s.2": 1})
    failed.older_than(later := Batch(confirmed_ns={"s.1": 10 * SECOND}))
    assert (later.leases, later.confirmed_ns) == ({"s.1": first}, {"s.1": 10 * SECOND, "s.2": 1})


# In virtual time: one world ends, another goes on with what it had kept


def left_by(w: World) -> Snapshot:
    """What is on disk when the pool of this world dies, if all of it was written."""
    sessions: dict[str, SessionSnapshot] = {}
    leases: dict[str, LeaseSnapshot] = {}
    for instruction in w.out:
        match instruction:
            case Keep(Session() as session):
                sessions[session.id] = session_snapshot(session)
                if session.state in ("lost", "ended"):
                    del sessions[session.id]
            case Keep(Lease() as lease):
                leases[lease.id] = lease_snapshot(lease)
            case Confirm(confirmed):
                leases |= {one.id: replace(leases[one.id], confirmed_ns=one.confirmed_ns - one.opened_ns) for one in confirmed}
            case Meter(record):
                leases.pop(record.lease, None)
    living = ((one.id, tuple(device.id for device in one.devices)) for one in w.machine.fleet.workers.values())
    workers = tuple(WorkerSnapshot(name, devices, "", "", 1, 1) for name, devices in living)
    return Snapshot(tuple(sessions.values()), workers, tuple(leases.values()))


def successor_of(world: Make, w: World, seconds: float, **changes: Any) -> Any:
    after = world(resume_seconds=30.0, **changes)
    after.now = w.now + int(seconds * SECOND)
    after.do(Restored(left_by(w)))
    return after


def back(w: World, worker: str, session: str | None, epoch: int | None, **changes: Any) -> None:
    values = {"ended": None, "starved": False, "client_gone": False, "memory_bytes": 7, "parked_bytes": None}
    w.worker(worker, wire.ResumeWorker(worker=worker, address="unix:/back", session=session, epoch=epoch, **(values | changes)))


def client_back(w: World, session: str, worker: str | None = None, epoch: int | None = None, ticket: str | None = None) -> None:
    key = "0" * 64
    w.client(session, wire.ResumeSession(session=session, key=key, worker=worker, ticket=ticket, epoch=epoch, span=SPAN))


def test_a_lease_held_over_a_restart_goes_on_and_is_one_bill(world: Make) -> None:
    w = world(resume_seconds=30.0)
    worker = w.lease("s")
    opened_ns = w.now
    w.wait(10)
    after = successor_of(world, w, 5)
    assert after.machine.sessions["s"].state == "active"
    after.wait(1)
    back(after, worker, "s", 1)
    client_back(after, "s", worker, 1)
    assert [message.type for message in after.told("s")] == ["session"]
    after.wait(4)
    after.drain("s")
    (record,) = after.records
    assert (record.id, record.duration_ns, record.close_reason) == ("s.1/1", after.now - opened_ns, "drained")
    after.lease("s", 2)
    assert after.epoch("s") == 2


def test_a_lease_that_ended_while_no_pool_was_there_ends_when_its_worker_says(world: Make) -> None:
    w = world(resume_seconds=30.0)
    worker = w.lease("s")
    w.wait(10)
    after = successor_of(world, w, 5)
    ended = wire.Ended(epoch=1, reason="idle", idle_ns=2 * SECOND, ago_ns=3 * SECOND)
    back(after, worker, "s", None, ended=ended)
    back(after, worker, "s", None, ended=ended)
    assert [(record.duration_ns, record.close_reason) for record in after.records] == [(10 * SECOND, "idle")]
    client_back(after, "s", worker, 1)
    assert [(message.type, getattr(message, "duration_ns", None)) for message in after.told("s")][-2:] == [
        ("session", None),
        ("closed", 10 * SECOND),
    ]


def test_the_lease_of_a_worker_that_does_not_come_back_is_free(world: Make) -> None:
    w = world(resume_seconds=30.0)
    worker = w.lease("s")
    for _ in range(4):
        w.wait(1)
        w.worker(worker, wire.Heartbeat(epoch=1, memory_bytes=0, busy_ns=0, commands=0))
        w.tick()
    w.wait(20)
    after = successor_of(world, w, 5)
    client_back(after, "s", worker, 1)
    after.wait(31)
    after.tick()
    assert Kill(worker) in after.out
    ((duration_ns, reason),) = [(record.duration_ns, record.close_reason) for record in after.records]
    assert (duration_ns, reason) == (0, "failed")
    assert "is gone" in after.last("s").message
    after.do(WorkerGone(worker, "killed"))
    assert after.machine.fleet.seats["main/cpu:0"].state == "free"


def test_a_lease_whose_session_cannot_go_on_is_metered_at_once(world: Make) -> None:
    w = world(resume_seconds=30.0)
    w.lease("s")
    kept = left_by(w)
    after = world(resume_seconds=30.0)
    after.now = w.now + SECOND
    after.do(Restored(replace(kept, workers=())))
    assert [(record.id, record.duration_ns, record.close_reason) for record in after.records] == [("s.1/1", 0, "failed")]
    assert after.machine.sessions == {}
    client_back(after, "s")
    after.join("t")
    after.lease("t")


def test_a_client_that_is_not_back_in_time_ends_its_session(world: Make) -> None:
    w = world(resume_seconds=30.0)
    worker = w.lease("s")
    after = successor_of(world, w, 5)
    back(after, worker, "s", 1)
    for _ in range(31):
        after.wait(1)
        after.worker(worker, wire.Heartbeat(epoch=1, memory_bytes=0, busy_ns=0, commands=0))
        after.tick()
    assert after.machine.sessions == {}
    assert after.records[0].close_reason == "released"


def test_a_lease_that_the_disk_never_knew_is_closed_at_its_worker_and_free(world: Make) -> None:
    w = world(resume_seconds=30.0)
    worker = w.lease("s")
    kept = left_by(w)
    after = world(resume_seconds=30.0)
    after.now = w.now + SECOND
    before_grant = replace(kept.sessions[0], epoch=0, span=None)
    after.do(Restored(Snapshot((before_grant,), kept.workers)))
    back(after, worker, "s", 1)
    assert after.ordered(worker) == [wire.Close(epoch=1)]
    client_back(after, "s", worker, 1)
    assert after.last("s") == wire.LeaseClosed(lease="s.1", epoch=1, reason="failed", duration_ns=0)
    after.worker(worker, wire.Closed(epoch=1))
    after.worker(worker, wire.Starved())
    assert after.machine.sessions["s"].lease is not None
    assert (after.epoch("s"), after.records) == (2, [])


def test_workers_that_died_in_replays_are_counted_over_a_restart(world: Make, store: Store) -> None:
    w = world(resume_seconds=30.0)
    w.lease("s")
    w.do(SessionReplays("s"))
    for _ in range(2):
        w.do(WorkerGone(w.worker_of("s"), "killed"))
        w.settle()
    kept = left_by(w)
    store.write(Batch(sessions={one.id: one for one in kept.sessions}), deliver=False)
    assert [one.replay and one.replay.loss and one.replay.loss.tries for one in store.kept().sessions] == [1]
    after = world(resume_seconds=30.0)
    after.do(Restored(replace(kept, sessions=store.kept().sessions)))
    after.do(WorkerGone(after.worker_of("s"), "killed"))
    assert "s" not in after.machine.sessions


def test_a_client_between_two_workers_finds_the_next_one_after_a_restart(world: Make) -> None:
    two = [Device(f"main/cpu:{index}", "main", "cpu", index, "cpu-dev", 8 * GIB) for index in range(2)]
    w = world(two, resume_seconds=30.0)
    first = w.lease("s")
    w.do(SessionMoved("s"))
    w.worker(first, wire.Left(bytes=GIB, address="unix:/old", ticket="a" * 64))
    w.settle()
    second = w.worker_of("s")
    assert second != first
    after = successor_of(world, w, 1, seats=two)
    client_back(after, "s", first)
    assert [message.type for message in after.told("s")] == ["session", "granted"]
    assert after.last("s").worker == second
    back(after, second, "s", 2, memory_bytes=GIB)
    back(after, first, "s", None, left=wire.Left(bytes=GIB, address="unix:/old", ticket="a" * 64), parked_bytes=GIB)
    assert first in after.killed
    after.client("s", wire.Arrived(epoch=2))
    assert after.machine.sessions["s"].state == "active"


def test_who_asks_before_its_worker_is_back_waits_for_it_instead_of_moving(world: Make) -> None:
    two = [Device(f"main/cpu:{index}", "main", "cpu", index, "cpu-dev", 8 * GIB) for index in range(2)]
    w = world(two, resume_seconds=30.0)
    worker = w.lease("s")
    w.drain("s")
    after = successor_of(world, w, 1, seats=two)
    client_back(after, "s", worker, 1)
    after.acquire("s", 2)
    after.wait(3)
    assert "leave" not in [message.type for message in after.told("s")]
    back(after, worker, "s", None)
    after.settle()
    assert (after.machine.sessions["s"].lease is not None, after.worker_of("s"), after.launched) == (True, worker, [])


def test_a_worker_that_holds_what_left_it_keeps_that_over_a_broken_link(world: Make) -> None:
    two = [Device(f"main/cpu:{index}", "main", "cpu", index, "cpu-dev", 8 * GIB) for index in range(2)]
    w = world(two, resume_seconds=30.0)
    first = w.lease("s")
    w.drain("s")
    w.do(SessionMoved("s"))
    left = wire.Left(bytes=GIB, address="unix:/old", ticket="a" * 64)
    w.worker(first, left)
    w.do(WorkerAway(first))
    back(w, first, "s", None, left=left)
    assert w.killed == []
    assert w.lease("s", 2) != first


def test_who_was_to_start_beside_a_worker_with_a_strange_session_waits_until_that_is_gone(world: Make) -> None:
    two = [Device(f"main/cpu:{index}", "main", "cpu", index, "cpu-dev", 8 * GIB) for index in range(2)]
    w = world(two, [Flavor("half", GIB, (Equivalent("cpu-dev", 1, 500),))], resume_seconds=30.0)
    worker = w.lease("s", flavor="half")
    device = w.machine.fleet.workers[worker].device
    w.drain("s")
    for name in ("t", "u", "v"):
        w.join(name, "half")
        w.acquire(name)
    (there,) = [name for name in ("t", "u", "v") if w.machine.sessions[name].request.place.devices[0] is device]
    back(w, worker, "stranger", None)
    assert worker in w.killed
    assert w.machine.sessions[there].request.place is None
    w.settle()
    assert w.machine.sessions[there].lease is not None


def test_a_client_that_went_to_a_worker_which_is_not_back_has_lost_its_tensors(world: Make) -> None:
    w = world(resume_seconds=30.0)
    worker = w.lease("s")
    kept = left_by(w)
    after = world(resume_seconds=30.0)
    after.now = w.now + SECOND
    before_grant = replace(kept.sessions[0], epoch=0, span=None, opened=False, reserved_bytes=0)
    after.do(Restored(Snapshot((before_grant,), kept.workers)))
    client_back(after, "s", worker, 1)
    after.acquire("s", 2)
    after.wait(31)
    after.tick()
    assert "is gone" in after.last("s").message
    assert (after.machine.sessions, after.launched) == ({}, [])


def test_all_devices_of_a_gangs_worker_serve_again_once_that_is_ready_although_another_pool_started_it(world: Make) -> None:
    """Found by seed 4734 of the simulator: only the first of them did."""
    two = [Device(f"main/cpu:{index}", "main", "cpu", index, "cpu-dev", (8 + 8 * index) * GIB) for index in range(2)]
    flavors = [Flavor("pair", GIB, (Equivalent("cpu-dev", 2),)), Flavor("large", 16 * GIB, (Equivalent("cpu-dev"),))]
    w = world(two, flavors, resume_seconds=30.0)
    w.join("s", "pair")
    w.acquire("s")
    (launched,) = left_by(w).workers
    worker = "before-w1"
    after = world(two, flavors, resume_seconds=30.0)
    after.do(Restored(Snapshot(workers=(replace(launched, id=worker),))))
    after.join("t", "large")
    after.acquire("t")
    assert after.launched == []
    after.ready(worker)
    assert after.machine.sessions["t"].request.place.devices == (two[1],)


# Where the binding of a session to its first worker was not written: only the ticket says who is whose


def before_its_first_worker(world: Make, w: World, **changes: Any) -> Any:
    """The next pool, which knows the sessions as they were before they were given a worker, and the workers' processes."""
    kept = left_by(w)
    after = world(resume_seconds=30.0, **changes)
    after.now = w.now + SECOND
    forgotten = {"epoch": 0, "span": None, "worker": None, "opened": False, "reserved_bytes": 0, "waits": None}
    after.do(Restored(Snapshot(tuple(replace(session, **forgotten) for session in kept.sessions), kept.workers)))
    return after


def ticket_of(w: World, session: str) -> str:
    (granted,) = [message for message in w.told(session) if isinstance(message, wire.Granted)]
    return str(granted.ticket)


@pytest.mark.parametrize("limit_bytes", [GIB // 2, 2 * GIB])
@pytest.mark.parametrize("first", ["worker", "client"])
def test_whoever_of_a_session_and_its_first_worker_is_back_first_proves_it_by_the_ticket(world: Make, first: str, limit_bytes: int) -> None:
    w = world(resume_seconds=30.0)
    worker = w.lease("s")
    ticket = ticket_of(w, "s")
    after = before_its_first_worker(world, w)
    if first == "client":
        client_back(after, "s", worker, 1, ticket)
        after.wait(1)
    back(after, worker, "s", 1, ticket=ticket, memory_limit_bytes=limit_bytes)
    if first == "worker":
        after.wait(1)
        client_back(after, "s", worker, 1, ticket)
    assert after.killed == []
    assert after.ordered(worker) == [wire.Close(epoch=1)]
    assert after.last("s") == wire.LeaseClosed(lease="s.1", epoch=1, reason="failed", duration_ns=0)
    assert after.machine.fleet.workers[worker].reserved_bytes == limit_bytes  # a flavor that was chosen and not written allowed so much
    after.worker(worker, wire.Closed(epoch=1))
    after.worker(worker, wire.Starved())
    assert after.last("s").worker == worker
    after.wait(3)
    after.drain("s")
    assert [(record.id, record.duration_ns) for record in after.records] == [("s.2/1", 3 * SECOND)]


@pytest.mark.parametrize("shown", ["nothing", "something", "the other's ticket", "the own ticket"])
def test_without_its_ticket_neither_a_client_nor_a_worker_gets_what_is_anothers(world: Make, shown: str) -> None:
    two = [Device(f"main/cpu:{index}", "main", "cpu", index, "cpu-dev", 8 * GIB) for index in range(2)]
    w = world(two, resume_seconds=30.0)
    mine, theirs = w.lease("s"), w.lease("t")
    own, others = ticket_of(w, "s"), ticket_of(w, "t")
    ticket = {"nothing": None, "something": "0" * 64, "the other's ticket": others, "the own ticket": own}[shown]
    after = before_its_first_worker(world, w, seats=two)
    client_back(after, "s", theirs, 1, ticket)
    assert "is gone" in after.last("s").message
    back(after, mine, "t", 1, ticket=ticket)  # as if whoever computes there wanted what the other session sends next
    assert after.killed == [mine]
    back(after, theirs, "t", 1, ticket=others)
    client_back(after, "t", theirs, 1, others)
    after.worker(theirs, wire.Closed(epoch=1))
    after.worker(theirs, wire.Starved())
    assert (after.killed, after.last("t").worker) == ([mine], theirs)


def test_a_client_that_never_heard_of_its_first_worker_gets_another_and_that_one_ends(world: Make) -> None:
    two = [Device(f"main/cpu:{index}", "main", "cpu", index, "cpu-dev", 8 * GIB) for index in range(2)]
    w = world(two, resume_seconds=30.0)
    worker = w.lease("s")
    ticket = ticket_of(w, "s")
    after = before_its_first_worker(world, w, seats=two)
    client_back(after, "s")
    back(after, worker, "s", 1, ticket=ticket)
    assert after.killed == [worker]
    assert after.lease("s") != worker


def test_a_worker_without_a_session_is_warm_again_and_one_that_missed_its_session_is_told_again(world: Make) -> None:
    w = world(resume_seconds=30.0, warm_workers=1)
    w.tick()
    spare = w.launched[0]
    w.ready(spare)
    after = successor_of(world, w, 1)
    back(after, spare, None, None)
    assert after.machine.fleet.workers[spare].state == "warm"
    after.join("s")
    after.acquire("s")
    assert [type(order) for order in after.ordered(spare)] == [wire.Assign]
    last = successor_of(world, after, 1)
    back(last, spare, None, None)
    assert [type(order) for order in last.ordered(spare)] == [wire.Assign]


@pytest.mark.parametrize("held", [True, False])
def test_a_dropped_link_of_a_worker_costs_nothing_if_it_held_its_lease(world: Make, held: bool) -> None:
    w = world(resume_seconds=30.0)
    worker = w.lease("s")
    w.wait(2)
    w.do(WorkerAway(worker))
    w.wait(10)
    w.tick()
    back(w, worker, "s", 1 if held else None)
    assert (w.machine.sessions["s"].lease is not None) == held
    assert [(record.duration_ns, record.close_reason) for record in w.records] == ([] if held else [(0, "failed")])
    w.wait(1)
    w.do(SessionLeft("s"))
    assert [record.duration_ns for record in w.records] == [13 * SECOND if held else 0]


def test_a_lease_that_is_closed_twice_is_metered_once(world: Make) -> None:
    w = world(resume_seconds=30.0)
    worker = w.lease("s")
    w.wait(2)
    w.drain("s")
    w.wait(2)
    for message in (wire.Drained(epoch=1), wire.Closed(epoch=1), wire.Idle(epoch=1, idle_ns=0)):
        w.worker(worker, message)
    w.client("s", wire.Release(epoch=1))
    w.client("s", wire.Release(epoch=1))
    assert [record.duration_ns for record in w.records] == [2 * SECOND]
    closed = [i for i in w.out if isinstance(i, TellClient) and isinstance(i.message, wire.LeaseClosed)]
    assert len(closed) == 1


def test_nothing_computes_for_a_client_that_does_not_read_and_its_work_goes_on_when_it_is_back(world: Make) -> None:
    w = world(resume_seconds=30.0)
    worker = w.lease("s")
    w.do(SessionAway("s", stalled=True))
    w.settle()
    assert w.machine.sessions["s"].state == "parked"
    w.worker(worker, wire.Starved())
    assert w.machine.sessions["s"].request is None
    client_back(w, "s", worker, 1)
    w.settle()
    assert w.machine.sessions["s"].lease is not None
    told = [message.type for message in w.told("s") if message.type != "queued"]
    assert told[-3:] == ["session", "closed", "granted"]


def test_a_waiting_client_whose_link_broke_holds_no_place(world: Make) -> None:
    w = world(resume_seconds=30.0)
    w.lease("a")
    w.join("b")
    w.acquire("b")
    w.do(SessionAway("b"))
    w.drain("a")
    assert w.machine.sessions["b"].lease is None
    client_back(w, "b")
    w.acquire("b")
    w.settle()
    assert w.machine.sessions["b"].lease is not None
