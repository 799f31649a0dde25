"""Hands to billing what users are to be told of their jobs: in order, and for as long as it takes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

from forebay_pool.billing.outbox import JobWriter
from forebay_pool.errors import BillingRefused, BillingUnavailable, StoreUnavailable
from forebay_pool.store.jobs import JobStore
from forebay_pool.views.jobs import sentence_of

LOOK_SECONDS = 2.0
AWAY_SECONDS = 30.0
"""A billing that does not answer is asked again so late."""

log = logging.getLogger(__name__)


class NoticeSink(Protocol):
    """Who takes notices."""

    async def send_notice(self, body: Mapping[str, Any]) -> None: ...


class JobNotices:
    """The loop that empties the table ``job_notices``. Billing hears each by its key once, so sending twice is safe."""

    def __init__(self, store: JobStore, writer: JobWriter, sink: NoticeSink, source: str) -> None:
        self._store = store
        self._writer = writer
        self._sink = sink
        self._source = source

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS if await self.deliver() else AWAY_SECONDS)

    async def deliver(self) -> bool:
        """Hands over what is there; False where that must be tried again later."""
        try:
            while notices := await asyncio.to_thread(self._store.notices):
                for number, told in notices:
                    await self._send(told)
                    await asyncio.wrap_future(self._writer.call(partial(self._store.noticed, number)))
        except (BillingUnavailable, StoreUnavailable) as error:
            log.warning("notices of jobs wait: %s", error, extra={"action": "job_notices_wait"})
            return False
        return True

    async def _send(self, told: Mapping[str, Any]) -> None:
        """What billing refuses, such as more notices than a user gets in an hour, is told of nowhere else."""
        try:
            await self._sink.send_notice(body_of(told, self._source))
        except BillingRefused as error:
            fields = {"action": "job_notice_refused", "job": told["job"], "tenant": told["tenant"], "user": told["user"]}
            log.warning("the user of job %d is not told of it: %s", told["job"], error, extra=fields)


def body_of(told: Mapping[str, Any], source: str) -> dict[str, Any]:
    """What billing takes."""
    values = {name: told[name] for name in ("exit_status", "time_limit_seconds")}
    reason = told["reason"]
    return {
        **{name: told[name] for name in ("tenant", "user", "job", "kind", "label", "seconds", "notify")},
        "key": f"{source}/job-{told['job']}/{told['attempt']}/{told['kind']}"[-128:],
        "why": sentence_of(reason, **values),
        "cause": None if reason is None else {"code": reason, "values": values},
    }
