"""A part of a page that may be missing: its rows, or a sentence saying why they are not there."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Generic, TypeVar

from forebay_service.languages import Text

from forebay_dashboards.errors import UpstreamRefused, UpstreamUnavailable

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Section(Generic[T]):
    """``content`` is None exactly when ``problem`` says why."""

    content: T | None
    problem: Text | None = None


async def attempt(question: Awaitable[T], what: Text) -> Section[T]:
    """The answer, or the sentence for a page that goes on without it. ``what`` is what cannot be shown, as a plural noun."""
    try:
        return Section(await question)
    except UpstreamUnavailable as error:
        logger.warning("a section of a page is missing", extra={"action": "section_missing", "what": str(what), "problem": str(error)})
        return Section(
            None,
            Text(
                "%(what)s cannot be shown right now. %(problem)s They come back by themselves; nothing is lost.",
                what=what,
                problem=error.text,
            ),
        )
    except UpstreamRefused as error:
        logger.warning("a section of a page is refused", extra={"action": "section_refused", "what": str(what), "problem": str(error)})
        return Section(None, Text("%(what)s cannot be shown: %(problem)s", what=what, problem=error.text))
