"""Fills the table of docs/reference/gpu-figures.md from the parts' JSON files: ``PYTHONPATH=bench python -m gpu.table [FOLDER]``.

Rows are those of ``figures.py``; what was not measured says so. A rehearsal's figures are refused.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from gpu.__main__ import RESULTS
from gpu.checks import shown
from gpu.figures import FIGURES, PARTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "gpu-figures.md"
BEGIN, END = "<!-- figures of a GPU: begin -->", "<!-- figures of a GPU: end -->"
UNMEASURED = "not measured yet"
VERDICTS = {"passed": "met", "failed": "missed", "measured": "", "skipped": "skipped"}


class TableError(Exception):
    """Why the table cannot be filled; the message is a sentence."""


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """The parts' files that are there, by part. Raises TableError."""
    parts = {}
    for part in PARTS:
        path = folder / f"{part}.json"
        if path.exists():
            parts[part] = json.loads(path.read_text(encoding="utf-8"))
            if parts[part]["rehearsal"]:
                raise TableError(f"{path} is of a rehearsal on {parts[part]['model']}, whose figures say nothing of a GPU")
    return parts


def table(parts: dict[str, dict[str, Any]]) -> str:
    """Where the figures come from, and a row for each, as Markdown."""
    sources = sorted({f"{found['model']}, PyTorch {found['torch']}" for found in parts.values()})
    checks = {check["name"]: check for found in parts.values() for check in found["checks"]}
    unknown = sorted(set(checks) - set(FIGURES))
    if unknown:
        raise TableError(f"these are not in the list of figures: {', '.join(unknown)}")
    lines = [f"Measured on: {'; '.join(sources)}." if sources else "Not measured yet: no GPU was at hand.", ""]
    lines += ["| part | figure | value | bar | |", "|---|---|---|---|---|"]
    lines += [_row(name, checks.get(name)) for name in FIGURES]
    return "\n".join(lines)


def _row(name: str, check: dict[str, Any] | None) -> str:
    figure = FIGURES[name]
    value, verdict = UNMEASURED, ""
    if check is not None:
        verdict = VERDICTS[check["status"]]
        value = f"{shown(check['value'])} {figure.unit}".strip()
        if check["status"] == "skipped" or check["value"] is None:
            verdict = f"{verdict}: {check['note']}".replace("|", "\\|")
    return f"| {figure.part} | {figure.words} | {value} | {f'{figure.bar} {figure.unit}'.strip() if figure.bar else ''} | {verdict} |"


def filled(page: str, content: str) -> str:
    """The page with this between its marks. Raises TableError where it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise TableError(f"the page has no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{content}\n\n{END}{after}"


def main() -> int:
    """The exit status: 1 where the page stays as it was."""
    parser = argparse.ArgumentParser(prog="python -m gpu.table", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=RESULTS, help="where the parts' files are (default: bench/results/gpu)")
    folder = parser.parse_args().folder
    try:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), table(read(folder))), encoding="utf-8")
    except TableError as error:
        print(f"python -m gpu.table: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
