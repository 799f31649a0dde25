"""``docs/reference/billing.md`` names every setting and error, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from forebay_billing import errors
from forebay_billing.settings import Settings

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "billing.md").read_text(encoding="utf-8")


def first_cells(section: str) -> list[str]:
    """What stands in backticks in the first column of a section's table."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [name for row in text.splitlines() for name in re.findall(r"`([^`]+)`", row.split("|")[1] if row.startswith("|") else "")]


def test_every_setting_is_described_with_its_default() -> None:
    assert first_cells("Settings") == list(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |"))
        assert f"`FOREBAY_BILLING_{name.upper()}`" in row
        if field.default and not isinstance(field.default, dict | tuple):
            assert f"`{field.default}`" in row


def test_every_error_is_described_with_its_status() -> None:
    described = {
        (int(row.split("|")[1]), code)
        for row in PAGE.splitlines()
        if re.match(r"\| [45]\d\d \|", row)
        for code in re.findall(r"`([^`]+)`", row.split("|")[2])
    }
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.BillingError)]
    assert described == {(kind.status, kind.code) for kind in kinds}
