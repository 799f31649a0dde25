"""Devices of a worker's session, by name."""

from __future__ import annotations

TWO_DEVICES = "cpu:0,cpu:0"
"""Between which storages and calls are scattered."""


PAIR = "cpu:0+cpu:0"
"""Where storages and calls go as they do for users."""


def options_of(names: str) -> list[str]:
    """A worker's options for devices that are named with commas, or with plus signs, between them."""
    options = [option for name in names.replace("+", ",").split(",") for option in ("--device", name)]
    return [*options, "--homes", "scatter"] if "," in names else options
