"""Tells people of their own cells and jobs, where each said; a task of the service."""

from __future__ import annotations

import asyncio
import logging

from sqlalchemy import Connection

from forebay_billing.documents.messages import Message, of_notice
from forebay_billing.tasks.delivery import Courier, Outbox
from forebay_billing.tasks.election import Leads, always
from forebay_billing.tasks.loop import run_until_stopped
from forebay_billing.writes import notices
from forebay_billing.writes.notices import NoticeDelivery

log = logging.getLogger(__name__)

STEP_SECONDS = 1.0


def _message(_connection: Connection, parcel: NoticeDelivery, language: str) -> Message:
    return of_notice(parcel.notice, parcel.channel.id, language)


NOTICES = Outbox("notice", notices.CLAIMS, notices.claim, _message)


class Notices:
    """Owns its task, from :meth:`start` on, until :meth:`close`."""

    def __init__(self, courier: Courier) -> None:
        self._courier = courier
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, leads: Leads = always) -> None:
        """Begins to deliver."""
        rounds = run_until_stopped(self.step, self._stop, STEP_SECONDS, log, "notices", leads)
        self._task = asyncio.create_task(rounds, name="billing-notices")

    async def close(self) -> None:
        """Lets what is under way come to its end."""
        self._stop.set()
        if self._task is not None:
            await self._task

    async def step(self) -> int:
        """Delivers what is due; returns how many deliveries were tried."""
        return await self._courier.deliver(NOTICES)
