"""What a part found: one check for each figure, printed as it comes and written to the part's JSON file at once."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from gpu.figures import FIGURES, TIMED_UNITS

Status = Literal["passed", "failed", "measured", "skipped"]


@dataclass(frozen=True)
class Check:
    """How a figure came out. ``bar`` is empty, and the status ``measured``, where there is none to judge it by."""

    name: str
    value: float | bool | None
    unit: str
    bar: str
    status: Status
    note: str = ""

    def line(self) -> str:
        """As a person reads it."""
        words = " ".join(word for word in (shown(self.value), self.unit) if word)
        bar = f" (bar {self.bar})" if self.bar and self.unit else ""
        return f"  {self.status:8} {self.name.partition('/')[2]}: {words}{bar}{f'; {self.note}' if self.note else ''}"


def shown(value: float | bool | None) -> str:
    """A value as people read it."""
    if value is None:
        return "-"
    return ("yes" if value else "no") if isinstance(value, bool) else f"{value:.4g}"


class OutOfTime(Exception):
    """A part's time is over."""


class Report:
    """Collects a part's checks. ``judged`` is false in a rehearsal: times are then measured and held against nothing."""

    def __init__(self, part: str, folder: Path, seconds_max: float, facts: dict[str, Any], judged: bool = True) -> None:
        self.part = part
        self.checks: dict[str, Check] = {}
        self.judged = judged
        self._facts = facts
        self._file = folder / f"{part}.json"
        self._began = time.monotonic()
        self._seconds_max = seconds_max
        folder.mkdir(parents=True, exist_ok=True)
        self._write()

    @property
    def seconds_left(self) -> float:
        return self._seconds_max - (time.monotonic() - self._began)

    def need(self, seconds: float, what: str) -> None:
        """Raises OutOfTime where so much is not left."""
        if self.seconds_left < seconds:
            raise OutOfTime(f"{what} would take about {seconds:.0f} s, and {max(0.0, self.seconds_left):.0f} s are left")

    def take(self, words: str, value: float | bool, note: str = "") -> None:
        """A figure came out. Raises KeyError for one that is not in the list."""
        figure = FIGURES[f"{self.part}/{words}"]
        met = figure.met(value) if self.judged or figure.unit not in TIMED_UNITS else None
        status: Status = "measured" if met is None else "passed" if met else "failed"
        self._add(Check(figure.name, value, figure.unit, figure.bar, status, note))

    def skip(self, words: str, why: str) -> None:
        """A figure cannot be had here."""
        figure = FIGURES[f"{self.part}/{words}"]
        self._add(Check(figure.name, None, figure.unit, figure.bar, "skipped", why))

    @contextlib.contextmanager
    def figures(self, *names: str) -> Iterator[None]:
        """What fails inside is noted for those of these figures that did not come out, and the part goes on."""
        try:
            yield
            why: Exception | None = None
        except Exception as error:  # whatever a device does: the next figures are worth having
            why = error
        for name in names:
            if f"{self.part}/{name}" not in self.checks:
                self._fail(name, why)

    def _fail(self, words: str, why: Exception | None) -> None:
        if isinstance(why, OutOfTime):
            self.skip(words, str(why))
            return
        figure = FIGURES[f"{self.part}/{words}"]
        note = "it did not come out" if why is None else f"{type(why).__name__}: {why}"
        self._add(Check(figure.name, None, figure.unit, figure.bar, "failed", note))

    def _add(self, check: Check) -> None:
        self.checks[check.name] = check
        print(check.line(), flush=True)
        self._write()

    def _write(self) -> None:
        content = {"part": self.part, **self._facts, "seconds": round(time.monotonic() - self._began, 1)}
        content["checks"] = [asdict(check) for check in self.checks.values()]
        self._file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @property
    def failures(self) -> int:
        return sum(check.status == "failed" for check in self.checks.values())
