"""The null device: the other end of a command stream, which notes commands and computes nothing.

What is read of it is zeros, so a loss is 0.0 and no gradient is infinite. Where only computing tells the sizes of a result (``nonzero``, a
mask in brackets), the call fails with a sentence.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from forebay_wire.steps import Event, StepReader
from forebay_wire.stream import (
    Ask,
    Data,
    Done,
    Failure,
    FailureCode,
    Hello,
    Outputs,
    OutputTag,
    Produced,
    Read,
    Reply,
    Segments,
    Share,
    Shared,
    Sync,
    Tag,
    TellSegments,
    Template,
    Welcome,
    encode_reply,
    frame,
    read_frame,
)

from forebay.toolkit.planner.calls import HALVES

KIND, MODEL = "cuda", "null"
"""It stands for a GPU, so that programs take the ways that they take on one: fused attention for instance."""
MEMORY_BYTES = 1 << 50
"""More than any step takes that is planned whole: a batch for a thousand devices."""
UNKNOWN = "the null device of `forebay plan` computes nothing, so it cannot tell the sizes of this operator's result"
TRUTHS = {"aten::equal": True, "aten::allclose": True, "aten::is_nonzero": False}
"""Zeros are equal to each other."""
BY_SCORES, FLASH, EFFICIENT = 0, 1, 2
"""PyTorch's numbers of ways to compute attention. A GPU takes the second for half precision without a mask. For all else it takes the
third, or the first where there are fewer heads of keys than of queries (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp)."""


class NullDevice:
    """Serves one connection. ``note`` gets each frame's body with what it says, and tells whether to go on."""

    def __init__(self, ticket: bytes, note: Callable[[bytes, list[Event]], bool]) -> None:
        self._ticket = ticket
        self._note = note
        self._reader = StepReader()
        self._failures = 0

    def serve(self, peer: socket.socket) -> bool:
        """Until ``note`` has enough, or the program ends its stream: then False. Raises WireError for what is no command stream."""
        while (body := read_frame(peer)) is not None:
            events = self._reader.read(body)
            for event in events:
                reply = self._answer(event)
                if reply is not None:
                    peer.sendall(frame(encode_reply(reply)))
            if not self._note(body, events):
                return True
        return False

    def _answer(self, event: Event) -> Reply | None:
        match event:
            case Hello():
                return Welcome(event.version, event.torch, KIND, MODEL, MEMORY_BYTES, "nothing is computed here")
            case Read():
                return Data(event.request, 0, bytes(event.bytes))
            case Sync():
                return Done(event.request, 0)
            case Share():
                return Shared(event.request, 0)
            case TellSegments():
                return Segments(event.request, ())
            case Ask():
                return self._told(event)
        return None

    def _told(self, ask: Ask) -> Reply:
        template = self._reader.template(ask.template)
        operator = self._reader.operators[template.op].name
        if operator in TRUTHS:
            return Outputs(ask.request, (Produced(OutputTag.BOOL, value=TRUTHS[operator]),))
        if operator == "aten::_fused_sdp_choice":
            return Outputs(ask.request, (Produced(OutputTag.INT, value=_attention(template)),))
        self._failures += 1
        return Failure(ask.request, self._failures, FailureCode.UNSUPPORTED, 0, operator, UNKNOWN)


def _attention(template: Template) -> int:
    query, key, mask = template.arguments[0].geometry, template.arguments[1].geometry, template.arguments[3]
    if query is None or key is None:
        return EFFICIENT
    if query.dtype in HALVES and mask.tag == Tag.NONE:
        return FLASH
    return EFFICIENT if query.sizes[1:2] == key.sizes[1:2] else BY_SCORES
