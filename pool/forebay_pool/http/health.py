"""``metrics``, ``health``, and which release this is."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from forebay_service.handler import HealthHandler, MetricsHandler
from forebay_wire import messages as wire
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

    def troubles(self) -> dict[str, str | None]:
        context = self.context
        unsure = None if self.shell.leads() else "The database does not answer, so that another pool may lead."
        return {"hub": context.authenticator.ill, "database": unsure or context.writer.trouble, "billing": context.billing_trouble()}


class ReleasePage(Api):
    """``GET api/release``: for everybody, as it says nothing of anybody."""

    def get(self) -> None:
        self.write_json({"version": version("forebay-pool"), "protocol": wire.PROTOCOL, "index": self.context.settings.wheels_url})
