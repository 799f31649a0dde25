"""Sessions whose worker died and that wait for another one to do its work again: they end if nothing is left to do it on."""

from __future__ import annotations

from forebay_pool.machine.leasing.granting import Granting
from forebay_pool.machine.workers.ending import Ending
from forebay_pool.model.causes import Cause
from forebay_pool.model.types import Equivalent, Loss, Session
from forebay_pool.placement.capacity import way
from forebay_pool.placement.fleet import Fleet
from forebay_pool.placement.homes import alike


class Replays:
    """Has sessions wait for devices that compute as their dead workers' did, as long as there are such devices."""

    def __init__(self, sessions: dict[str, Session], fleet: Fleet, granting: Granting, ending: Ending) -> None:
        self._sessions = sessions
        self._fleet = fleet
        self._granting = granting
        self._ending = ending
        self._due: dict[str, Session] = {}
        """At least the sessions whose work is still to be done again. Those that need it no more leave at the next check."""

    def add(self, session: Session) -> None:
        """The session's work is to be done again."""
        self._due[session.id] = session

    def check(self) -> None:
        """Hosts may have come or gone: sessions that nothing can serve any more are lost, and others are placed where they can be now."""
        for session in list(self._due.values()):
            loss, request = session.replay.loss, session.request
            if self._sessions.get(session.id) is not session or loss is None or not loss.undone:
                del self._due[session.id]
                continue
            why = self.why_never(session, loss) if session.worker is None else None
            if why is not None:
                self._ending.lose(session, Cause("worker_gone", loss.cause, why))
            elif request is not None and request.lane != self._fleet.lane_of(session) and self._granting.waits(request):
                self._granting.place_again(request)

    def why_never(self, session: Session, loss: Loss) -> Cause | None:
        """Why nothing can do again what the worker did; None if something can. Hosts that are closed or lost may come back, and count. A
        host that an operator drained and that was lost then does not, nor does a lost one that alone had the session's image."""
        image, group = session.replay.image, session.group
        if image is not None and image.node is not None:
            node = self._fleet.nodes.get(image.node)
            if node is None or node.lost is not None:
                return Cause("image_lost")
        together = [session] if group is None else [one for one in group.computed if one.flavor == session.flavor]
        if self._fleet.most_together(alike(self._fleet.flavors[session.flavor], loss), session.tenant) < len(together):
            return Cause("replay_unserved", way(Equivalent(loss.model, loss.devices * len(together))))
        return None
