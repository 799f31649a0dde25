"""What ``import torch`` runs, through the entry point group ``torch.backends``."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from forebay import process

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.journal import Journal
    from forebay.notebook.presenter import Presenter


def activate() -> None:
    """Makes ``cuda:0``, ``cuda:1`` … virtual devices if FOREBAY_URL is set, or somebody signed in by `forebay login`.

    Never raises: an error is one line on standard error.
    """
    if process.active or not (os.environ.get("FOREBAY_URL", "").strip() or _is_signed_in()):
        return
    try:
        _activate()
        process.active = True
    except Exception as error:
        process.failure = str(error)
        sys.stderr.write(f"forebay: the virtual device is off: {error} Run `forebay doctor` to check each step.\n")


def _is_signed_in() -> bool:
    """Whether `forebay login` says which pool serves this process: FOREBAY_URL is not set, not even to nothing."""
    if "FOREBAY_URL" in os.environ:
        return False
    from forebay.service import sign_in

    return sign_in.place().exists()


def _activate() -> None:
    import torch

    from forebay import pytorch_build
    from forebay.errors import ForebayError
    from forebay.service import check_url, configured

    url = configured() or ""
    check_url(url)
    pytorch_build.check_extension()
    gpus = pytorch_build.gpus_seen()
    try:
        from forebay import _C  # noqa: F401 its absence is told apart from other errors
    except ImportError as error:
        raise ForebayError(f"the extension forebay._C cannot be loaded ({error}); build it again for torch {torch.__version__}.") from error
    try:
        _install()
    except (AttributeError, ImportError, RuntimeError) as error:
        if isinstance(error, ForebayError):
            raise
        raise ForebayError(f"this forebay does not know torch {torch.__version__} ({error}); install torch 2.13.") from error
    if gpus:
        is_set = "FOREBAY_URL" in os.environ
        where, remedy = (f"FOREBAY_URL={url}", "unset FOREBAY_URL") if is_set else (f"the hub of {url}", "set FOREBAY_URL to nothing")
        sys.stderr.write(
            f"forebay: cuda:0 is the virtual device of {where}, not one of this machine's GPUs ({gpus}); "
            f"{remedy} to use those.\n"
        )


def _install() -> None:
    """Takes the CUDA key and fits ``torch.cuda`` to it."""
    from forebay import facade, pytorch_build
    from forebay.devices import wanted
    from forebay.virtual_device import VirtualDevices

    pytorch_build.load_late_kernels()
    devices = VirtualDevices(wanted())
    try:
        devices.start(_presenter, _last_line())
        facade.install(devices)
    except Exception:
        facade.withdraw()
        raise
    process.installed = devices


def _last_line() -> Callable[[Journal, str], None] | None:
    """Shows what the program used, at its end in a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    from forebay.notebook import last_line

    return last_line.show


def _presenter(shell: object) -> Presenter:
    """What shows in a notebook's shell what the devices do."""
    from forebay import notebook

    return notebook.attend(shell)
