"""The reference page lists every setting."""

from __future__ import annotations

import re
from pathlib import Path

from forebay_pool.settings import DeviceGroup, Settings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "pool.md").read_text()


def test_every_setting_is_on_the_page_with_its_meaning() -> None:
    for model in (Settings, DeviceGroup):
        for name, field in model.model_fields.items():
            assert re.search(rf"\| `{name}` \| .* \| {re.escape(field.description or '?')} \|", PAGE), name
