"""The vendor's libraries that a build of PyTorch with CUDA brings: none is used here, the worker's device has its own."""

from __future__ import annotations

from typing import Any

import torch


def install() -> None:
    """Makes PyTorch's Python code see what it sees in a build without them."""
    core: Any = torch._C
    core._has_cudnn = core._has_cusparselt = core._has_magma = False
    cudnn: Any = torch.backends.cudnn
    cusparselt: Any = torch.backends.cusparselt
    cudnn.version = cusparselt.version = cusparselt.get_max_alg_id = lambda: None
    # Recurrent layers ask whether their weights go in one block; the worker's kernels take them as they are.
    cudnn.is_acceptable = lambda tensor: False
