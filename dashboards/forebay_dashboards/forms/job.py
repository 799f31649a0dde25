"""The form of a job or a schedule: its fields as they were typed, and what the pool is asked for."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from forebay_service.languages import Text

from forebay_dashboards.errors import FormError

NOTEBOOK = ".ipynb"
HOURS_MAX = 2_160
HOUR_SECONDS = 3_600


class JobForm:
    """A field that was not sent is empty."""

    def __init__(self, typed: Mapping[str, str]) -> None:
        self._typed = typed

    def __getitem__(self, field: str) -> str:
        return self._typed.get(field, "").strip()

    @property
    def cron(self) -> str:
        """Empty for a job that runs once."""
        return self["cron"]

    @property
    def schedule(self) -> int:
        """The one to be removed. Raises FormError."""
        return _whole(self["remove"], 0, 2**62, Text("Choose a schedule from the list."))

    def body(self, zone: str | None) -> dict[str, Any]:
        """What the pool takes; with a zone, of a schedule. Raises FormError."""
        file = self["file"]
        if not file:
            raise FormError(Text("Type which script or notebook is to run."))
        path = PurePosixPath(file.removeprefix("~/"))
        notebook = path.suffix == NOTEBOOK
        body: dict[str, Any] = {
            "kind": "notebook" if notebook else "script",
            "file": str(path),
            "folder": "" if str(path.parent) == "." else str(path.parent),
            "arguments": self._arguments(),
        }
        body |= {name: self[name] for name in ("flavor", "name", "notify", "environment") if self[name]}
        if self["hours"]:
            problem = Text("A time limit is a whole number of hours, %(most)s at most.", most=f"{HOURS_MAX:,}")
            body["time_limit_seconds"] = HOUR_SECONDS * _whole(self["hours"], 1, HOURS_MAX, problem)
        return body if zone is None else {**body, "cron": self.cron, "zone": zone}

    def _arguments(self) -> list[str]:
        try:
            return shlex.split(self["arguments"])
        except ValueError:
            raise FormError(Text("A quotation mark among the arguments is not closed.")) from None


def _whole(text: str, least: int, most: int, problem: Text) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19 and least <= int(text) <= most):
        raise FormError(problem)
    return int(text)
