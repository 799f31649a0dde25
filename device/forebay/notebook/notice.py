"""What is shown below a cell, as a display's data: text for any front end, HTML for those that can. Pure."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from forebay.journal import Entry
from forebay.notebook import amounts
from forebay.notebook.texts import Texts

if TYPE_CHECKING:
    from forebay_wire.messages import Queued

Bundle = dict[str, str]
STYLE = "font-size: 85%; opacity: 0.75; font-family: var(--jp-ui-font-family, sans-serif)"
OPENING = ("starting", "restoring")


def used(entry: Entry, texts: Texts) -> Bundle:
    """What a cell used, or that its device still computes."""
    waited = amounts.seconds(entry.waited_ns)
    if entry.open:
        return _bundle(texts("line_open", waited=waited, flavor=entry.flavor), "forebay-used")
    cost, device = amounts.cost(entry.cost, texts), amounts.seconds(entry.device_ns)
    return _bundle(texts("line", device=device, waited=waited, cost=cost, flavor=entry.flavor), "forebay-used")


def waiting(flavor: str, queued: Queued, texts: Texts) -> Bundle:
    """The place in the line (position 0: nobody knows), why, and about how long."""
    key = "waiting"
    if queued.position and queued.code not in OPENING:
        key = "waiting_next" if queued.position == 1 else "waiting_place"
    text = texts(key, flavor=flavor, position=queued.position, reason=queued.reason)
    if queued.estimate_seconds is not None:
        text += " " + texts("estimate", time=amounts.about(queued.estimate_seconds, texts))
    return _bundle(f"forebay: {text}", "forebay-waiting")


def outcome(word: str, waited_seconds: float, texts: Texts) -> Bundle:
    """How a wait ended that led to nothing."""
    return _bundle(f"forebay: {texts('outcome', outcome=texts.word(word), seconds=f'{waited_seconds:.1f}')}", "forebay-waiting")


def nothing() -> Bundle:
    """In the place of what is over; the extension takes the room away, too."""
    return {"text/plain": "", "text/html": '<div class="forebay-over" hidden></div>'}


def _bundle(text: str, kind: str) -> Bundle:
    return {"text/plain": text, "text/html": f'<div class="forebay-line {kind}" role="status" style="{STYLE}">{escape(text)}</div>'}
