"""The documentation as tests read it."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Manual:
    """Every Markdown page of the checkout, by its path from the root."""

    pages: dict[str, str]

    @classmethod
    def of(cls, checkout: Path) -> Manual:
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
        names = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True).stdout.split()
        return cls({name: (checkout / name).read_text(encoding="utf-8") for name in sorted(names) if (checkout / name).exists()})

    def shell_lines(self, page: str) -> list[str]:
        """The commands of a page's shell blocks, without comments."""
        blocks = re.findall(r"^```sh\n(.*?)^```", self.pages[page], re.MULTILINE | re.DOTALL)
        lines = (line.split("  #")[0].split(" # ")[0].strip() for block in blocks for line in block.splitlines())
        return [line for line in lines if line and not line.startswith("#")]

    def section(self, page: str, title: str) -> str:
        """What stands under a heading, up to the next one of the same rank or a higher one."""
        found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,2}} |\Z)", self.pages[page], re.MULTILINE | re.DOTALL)
        if found is None:
            pytest.fail(f"{page} has no section {title!r}")
        return found[2]


def cells(table: str, column: int = 0) -> list[str]:
    """What a table's column says, its head left out."""
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.splitlines() if line.startswith("|")]
    return [row[column].strip() for row in rows[2:]]


@pytest.fixture(scope="session")
def checkout() -> Path:
    return CHECKOUT


@pytest.fixture(scope="session")
def manual() -> Manual:
    return Manual.of(CHECKOUT)


@pytest.fixture(scope="session")
def column() -> object:
    """Reads a column of a Markdown table."""
    return cells
