"""The event at hand: when it happens, and the instructions that it leads to."""

from __future__ import annotations

from forebay_wire import messages as wire

from forebay_pool.machine.base.story import Story
from forebay_pool.machine.base.worklist import Worklist
from forebay_pool.model.instructions import Instruction, Keep, Note, Show, TellClient
from forebay_pool.model.types import Session, SessionState


class Step:
    """One step of the state machine. Every part appends to ``out``; the order of the instructions is the order of what happened."""

    __slots__ = ("_worklist", "changed", "now_ns", "out", "story", "unix_offset_ns")

    def __init__(self, worklist: Worklist, unix_offset_ns: int) -> None:
        self._worklist = worklist
        self.now_ns = 0
        """When the event happens; it never goes back."""
        self.unix_offset_ns = unix_offset_ns
        self.out: list[Instruction] = []
        """All and only the instructions of the event at hand."""
        self.changed: dict[Session, None] = {}
        """At least the sessions that the event changed, since the stretches of parked time were last brought up to date."""
        self.story = Story()

    @property
    def unix_ns(self) -> int:
        """When the event happens, by the calendar's clock."""
        return self.now_ns + self.unix_offset_ns

    def touch(self, session: Session) -> None:
        """The session may be in another state now."""
        self.set_state(session, session.doing)

    def set_state(self, session: Session, state: SessionState) -> None:
        if session.state != state:
            session.state = state
            session.since_unix_ns = self.unix_ns
        self.show(session)

    def show(self, session: Session) -> None:
        """The session's row changed."""
        self.out.append(Show(session))
        self.changed[session] = None
        if session.group is not None:
            self._worklist.groups[session.group] = None

    def save(self, session: Session) -> None:
        """The session is written as it stands, soon."""
        self.out.append(Keep(session))
        self.changed[session] = None

    def send(self, session: str, message: wire.ToClient) -> None:
        """The session's client is sent the message."""
        self.out.append(TellClient(session, message))

    def note(self, action: str, **fields: str | int) -> None:
        """Something an operator may want to read or count."""
        self.out.append(Note(action, fields))
