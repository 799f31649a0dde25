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
            replay, request = session.replay, session.request
            if self._sessions.get(session.id) is not session or not (replay.due or session.stored):
                del self._due[session.id]
                continue
            loss = replay.loss if replay.due else None
            why = self.why_never(session, loss) if session.worker is None else None
            if why is not None:
                self._ending.lose(session, Cause("worker_gone", "its host is gone" if loss is None else loss.cause, why))
            elif request is not None and request.lane != self._fleet.lane_of(session) and self._granting.waits(request):
                self._granting.place_again(request)

    def why_never(self, session: Session, loss: Loss | None) -> Cause | None:
        """Why nothing can do again what the worker did, or read the session's image if there is no ``loss``; None if something can. Hosts
        that are closed or lost may come back, and count. A host that an operator drained and that was lost then does not, nor does a lost
        one that alone had the session's image."""
        image, group = session.replay.image, session.group
        flavor = self._fleet.flavors[session.flavor] if loss is None else alike(self._fleet.flavors[session.flavor], loss)
        if image is not None and image.node is not None:
            node, models = self._fleet.nodes.get(image.node), {way.model for way in flavor.equivalents}
            if node is None or node.lost is not None or not any(seat.device.model in models for seat in node.seats):
                return Cause("image_lost")
        if loss is None:
            return None
        together = [session] if group is None else [one for one in group.computed if one.flavor == session.flavor]
        if self._fleet.most_together(flavor, session.tenant) < len(together):
            return Cause("replay_unserved", way(Equivalent(loss.model, loss.devices * len(together))))
        return None
