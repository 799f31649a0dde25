"""Where alone a session can go on: where its tensors are, or where what its dead worker did can be done again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from forebay_pool.model.types import Flavor, Loss, Node, Session


class Homes:
    """Knows what serves each session, and where."""

    def __init__(self, flavors: Mapping[str, Flavor], nodes: Mapping[str, Node]) -> None:
        self._flavors = flavors
        self._nodes = nodes

    def flavor_of(self, session: Session) -> Flavor:
        """The session's flavor; while it waits for a worker that does again what another one did, only as what that one computed on."""
        flavor, replay = self._flavors[session.flavor], session.replay
        return flavor if session.worker is not None or replay.loss is None or not replay.due else alike(flavor, replay.loss)

    def of(self, session: Session) -> tuple[str, ...]:
        """The devices where alone its next lease can be, unless its tensors move: those of its worker, or those that see the image that
        another worker goes on from. Empty if there are none such."""
        if session.worker is not None:
            return session.worker.names
        image = session.replay.image if session.replay.due or session.stored else None
        node = None if image is None or image.node is None else self._nodes.get(image.node)
        if node is None:
            return ()
        models = {way.model for way in self.flavor_of(session).equivalents}
        return tuple(seat.device.id for seat in node.seats if seat.device.model in models)


def alike(flavor: Flavor, loss: Loss) -> Flavor:
    """The flavor, as far as what serves it rounds as what the dead worker computed on."""
    return replace(flavor, equivalents=tuple(way for way in flavor.equivalents if (way.model, way.count) == (loss.model, loss.devices)))
