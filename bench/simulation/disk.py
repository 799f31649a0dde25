"""The pool's database in virtual time: what was written when the pool died, as its rows say."""

from __future__ import annotations

from forebay_pool.hosts.process_identity import boot_id
from forebay_pool.model.events import Event, WorkerGone
from forebay_pool.model.instructions import Confirm, Forget, Instruction, Keep, Launch, Meter, MeterParked
from forebay_pool.model.snapshot import Snapshot, WorkerSnapshot, lease_snapshot, parking_snapshot, session_snapshot
from forebay_pool.model.types import Lease, Parking, Session, UsageRecord
from forebay_pool.store import snapshot_rows
from forebay_pool.store.batch import Batch
from forebay_pool.store.database import Store
from forebay_pool.store.tables import METADATA

from simulation.auditor import Caught


class Disk:
    """Gathers what the pool has written, in its order, as ``Shell`` and ``Writer`` do; a prefix of it is durable at any moment."""

    def __init__(self) -> None:
        self.stopped_ns: int | None = None
        """Since when the database refuses; None while it writes."""
        self.written_ns = 0
        """What happened until then was written when the pool died last."""
        self._under_way: list[tuple[int, Batch]] = []
        self._written = Batch(records=[])
        self._segments: dict[str, UsageRecord] = {}

    def saw(self, now_ns: int, event: Event, instructions: list[Instruction]) -> None:
        batch = Batch(records=[])
        self._gather(batch, event, instructions)
        if batch:
            self._under_way.append((now_ns, batch))

    def _gather(self, batch: Batch, event: Event, instructions: list[Instruction]) -> None:
        if isinstance(event, WorkerGone):
            batch.workers[event.worker] = None
        for instruction in instructions:
            self._note(batch, instruction)

    def _note(self, batch: Batch, instruction: Instruction) -> None:
        match instruction:
            case Launch(worker, devices, _):
                batch.workers[worker] = WorkerSnapshot(worker, tuple(device.id for device in devices), "", boot_id(), 1, 1)
            case Keep(Lease() as lease) if lease.state != "closed":
                batch.keep_lease(lease_snapshot(lease))
            case Keep(Parking() as parking):
                batch.parkings[parking.id] = parking_snapshot(parking)
            case Forget(parking):
                batch.parkings[parking] = None
            case Keep(Session() as record):
                batch.sessions[record.id] = None if record.state in ("lost", "ended") else session_snapshot(record)
            case Confirm(leases):
                batch.confirmed_ns |= {lease.id: lease.confirmed_ns - lease.opened_ns for lease in leases}
            case Meter(record) | MeterParked(record):
                batch.records = [*batch.records, record]

    def dies(self, until_ns: int) -> None:
        """The pool is gone, and what it had not written by ``until_ns`` with it."""
        self.written_ns = until_ns if self.stopped_ns is None else min(until_ns, self.stopped_ns)
        for when_ns, batch in self._under_way:
            if when_ns <= self.written_ns:
                self._write(batch)
        self._under_way.clear()

    def _write(self, batch: Batch) -> None:
        written = self._written
        written.sessions |= batch.sessions
        written.workers |= batch.workers
        for lease in batch.leases.values():
            written.keep_lease(lease)
        written.parkings |= batch.parkings
        written.confirmed_ns |= batch.confirmed_ns
        for record in batch.records:
            known = self._segments.setdefault(record.id, record)
            if known != record:
                raise Caught(f"a segment was written as {known}, and again as {record}", record.id)
        written.records = [*written.records, *batch.records]

    @property
    def workers(self) -> set[str]:
        """Those that the next pool will know."""
        return {name for name, worker in self._written.workers.items() if worker is not None}

    def read(self, now_ns: int, now_unix_ns: int) -> Snapshot:
        """What the next pool finds: all that was written goes through the tables of a real database."""
        store = Store("sqlite://")
        try:
            METADATA.create_all(store.engine)
            store.write(self._written, deliver=False)
            with store.engine.connect() as connection:
                return snapshot_rows.read(connection, boot_id(), now_ns, now_unix_ns)
        finally:
            store.close()
