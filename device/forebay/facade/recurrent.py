"""Recurrent layers ask cuDNN whether it takes their weights as one block; here the worker's own kernels take them as they are."""

from __future__ import annotations

import torch


def install() -> None:
    """Answers for cuDNN without the warning that this build of PyTorch lacks it."""
    torch.backends.cudnn.is_acceptable = lambda tensor: False
