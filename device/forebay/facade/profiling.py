"""``torch.profiler`` sees the host's side of the device: the operators as they are recorded. No tracer of CUDA is there."""

from __future__ import annotations

import functools
from typing import Any

from torch.autograd import profiler


def install() -> None:
    """Takes ``ProfilerActivity.CUDA``, which much code asks for, as the host's side of it."""
    begin = profiler.profile.__init__

    @functools.wraps(begin)
    def begin_on_host(
        self: profiler.profile, enabled: bool = True, *, use_device: str | None = None, use_cpu: bool = True, **other: Any
    ) -> None:
        on_device = use_device == "cuda"
        begin(self, enabled, use_device=None if on_device else use_device, use_cpu=use_cpu or on_device, **other)

    setattr(profiler.profile, "__init__", begin_on_host)  # noqa: B010 mypy forbids the assignment
