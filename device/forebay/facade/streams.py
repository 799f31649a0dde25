"""Streams and events. A virtual device executes in the order of recording, so all its streams are the same queue."""

from __future__ import annotations

import importlib
import itertools
import threading
import time
from typing import Any

import torch

from forebay import _C
from forebay.errors import NotOnVirtualDevice

CUDA = 1
"""c10::DeviceType::CUDA."""
Place = tuple[int, int, int]
"""Stream id, device index, device type."""

_stream_ids = itertools.count(1)
_current = threading.local()


class StreamBase(torch.Stream):
    """Base of ``torch.cuda.Stream``."""

    priority: int

    def __new__(
        cls, priority: int = 0, stream_id: int | None = None, device_index: int | None = None, device_type: int = CUDA, **other: Any
    ) -> StreamBase:
        if "stream_ptr" in other:
            raise NotOnVirtualDevice(
                "torch.cuda.ExternalStream", "a stream of another library is on a physical GPU; use torch.cuda.Stream()."
            )
        number = next(_stream_ids) if stream_id is None else stream_id
        stream = super().__new__(
            cls, stream_id=number, device_index=_C.current_device() if device_index is None else device_index, device_type=device_type
        )
        stream.priority = priority
        return stream

    @property
    def cuda_stream(self) -> int:
        """A number that tells streams apart; no library can use it as a handle."""
        return self.stream_id

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Lowest and highest: priorities mean nothing in one queue."""
        return (0, 0)

    def query(self) -> bool:
        """Waits for the recorded work, and is then True: there is no asking without waiting."""
        _C.synchronize(self.device_index)
        return True

    def synchronize(self) -> None:
        """Waits for the recorded work of all streams of the device, since they are one queue."""
        _C.synchronize(self.device_index)

    def __enter__(self) -> StreamBase:
        entered = getattr(_current, "entered", [])
        entered.append((_C.current_device(), _current_stream(self.device_index)))
        _current.entered = entered
        _set_stream(self.stream_id, self.device_index, self.device_type)
        return self

    def __exit__(self, *exception: object) -> None:
        device, place = _current.entered.pop()
        _set_stream(*place)
        _C.set_device(device)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, torch.Stream) and (self.stream_id, self.device) == (other.stream_id, other.device)

    __hash__ = torch.Stream.__hash__


class EventBase(torch.Event):
    """Base of ``torch.cuda.Event``. One that measures time waits for the work before it when it is recorded."""

    cuda_event = 0

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False) -> EventBase:
        if interprocess:
            raise NotOnVirtualDevice("torch.cuda.Event(interprocess=True)", "another process has another virtual device.")
        event = super().__new__(cls, device="cuda", enable_timing=enable_timing)
        event._timing = enable_timing
        event._recorded_ns = event._device = None
        return event

    _timing: bool
    _recorded_ns: int | None
    _device: int | None

    def record(self, stream: torch.Stream | None = None) -> None:
        """Remembers this place in the queue."""
        self._device = _C.current_device() if stream is None else stream.device_index
        if self._timing:
            _C.synchronize(self._device)
        self._recorded_ns = time.monotonic_ns()

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Nothing to do: later work comes later in the queue."""

    def query(self) -> bool:
        """Whether the work before the event is done; waits for it."""
        if self._device is not None:
            _C.synchronize(self._device)
        return True

    def synchronize(self) -> None:
        """Waits for the work before the event, and for what was recorded since."""
        if self._device is not None:
            _C.synchronize(self._device)

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds between the two records, the device's work and its way there included."""
        if not (self._timing and end_event._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._recorded_ns is None or end_event._recorded_ns is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return float((end_event._recorded_ns - self._recorded_ns) / 1e6)

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> EventBase:
        raise NotOnVirtualDevice("torch.cuda.Event.from_ipc_handle", "another process has another virtual device.")

    def ipc_handle(self) -> bytes:
        raise NotOnVirtualDevice("torch.cuda.Event.ipc_handle", "another process has another virtual device.")


def _current_stream(device_index: int) -> Place:
    index = _C.current_device() if device_index < 0 else device_index
    current: Place = getattr(_current, "streams", {}).get(index, (0, index, CUDA))
    return current


def _set_stream(stream_id: int, device_index: int, device_type: int) -> None:
    """Makes it the device's current stream, and the device the current one, as CUDA does."""
    _C.set_device(device_index)
    _current.streams = getattr(_current, "streams", {}) | {device_index: (stream_id, device_index, device_type)}


def install() -> None:
    """Makes ``torch.cuda.streams`` anew on these bases, as it would be in a CUDA build."""
    core: Any = torch._C
    core._CudaStreamBase, core._CudaEventBase = StreamBase, EventBase
    core._cuda_getCurrentStream = _current_stream
    core._cuda_getDefaultStream = lambda device_index: (0, _C.current_device() if device_index < 0 else device_index, CUDA)
    core._cuda_getCurrentRawStream = lambda device_index: _current_stream(device_index)[0]
    core._cuda_setStream = _set_stream
    module: Any = importlib.reload(torch.cuda.streams)
    for name in ("Stream", "Event", "ExternalStream"):
        setattr(torch.cuda, name, getattr(module, name))
