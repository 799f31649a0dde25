"""What this process has of virtual devices: :mod:`forebay.activation` sets it, and what shows or chooses them reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.virtual_device import VirtualDevices

active = False
installed: VirtualDevices | None = None
"""The devices of this process, once PyTorch has them."""
failure: str | None = None
"""Why the virtual device is off although FOREBAY_URL is set."""
