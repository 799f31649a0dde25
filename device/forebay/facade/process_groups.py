"""``backend="nccl"`` of ``torch.distributed``: a process group whose collectives the workers carry out among themselves."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch

from forebay import _C

NCCL_VERSION = (2, 27, 5)
"""What programs are told: they ask for it to know which types and calls there are."""
TIMEOUT = timedelta(minutes=10)
"""PyTorch's default for NCCL."""


class Options(_C.ProcessGroupOptions):
    """As ``torch.distributed.ProcessGroupNCCL.Options``. What steers NCCL's own streams and channels is kept, and steers nothing."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        super().__init__()
        self.is_high_priority_stream = is_high_priority_stream
        self.config = SimpleNamespace()
        self.split_from = None
        self.split_color = -1


def _version() -> int:
    major, minor, patch = NCCL_VERSION
    return major << 32 | minor << 16 | patch


def install() -> None:
    """Puts the process group where ``torch.distributed`` looks for NCCL's, in builds that have one and in those that have not."""
    group: Any = _C.ProcessGroup
    group.Options = Options
    group.NCCL_CTA_POLICY_DEFAULT, group.NCCL_CTA_POLICY_EFFICIENCY, group.NCCL_CTA_POLICY_ZERO = 0, 1, 2
    group.uid = -1
    group.options = property(lambda self: self._options())
    group._group_start = group._group_end = staticmethod(lambda: None)
    group._add_ephemeral_timeout = lambda self, timeout: None
    group._shutdown = group.shutdown
    distributed: Any = torch.distributed
    core: Any = distributed.distributed_c10d
    core.ProcessGroupNCCL = distributed.ProcessGroupNCCL = group
    core._NCCL_AVAILABLE = True
    core.default_pg_nccl_timeout = core.default_pg_nccl_timeout or TIMEOUT
    core_of_torch: Any = torch._C
    core_of_torch._nccl_version = _version
    core_of_torch._nccl_version_suffix = bytes  # none; asked for where a collective raises
