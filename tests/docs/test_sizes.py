"""Pages that grew before keep to a size at which they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

BYTES_MAX = {"docs/performance.md": 15_000, "CONTRIBUTING.md": 10_000, "docs/glossary.md": 10_000, "README.md": 8_000}


@pytest.mark.parametrize("page", BYTES_MAX)
def test_a_page_keeps_to_its_size(page: str, checkout: Path) -> None:
    size = (checkout / page).stat().st_size
    assert size <= BYTES_MAX[page], f"{page} has {size} bytes: move history to bench/results/history.md, and details to docs/developers"


def test_each_table_of_the_page_on_performance_has_its_command(checkout: Path) -> None:
    sections = (checkout / "docs" / "performance.md").read_text(encoding="utf-8").split("\n## ")[1:]
    without = [section.splitlines()[0] for section in sections if "`" not in section]
    assert len(sections) > 15 and not without
