"""The loop of a task that looks for work, and rests where there is none or another service does it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from forebay_billing.errors import BillingError
from forebay_billing.tasks.election import FOLLOW_SECONDS, Leads, always, rest


async def run_until_stopped(
    step: Callable[[], Awaitable[int]], stop: asyncio.Event, pause_seconds: float, log: logging.Logger, name: str, leads: Leads = always
) -> None:
    """Steps until ``stop`` is set: again at once where a step found work, else after a pause. One that fails is logged and tried again.

    While another service does the tasks nothing is stepped.
    """
    while not stop.is_set():
        if not leads():
            await rest(stop, FOLLOW_SECONDS)
            continue
        try:
            if await step():
                continue
        except BillingError as error:
            log.warning("a step failed and is tried again", extra={"action": f"{name}.step.failed", "error": str(error)})
        except Exception:
            log.exception("a step failed and is tried again", extra={"action": f"{name}.step.failed"})
        await rest(stop, pause_seconds)
