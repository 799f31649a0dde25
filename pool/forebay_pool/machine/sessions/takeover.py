"""What a pool before this one did and died before it wrote: it is taken over from whoever reports it."""

from __future__ import annotations

from forebay_pool.machine.base.messages import is_ticket
from forebay_pool.machine.base.step import Step
from forebay_pool.model.types import Session, Worker
from forebay_pool.placement.fleet import Fleet


class Takeover:
    """Takes over first workers and first leases that were never written."""

    def __init__(self, step: Step, fleet: Fleet) -> None:
        self._step = step
        self._fleet = fleet

    def adopt(self, worker: Worker | None, session: Session | None, shown: str | None) -> None:
        """A pool before this one gave the session its first worker and died before it wrote that. The first of both to come back shows the
        ticket, which only a pool can make. A client that comes back without a worker never heard of it, and has nothing there."""
        if worker is None or session is None or not is_ticket(shown, session, worker):
            return
        free = worker.unsure and worker.state == "starting" and worker.keeps is None
        alone = session.worker is None and session.image is None and session.request is None
        if free and alone and session.away_ns is not None:
            worker.state = "warm"
            self._fleet.give(worker, session)
            worker.state = "bound"
            self._step.note("session_adopted", session=session.id, tenant=session.tenant, worker=worker.id)

    def opened(self, worker: Worker, session: Session) -> None:
        """The worker had a lease by a pool that died before it wrote that, as the worker says or the client that was there."""
        worker.opened = True
        self._step.touch(session)
        self._step.save(session)
