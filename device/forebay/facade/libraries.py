"""The vendor's libraries that a build of PyTorch with CUDA brings: none is used here, the worker's device has its own."""

from __future__ import annotations

from typing import Any

import torch

PLANS_MAX = 4096
"""Of Fourier transforms that cuFFT keeps, by default."""


def _keep_plans(cache: Any) -> None:
    """A device's part of ``torch.backends.cuda.cufft_plan_cache``. Its size is kept and steers nothing: plans are the worker's."""
    most: dict[int, int] = {}
    cache.size = property(lambda plans: 0)
    get, put = lambda plans: most.get(plans.device_index, PLANS_MAX), lambda plans, size: most.update({plans.device_index: size})
    cache.max_size = property(get, put)
    cache.clear = lambda plans: None


def install() -> None:
    """Makes PyTorch's Python code see what it sees in a build without them."""
    core: Any = torch._C
    core._has_cudnn = core._has_cusparselt = core._has_magma = False
    _keep_plans(torch.backends.cuda.cuFFTPlanCache)
    cudnn: Any = torch.backends.cudnn
    cusparselt: Any = torch.backends.cusparselt
    cudnn.version = cusparselt.version = cusparselt.get_max_alg_id = lambda: None
    # Recurrent layers ask whether their weights go in one block; the worker's kernels take them as they are.
    cudnn.is_acceptable = lambda tensor: False
