"""``torch.compile``: kernels are not generated here, since the make of the physical device is open. The worker optimises what repeats."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch


def install() -> None:
    """Runs what the default backend would compile for the device as it is; graphs on the CPU are compiled as ever."""
    wrapper: Any = torch._TorchCompileInductorWrapper
    compile_graph = wrapper.__call__

    @functools.wraps(compile_graph)
    def compile_for_host(self: Any, model: torch.fx.GraphModule, inputs: Sequence[Any], **settings: Any) -> Callable[..., Any]:
        tensors = [*inputs, *model.parameters(), *model.buffers()]
        if any(isinstance(tensor, torch.Tensor) and tensor.device.type == "cuda" for tensor in tensors):
            return model.forward
        compiled: Callable[..., Any] = compile_graph(self, model, inputs, **settings)
        return compiled

    wrapper.__call__ = compile_for_host
