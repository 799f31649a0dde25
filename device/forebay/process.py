"""What this process has of virtual devices: :mod:`forebay.activation` sets it, and what shows or chooses them reads it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.virtual_device import VirtualDevices

active = False
installed: VirtualDevices | None = None
"""The devices of this process, once PyTorch has them."""
failure: str | None = None
"""Why the virtual device is off although FOREBAY_URL is set."""


def sign_in_file() -> str:
    """Where this account's sign-in is kept, if it has one (:mod:`forebay.service.sign_in`)."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(folder, "forebay", "login.json")


def is_signed_in() -> bool:
    """Whether `forebay login` says which pool serves this process: FOREBAY_URL is not set, not even to nothing."""
    return "FOREBAY_URL" not in os.environ and os.path.exists(sign_in_file())
