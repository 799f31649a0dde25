"""Images of sessions that workers kept: which one another worker goes on from, and where there are others to be removed."""

from __future__ import annotations

from forebay_wire import messages as wire

from forebay_pool.machine.base.step import Step
from forebay_pool.model.instructions import DropImages
from forebay_pool.model.records import Image
from forebay_pool.model.types import Session, Worker
from forebay_pool.placement.fleet import Fleet


class KeptImages:
    """Follows the images that workers keep of their sessions."""

    def __init__(self, step: Step, fleet: Fleet) -> None:
        self._step = step
        self._fleet = fleet

    def kept(self, worker: Worker, session: Session, number: int, count_bytes: int) -> None:
        """What was done until now need not be done again if the worker dies. Those on other hosts are not needed any more."""
        replay, node = session.replay, worker.device.node
        shared = self._fleet.policy.images_of(self._fleet.flavors[session.flavor].images) == "node"
        replay.worked_ns = 0
        replay.image = Image(count_bytes, self._step.now_ns, self._step.unix_ns, None if shared else node, worker.device.model, number)
        if not shared:
            self._step.out += (DropImages(session.secret, other) for other in sorted(replay.nodes - {node}))
            replay.nodes = {node}

    def left(self, worker: Worker, session: Session, message: wire.Left) -> None:
        """The session left the worker, which kept an image of it too, or has removed all that there were."""
        if message.image:
            self.kept(worker, session, message.image, message.bytes)
        else:
            session.replay.image = None
