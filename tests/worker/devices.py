"""Devices of a worker's session, by name."""

from __future__ import annotations

TWO_DEVICES = "cpu:0,cpu:0"
"""Between which storages and calls are scattered."""


PAIR = "cpu:0+cpu:0"
"""Where storages and calls go as they do for users."""

STANDIN_PAIR = "standin:0+standin:1"


def pair_of(device: str) -> str:
    """A session's devices, of which this one is the first."""
    return STANDIN_PAIR if device == "standin:0" else f"{device}+{device}"


def options_of(names: str) -> list[str]:
    """A worker's options for devices that are named with commas, or with plus signs, between them."""
    options = [option for name in names.replace("+", ",").split(",") for option in ("--device", name)]
    return [*options, "--homes", "scatter"] if "," in names else options
