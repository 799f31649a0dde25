"""How long a wait lasts, as a person would say it: the words of the pages. Notebooks and commands have the same (`forebay.waiting`)."""

from __future__ import annotations

import math

from forebay_service.languages import Text


def about(seconds: float) -> Text:
    """As a part of a sentence."""
    minutes = seconds / 60
    if seconds <= 5:
        return Text("a few seconds")
    if seconds <= 50:
        return Text("about %(count)s s", count=10 * math.ceil(seconds / 10))
    if minutes < 1.5:
        return Text("about a minute")
    if minutes < 57.5:
        count = math.floor(minutes + 0.5) if minutes < 12.5 else 5 * math.floor(minutes / 5 + 0.5)
        return Text("about %(count)s min", count=count)
    return Text("about an hour") if minutes < 90 else Text("about %(count)s h", count=math.floor(minutes / 60 + 0.5))
