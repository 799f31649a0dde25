"""What ``import torch`` runs, through the entry point group ``torch.backends``."""

from __future__ import annotations

import os
import sys

active = False
failure: str | None = None
"""Why the virtual device is off although FOREBAY_URL is set."""


def activate() -> None:
    """Makes ``cuda:0``, ``cuda:1`` … virtual devices if FOREBAY_URL is set. Never raises: an error is one line on standard error."""
    global active, failure
    if active or not os.environ.get("FOREBAY_URL", "").strip():
        return
    try:
        _activate()
        active = True
    except Exception as error:
        failure = str(error)
        sys.stderr.write(f"forebay: the virtual device is off: {error} Run `forebay doctor` to check each step.\n")


def _activate() -> None:
    import torch

    from forebay.errors import ForebayError
    from forebay.service import check_url, configured

    check_url(configured() or "")
    if hasattr(torch._C, "_cuda_getDeviceCount"):
        raise ForebayError(f"torch {torch.__version__} is a build with CUDA of its own; install the CPU build of torch.")
    try:
        from forebay import _C  # noqa: F401 its absence is told apart from other errors
    except ImportError as error:
        raise ForebayError(f"the extension forebay._C cannot be loaded ({error}); build it again for torch {torch.__version__}.") from error
    from forebay import facade
    from forebay.devices import wanted
    from forebay.virtual_device import VirtualDevices

    devices = VirtualDevices(wanted())
    devices.start()
    facade.install(devices)
