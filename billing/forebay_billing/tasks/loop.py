"""The loop of a task that looks for work, and rests where there is none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from forebay_billing.errors import BillingError


async def run_until_stopped(
    step: Callable[[], Awaitable[int]], stop: asyncio.Event, pause_seconds: float, log: logging.Logger, name: str
) -> None:
    """Steps until ``stop`` is set: again at once where a step found work, else after a pause. One that fails is logged and tried again."""
    while not stop.is_set():
        try:
            if await step():
                continue
        except BillingError as error:
            log.warning("a step failed and is tried again", extra={"action": f"{name}.step.failed", "error": str(error)})
        except Exception:
            log.exception("a step failed and is tried again", extra={"action": f"{name}.step.failed"})
        try:
            await asyncio.wait_for(stop.wait(), pause_seconds)
        except TimeoutError:
            continue
