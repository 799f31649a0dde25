"""Devices of a worker's session, by name."""

from __future__ import annotations

TWO_DEVICES = "cpu:0,cpu:0"
"""Between which storages and calls are scattered."""


def options_of(names: str) -> list[str]:
    """A worker's options for devices that are named with commas between them."""
    options = [option for name in names.split(",") for option in ("--device", name)]
    return [*options, "--scatter"] if "," in names else options
