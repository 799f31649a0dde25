"""What client, worker and pool say to each other: links (:mod:`forebay_wire.messages`) and command stream (:mod:`forebay_wire.stream`)."""

from __future__ import annotations

from pathlib import Path


def include_dir() -> Path:
    """The folder to put on a C++ compiler's include path for ``<forebay/wire.h>``."""
    return Path(__file__).parent / "include"
