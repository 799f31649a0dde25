"""A worker without a pool, for diagnosis: one endless lease, opened by itself, and every event printed as a line of JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from forebay_worker import WorkerError

if TYPE_CHECKING:
    from forebay_worker._executor import Server

IDLE_SECONDS = 1e9
"""Nobody waits for the device, so idleness never ends the lease."""


async def serve(executor: Server, ticket: bytes, limit_bytes: int, heard: Callable[[], None]) -> None:
    """``heard`` is called whenever the executor rings. Returns when the client is gone. Raises WorkerError when the executor failed."""
    rung = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(executor.event_descriptor, rung.set)
    epoch = 1
    executor.assign(ticket, limit_bytes, IDLE_SECONDS)
    executor.open(epoch, limit_bytes)
    tell(event="ready", address=executor.address, certificate=executor.certificate)
    try:
        while True:
            await rung.wait()
            rung.clear()
            events = executor.take_events()  # before anything else is taken: what comes after it rings again
            heard()
            for kind, number, amount, spilled, text in events:
                tell(event=kind, epoch=number, number=amount, spilled=spilled, text=text)
                if kind == "failed":
                    raise WorkerError(text)
                if kind == "client_gone":
                    return
                if kind == "drained":
                    epoch += 1
                    executor.open(epoch, limit_bytes)
    finally:
        loop.remove_reader(executor.event_descriptor)


def tell(**event: str | int) -> None:
    """Prints an event, if anybody still reads."""
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(event), flush=True)
