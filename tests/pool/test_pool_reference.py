"""The reference page lists every setting, endpoint and metric."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forebay_pool.settings import DeviceGroup, Settings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "pool.md").read_text()


def test_every_setting_is_on_the_page_with_its_meaning() -> None:
    for model in (Settings, DeviceGroup):
        for name, field in model.model_fields.items():
            assert re.search(rf"\| `{name}` \| .* \| {re.escape(field.description or '?')} \|", PAGE), name


def test_every_metric_and_endpoint_is_on_the_page(pool: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            for family in running.service.metrics.registry.collect():
                name = family.name + ("_total" if family.type == "counter" else "")
                assert f"`{name}`" in PAGE
            for path, _ in running.service.routes():
                assert path.replace("([^/]+)", "{").replace("(.+)", "{") in re.sub(r"\{\w+\}", "{", PAGE), path

    asyncio.run(scenario())
