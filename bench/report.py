"""What every benchmark prints and writes: a table of figures, and the same as JSON under ``bench/results``."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
SKIPPED = 77
"""Exit status of a benchmark that lacks something from outside of the repository, as Automake has it."""


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    return {"machine": platform.machine(), "system": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count()}


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of the values lie, by linear interpolation."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median_ns(repeat: int, count: int, call: Callable[[], object]) -> float:
    """Median over ``repeat`` blocks of the mean time of a call, in ns, each block of ``count`` calls."""
    blocks = []
    for _ in range(repeat):
        start = perf_counter_ns()
        for _ in range(count):
            call()
        blocks.append((perf_counter_ns() - start) / count)
    return statistics.median(blocks)


def report(name: str, rows: Sequence[dict[str, Any]], **facts: Any) -> None:
    """Prints ``rows`` (all with the same keys) as a table and writes them to ``bench/results/<name>.json``."""
    columns = list(rows[0])
    cells = [[_text(row[column]) for column in columns] for row in rows]
    widths = [max(len(column), *(len(line[index]) for line in cells)) for index, column in enumerate(columns)]
    for line in [columns, ["-" * width for width in widths], *cells]:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    for key, value in facts.items():
        print(f"{key}: {_text(value)}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    content = {"benchmark": name, "rows": list(rows), **facts, "taken_on": machine()}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
