"""Graphs of an accelerator, by PyTorch's own (``torch.cuda.CUDAGraph``): what a thread hands the device is recorded, and handed over again.

The executor calls this from the thread that computes (``worker/csrc/device/device_graph.h``).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from forebay_worker.pytorch import HOST_KINDS, SeenDevice, device_module

Draws: TypeAlias = Sequence[tuple[int, int]]
"""Of each random call, its seed and the place in that seed's numbers from which it draws."""


class DeviceGraph:
    """One graph. It keeps memory of its own, which nothing else is given as long as it lives.

    ``module`` is PyTorch's for the kind of device, as ``torch.cuda``; ``stream`` is where graphs are recorded, since none can be on a
    device's default stream.
    """

    def __init__(self, module: Any, device: SeenDevice, stream: Any) -> None:
        self.bytes = 0
        """By how much the device's allocator has grown while it was recorded."""
        self._torch: Any = importlib.import_module("torch")
        self._device = device
        self._stream = stream
        self._default = module.default_generators[device.index]
        self._graph = module.CUDAGraph()
        self._generators: list[Any] = []
        self._next: Iterator[Any] = iter(())
        self._recording = contextlib.ExitStack()

    def begin(self, draws: Draws) -> None:
        """What this thread hands the device is recorded from here on, and not carried out. Raises RuntimeError."""
        self._generators = [self._torch.Generator(self._device.device) for _ in draws]
        self._next = iter(self._generators)
        self._seed(draws)
        for generator in self._generators:
            self._graph.register_generator_state(generator)
        with contextlib.ExitStack() as stack:
            accelerator = self._torch.accelerator
            stack.callback(accelerator.set_stream, accelerator.current_stream(self._device.index))
            # A graph takes the default generator for its own, and one that fails leaves it of no use: so it takes another.
            stack.callback(self._default.graphsafe_set_state, self._default.graphsafe_get_state())
            self._default.graphsafe_set_state(self._torch.Generator(self._device.device))
            self.bytes = -int(accelerator.memory_reserved(self._device.index))
            accelerator.set_stream(self._stream)
            self._graph.capture_begin(capture_error_mode="thread_local")
            self._recording = stack.pop_all()

    def draw(self) -> None:
        """The next random call draws from the next generator."""
        self._default.graphsafe_set_state(next(self._next))

    def end(self) -> None:
        """Raises RuntimeError where something could not be recorded."""
        with self._recording:
            try:
                self._graph.capture_end()
            except RuntimeError:
                self._end_allocations()
                raise
        self.bytes += int(self._torch.accelerator.memory_reserved(self._device.index))

    def _end_allocations(self) -> None:
        """PyTorch leaves its allocator in the middle of a recording that failed, and then gives no memory back."""
        end = getattr(self._torch._C, f"_{self._device.kind}_endAllocateToPool", None)
        if end is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                end(self._device.index, self._graph.pool())

    def replay(self, draws: Draws) -> None:
        """Hands the device what was recorded, on this thread's stream. Raises RuntimeError."""
        self._seed(draws)
        self._graph.replay()

    def _seed(self, draws: Draws) -> None:
        for generator, (seed, place) in zip(self._generators, draws, strict=True):
            generator.manual_seed(seed)
            generator.set_offset(place)


def maker_of(device: SeenDevice) -> Callable[[], DeviceGraph] | None:
    """What makes graphs of the device; None where its back end has none, and for ROCm, on which they were never tried."""
    if device.kind in (*HOST_KINDS, "hip"):
        return None
    module = device_module(device.kind)
    if not hasattr(module, "CUDAGraph"):
        return None
    stream = importlib.import_module("torch").Stream(device=device.device)
    return functools.partial(DeviceGraph, module, device, stream)
