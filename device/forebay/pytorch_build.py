"""The installed PyTorch: whether this package was built for it, and whether it sees GPUs of this host."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import torch
from forebay_wire.torch_builds import release, releases_in

from forebay import monitors
from forebay.errors import ForebayError

BUILT_FOR = re.compile(rb"forebay-built-for-torch=([0-9][^\0]*)")
"""What ``csrc/module.cpp`` leaves in the extension."""


def check_extension() -> None:
    """Raises ForebayError where the extension is missing, or was built for another release of torch; does not load it."""
    spec = importlib.util.find_spec("forebay._C")
    if spec is None or spec.origin is None:
        others = releases()
        if others and release(torch.__version__) not in others:
            raise ForebayError(
                f"this forebay was built for torch {', '.join(others)}, and torch {torch.__version__} is installed; install one of those, "
                "or a forebay that was built for this one."
            )
        raise ForebayError(f"the extension forebay._C cannot be loaded (there is none); build forebay for torch {torch.__version__}.")
    found = BUILT_FOR.search(Path(spec.origin).read_bytes())
    built_for = found[1].decode() if found else "of an unknown release"
    if release(built_for) != release(torch.__version__):
        raise ForebayError(
            f"this forebay was built for torch {built_for}, and torch {torch.__version__} is installed; build forebay again for this one, "
            "or install the other."
        )


def releases() -> list[str]:
    """The releases of torch that this forebay was built for, oldest first."""
    return releases_in([str(Path(__file__).parent)])


def load_late_kernels() -> None:
    """Loads what ``import torch`` would load after us: kernels in Python for GPUs, which must be there when we take their place."""
    if importlib.util.find_spec("torch._native") is not None:
        importlib.import_module("torch._native")


def gpus_seen() -> int:
    """How many GPUs of this host this build of torch would use. Asks their management library, and starts nothing on them."""
    if (torch.version.cuda is None and torch.version.hip is None) or monitors.is_shadowed():
        return 0
    cuda: Any = torch.cuda
    count: int = cuda._device_count_amdsmi() if torch.version.hip else cuda._device_count_nvml()
    return max(0, count)
