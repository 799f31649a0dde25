"""One run of code in a kernel, as the kernel's messages tell of it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any, Literal

from forebay.toolkit.agents.kept_output import KeptOutput

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
NOTES_MAX = 100
"""Displays that may be changed later; the oldest are forgotten."""

Status = Literal["running", "ok", "error", "interrupted", "timed_out", "budget_used_up", "cancelled", "died"]
StopReason = Literal["timed_out", "budget_used_up", "cancelled", "interrupted"]


class Execution:
    """Output in the order in which it came, and how the run ended."""

    def __init__(self, number: int, cell_id: str, experiment: str) -> None:
        self.number = number
        self.cell_id = cell_id
        """By which billing tells what this run cost."""
        self.experiment = experiment
        self.output = KeptOutput()
        self.notes: dict[str, str] = {}
        """By display id: texts that are changed while and after the run, as Forebay's line about device time and cost."""
        self.error: str | None = None
        """Its name and message."""
        self.stopped: StopReason | None = None
        """Why it was interrupted."""
        self.why: str | None = None
        """What the pool said of that."""
        self._began = time.monotonic()
        self._seconds: float | None = None
        self._died = False
        self._over = asyncio.Event()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began if self._seconds is None else self._seconds

    @property
    def over(self) -> bool:
        return self._over.is_set()

    async def ended(self, seconds: float) -> bool:
        """Waits for its end, for so long at most; whether it has ended."""
        try:
            await asyncio.wait_for(self._over.wait(), seconds)
        except TimeoutError:
            return False
        return True

    @property
    def status(self) -> Status:
        if self._died:
            return "died"
        if self.stopped is not None and (self.error is not None or not self.over or self.stopped == "budget_used_up"):
            return self.stopped  # what was interrupted and yet came to its end, has come to its end
        if not self.over:
            return "running"
        return "ok" if self.error is None else "error"

    def take(self, message: Mapping[str, Any]) -> None:
        """A message of the kernel about this run."""
        content = message["content"]
        match message["msg_type"]:
            case "stream":
                self.output.write(content["text"])
            case "execute_result":
                self.output.write(_plain(content) + "\n")
            case "display_data" | "update_display_data":
                self._display(content)
            case "error":
                self.error = f"{content['ename']}: {content['evalue']}"
                self.output.write(COLOURS.sub("", "\n".join(content["traceback"])) + "\n")
            case "status" if content["execution_state"] == "idle":
                self._finish()

    def _display(self, content: Mapping[str, Any]) -> None:
        name = content.get("transient", {}).get("display_id")
        if name is None:
            self.output.write(_plain(content) + "\n")
            return
        self.notes[name] = _plain(content)
        if len(self.notes) > NOTES_MAX:
            del self.notes[next(iter(self.notes))]

    def die(self) -> None:
        """The kernel has ended in the middle of it."""
        self._died = True
        self._finish()

    def _finish(self) -> None:
        self._seconds = self.seconds
        self._over.set()


def _plain(content: Mapping[str, Any]) -> str:
    """A display as text; of pictures it is what Python calls them."""
    return str(content.get("data", {}).get("text/plain", ""))
