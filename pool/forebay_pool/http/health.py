"""``metrics`` and ``health``."""

from __future__ import annotations

from typing import Any

from forebay_service.handler import HealthHandler, MetricsHandler
from prometheus_client import generate_latest

from forebay_pool.http.handler import Api


class MetricsPage(Api, MetricsHandler):
    """``GET metrics``."""

    async def exposition(self) -> bytes:
        await self.context.count_outbox()
        return generate_latest(self.shell.metrics.registry)


class Health(Api, HealthHandler):
    """``GET health``."""

    async def state(self) -> dict[str, Any]:
        return {"role": "leader"}
