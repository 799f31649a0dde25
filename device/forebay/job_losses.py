"""What the runner of a job is told: why its program stops, so that it may be run again."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from forebay.errors import ForebayError, SessionEnded
from forebay.service import BUDGET, LOSS_VARIABLE

BY_PEOPLE = ("ended_by_user", "ended_by_operator")
"""Causes of a session's end that somebody wanted."""


def tell_loss(error: ForebayError) -> None:
    """Says to the runner of a job, if this is one, that it lost its tensors by no fault of its own, so that it may be run again."""
    if isinstance(error, SessionEnded) and (error.cause is None or error.cause.code not in BY_PEOPLE):
        tell_runner(str(error))


def tell_runner(what: str) -> None:
    """What stops this job's program, after a line BUDGET where it is that."""
    file = os.environ.get(LOSS_VARIABLE)
    if file:
        with contextlib.suppress(OSError):
            Path(file).write_text(what, encoding="utf-8")


def forget_budget() -> None:
    """There is one again."""
    file = os.environ.get(LOSS_VARIABLE)
    if file:
        with contextlib.suppress(OSError):
            if Path(file).read_text(encoding="utf-8").startswith(f"{BUDGET}\n"):
                Path(file).write_text("", encoding="utf-8")
