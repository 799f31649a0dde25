"""What is shown below a cell, as a display's data: text for any front end, HTML for those that can. Pure."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from forebay.journal import Entry
from forebay.notebook import amounts
from forebay.texts import Texts
from forebay.waiting import in_words

if TYPE_CHECKING:
    from forebay_wire.messages import Queued

    from forebay.gang_work import GangWork
    from forebay.waiting import Left

Bundle = dict[str, str]
STYLE = "font-size: 85%; opacity: 0.75; font-family: var(--jp-ui-font-family, sans-serif)"
OPENING = ("starting", "restoring")


CAUSES_MAX = 3
"""A line names so many of the operators that ran on one device alone."""


def used(entry: Entry, texts: Texts) -> Bundle:
    """What a cell used, that its device still computes, or that nobody tells; and where one of several devices did most of it alone."""
    waited = amounts.seconds(entry.waited_ns)
    if entry.open or entry.unheard:
        key = "line_unheard" if entry.unheard else "line_away" if entry.away else "line_open"
        return _bundle(texts(key, waited=waited, flavor=entry.flavor), "forebay-used")
    cost, device = amounts.cost_of(entry, texts), amounts.seconds(entry.device_ns)
    line = _bundle(texts("line", device=device, waited=waited, cost=cost, flavor=entry.flavor), "forebay-used")
    alone = [_bundle(_alone(gang, texts), "forebay-alone") for gang in entry.gangs if gang.mostly_alone]
    return {kind: "\n".join(part[kind] for part in (line, *alone)) for kind in line}


def _alone(gang: GangWork, texts: Texts) -> str:
    causes = ", ".join(texts.word(cause) for cause in gang.causes(CAUSES_MAX))
    return texts("line_alone", percent=gang.alone_percent, device=gang.device, devices=gang.devices, causes=causes)


def waiting(flavor: str, queued: Queued, left: Left | None, texts: Texts) -> Bundle:
    """The place in the line (position 0: nobody knows), why, and about how long yet."""
    key = "waiting"
    if queued.position and queued.code not in OPENING:
        key = "waiting_next" if queued.position == 1 else "waiting_place"
    text = texts(key, flavor=flavor, position=queued.position, reason=texts.reason(queued))
    if left is not None:
        text += " " + in_words(left, texts)
    return _bundle(f"forebay: {text}", "forebay-waiting")


def outcome(word: str, waited_seconds: float, texts: Texts) -> Bundle:
    """How a wait ended that led to nothing."""
    return _bundle(f"forebay: {texts('outcome', outcome=texts.word(word), seconds=f'{waited_seconds:.1f}')}", "forebay-waiting")


def nothing() -> Bundle:
    """In the place of what is over; the extension takes the room away, too."""
    return {"text/plain": "", "text/html": '<div class="forebay-over" hidden></div>'}


def _bundle(text: str, kind: str) -> Bundle:
    return {"text/plain": text, "text/html": f'<div class="forebay-line {kind}" role="status" style="{STYLE}">{escape(text)}</div>'}
