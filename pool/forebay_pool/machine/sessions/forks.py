"""Sessions that begin as copies of others, as those of forked processes do.

The worker of the *origin* writes what that held at a checkpoint as the first image of the new session. From then on the new session stands
as one whose worker is gone and whose tensors are in an image. Its client is told that the session is open once the image is there.
"""

from __future__ import annotations

from dataclasses import dataclass

from forebay_wire import messages as wire
from forebay_wire.message_parts import SHARED_IMAGE

from forebay_pool.machine.base.admission import Admission
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.leasing.granting import Granting
from forebay_pool.machine.leasing.queue_positions import QueuePositions
from forebay_pool.machine.workers.ending import Ending
from forebay_pool.machine.workers.replays import Replays
from forebay_pool.model.causes import Cause
from forebay_pool.model.instructions import DropImages, TellWorker
from forebay_pool.model.records import Image
from forebay_pool.model.types import Session, Worker
from forebay_pool.placement.fleet import Fleet


@dataclass(slots=True)
class Wait:
    """A session that waits for its copy."""

    session: Session
    fork: wire.Fork
    asked: str = ""
    """The worker that is to write it; empty while the origin is at none that could."""
    brought: str = ""
    """The worker that the origin had left when it was brought to another one for this."""


class Forks:
    """Has workers write copies, and follows them."""

    def __init__(
        self,
        step: Step,
        admission: Admission,
        sessions: dict[str, Session],
        fleet: Fleet,
        positions: QueuePositions,
        granting: Granting,
        ending: Ending,
        replays: Replays,
    ) -> None:
        self._step = step
        self._admission = admission
        self._granting = granting
        self._sessions = sessions
        self._fleet = fleet
        self._positions = positions
        self._ending = ending
        self._replays = replays
        self._waits: dict[str, Wait] = {}
        """All sessions that wait, by their names; and those that are over meanwhile, until their image can be removed."""

    def begin(self, session: Session, fork: wire.Fork) -> None:
        """The session waits for its copy."""
        wait = self._waits[session.id] = Wait(session, fork)
        self._advance(wait)

    def check(self) -> None:
        """Origins may have ended, or come to other workers."""
        for wait in list(self._waits.values()):
            self._advance(wait)

    def _advance(self, wait: Wait) -> None:
        session, origin = wait.session, self._sessions.get(wait.fork.session)
        lives = self._sessions.get(session.id) is session
        if not lives and wait.asked not in self._fleet.workers:
            del self._waits[session.id]
        elif lives and origin is None:
            del self._waits[session.id]
            self._ending.lose(session, Cause("fork_gone"))
        elif lives and origin is not None:
            self._bring(wait, origin)
            self._ask(wait, origin.worker)

    def _bring(self, wait: Wait, origin: Session) -> None:
        """The origin may rest where no worker serves it, as long as its process waits for this one: then a lease brings it to one."""
        waits = origin.request is not None or origin.away_ns is not None or origin.stalled or self._admission.stopping
        if origin.worker is None and origin.span is not None and not waits and wait.brought != origin.left:
            wait.brought = origin.left
            self._granting.request(origin, 0, origin.span, origin.priority)

    def _ask(self, wait: Wait, worker: Worker | None) -> None:
        if worker is not None and worker.away_ns is not None:
            wait.asked = ""  # it may not have heard
        if worker is not None and worker.state == "bound" and worker.opened and worker.away_ns is None and worker.id != wait.asked:
            wait.asked = worker.id
            order = wire.Copy(session=wait.session.id, checkpoint=wait.fork.checkpoint)
            self._step.out.append(TellWorker(worker.id, order))

    def copied(self, worker: Worker, message: wire.Copied) -> None:
        """The image is there, or never will be."""
        wait = self._waits.get(message.session)
        if wait is None or wait.asked != worker.id:
            return
        del self._waits[message.session]
        session, node = wait.session, worker.device.node
        if self._sessions.get(session.id) is not session:
            self._step.out.append(DropImages(session.secret, node))
        elif message.why:
            self._ending.lose(session, Cause("not_copied", message.why))
        else:
            self._open(session, worker, message.bytes)

    def _open(self, session: Session, worker: Worker, count_bytes: int) -> None:
        flavor, node = self._fleet.flavors[session.flavor], worker.device.node
        seen_by_all = self._fleet.policy.images_of(flavor.images) == "node"
        held_bytes = min(count_bytes, flavor.memory_bytes)  # its head is no tensor's
        session.left = worker.id
        session.replay.nodes = {node}
        session.replay.image = Image(
            held_bytes, self._step.now_ns, self._step.unix_ns, None if seen_by_all else node, worker.device.model, SHARED_IMAGE
        )
        self._replays.add(session)
        self._step.note("session_copied", session=session.id, tenant=session.tenant, worker=worker.id, bytes=held_bytes)
        self._positions.send_flavor(session)
        self._step.touch(session)
        self._step.save(session)
