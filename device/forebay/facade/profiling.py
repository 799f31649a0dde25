"""``torch.profiler`` sees both sides of the device: the operators as they are recorded, and when the worker carried them out.

PyTorch's tracer of CUDA wants a driver, so it is never asked for. The workers' times are given to Kineto, which writes PyTorch's
traces, by an extension of its own (``forebay._kineto``).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import profiler
from torch.profiler import ProfilerActivity

from forebay import _C

CUDA = ProfilerActivity.CUDA


@functools.cache
def _kineto() -> Any:
    """What gives Kineto the workers' times; None on a build of PyTorch whose Kineto cannot take them."""
    try:
        extension = importlib.import_module("forebay._kineto")
    except ImportError:
        return None
    extension.install(_C.device_times())
    return extension


def install() -> None:
    """Makes ``ProfilerActivity.CUDA``, which much code asks for, the times of the virtual devices."""
    _replace(torch.autograd, "_supported_activities", _with_cuda)
    _replace(profiler, "_supported_activities", _with_cuda)
    _replace(profiler.profile, "__init__", _begin_without_driver)
    _replace(profiler.profile, "_prepare_trace", _prepare_with_times)


def _replace(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    theirs = getattr(owner, name)
    setattr(owner, name, functools.wraps(theirs)(make(theirs)))


def _with_cuda(supported: Callable[[], set[ProfilerActivity]]) -> Callable[[], set[ProfilerActivity]]:
    return lambda: {*supported(), CUDA}


def _begin_without_driver(begin: Callable[..., None]) -> Callable[..., None]:
    def begin_without_driver(
        self: profiler.profile,
        enabled: bool = True,
        *,
        use_device: str | None = None,
        use_cuda: bool = False,
        use_kineto: bool = False,
        use_cpu: bool = True,
        **other: Any,
    ) -> None:
        if use_cuda or use_device == "cuda":
            on_device = None if _kineto() is None else "cuda"
            begin(self, enabled, use_device=on_device, use_kineto=True, use_cpu=True, **other)
            if enabled:
                self.kineto_activities.discard(CUDA)
        else:
            begin(self, enabled, use_device=use_device, use_kineto=use_kineto, use_cpu=use_cpu, **other)

    return begin_without_driver


def _prepare_with_times(prepare: Callable[..., None]) -> Callable[..., None]:
    def prepare_with_times(self: profiler.profile) -> None:
        if self.use_device != "cuda":
            return prepare(self)
        kineto = _kineto()
        kineto.want(True)
        try:
            prepare(self)
        finally:
            kineto.want(False)

    return prepare_with_times
