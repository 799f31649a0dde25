"""The C++ half of the virtual device: kernels, guard, hooks and allocator for the CUDA key, and the command stream."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypedDict

import torch
from torch._C._distributed_c10d import Store

class ProcessGroupOptions:
    """Of a process group: ``torch.distributed.Backend.Options``."""

    _timeout: timedelta
    def __init__(self) -> None: ...

class ProcessGroup:
    """``torch.distributed.ProcessGroupNCCL`` of virtual devices."""

    def __init__(self, store: Store, rank: int, size: int, options: ProcessGroupOptions) -> None: ...

class Welcome(TypedDict):
    torch: str
    kind: str
    model: str
    memory_limit: int
    """Bytes."""

class Memory(TypedDict):
    """Of tensors on a virtual device."""

    allocated: int
    """Bytes, now."""
    peak: int
    """Bytes, since the start or :func:`reset_peak_memory`."""
    allocations: int
    """How many storages were ever made."""
    frees: int
    alive: int
    """Storages now."""

class Statistics(TypedDict):
    commands: int
    expected: int
    frames_sent: int
    """Frames of commands; the background sender closes one whenever it finds something recorded."""
    bytes_sent: int
    bytes_received: int
    syncs: int
    waited_ns: int
    bytes_known: int
    """Of uploads that were not sent, because the worker held the same bytes."""
    templates: int
    images: int
    """Of its sessions, that workers have kept."""
    busy_ns: int
    """How long the worker has carried out commands, as it said at the last synchronisation."""

class Segment(TypedDict):
    """Steps that came between two cuts (``docs/wire.md``, SEGMENTS)."""

    identity: int
    """The same for the same steps, in any session."""
    times: int
    """How often it came, since client and worker dropped their steps last."""
    calls: int
    allocations: int
    words: int
    """That its steps bind."""
    varying: int
    """Of them, numbers that came otherwise than the time before."""
    births: int
    """Storages that it makes."""
    frees: int
    """Storages that are freed before its steps."""
    tier: int
    """0: it came once; 1: its steps are known; 2: a library carries it out."""
    why: str
    """Its tier is not higher, in words."""

class Work(TypedDict):
    """Calls, and nanoseconds that the worker of a session's first device spent on them."""

    calls: int
    ns: int

class LoneWork(Work):
    """Of one operator, for one reason (``docs/wire.md``, GANG)."""

    operator: str
    reason: int

class Weights(TypedDict):
    """As ``forebay_wire.gang_work`` has them."""

    operator: str
    sizes: list[int]
    count: int
    bytes: int
    rows_of: int

class Considered(TypedDict):
    layout: int
    step_ns: int
    bytes: int

class Pipeline(TypedDict):
    serves: bool
    parts: int
    step_ns: int
    bytes: int
    stages: list[int]
    rows: int

class GangPlan(TypedDict):
    layout: int
    room_bytes: int
    weights: list[Weights]
    considered: list[Considered]
    steps: int
    step_ns: int
    bytes: list[int]
    pipeline: Pipeline | None

class GangWork(TypedDict):
    """Of a session with several devices: what they did together, and what one did alone."""

    devices: int
    divided: Work
    copies: Work
    alone: list[LoneWork]
    plan: GangPlan | None

class WentBack(TypedDict):
    """``docs/wire.md``, WENT_BACK."""

    changed: int
    storages: list[int]
    resized: int

class Activity(TypedDict):
    """What one profiled stretch of the program did with a device at one source line, or with one operator."""

    device: int
    activity: str
    """``record``, ``lease``, ``item``, ``read``, ``synchronize``, ``ask``, ``upload`` or ``send``."""
    subject: str
    """The operator of ``record``, else the file; empty where no line of the program was there."""
    line: int
    function: str
    count: int
    bytes: int
    ns: int
    """Without other activities that this one contained."""
    longest_ns: int

def take_checkpoint(number: int, is_named: bool, device: int = 0) -> int:
    """Behind all that was recorded; does not wait. Numbers ascend. Storages are newer that have the number returned, or one above it."""

def keeps_checkpoints(device: int = 0) -> bool:
    """Whether the device's worker does."""

def reported_checkpoints(held: int, device: int = 0) -> tuple[dict[int, bool], str]:
    """The checkpoints that the worker has, and whether each is what tensors hold now; and why others were dropped, in one sentence.

    Waits for all that was recorded. The one of the number ``held`` is not dropped before the session has gone back to it."""

def dropped_checkpoints(device: int = 0) -> bool:
    """Whether the device's worker has dropped some, as it says at the end of a span, since this was asked last. Does not wait."""

def begin_fork(number: int) -> None:
    """For the next forks of this thread: a checkpoint of this number is taken then. 0: none is."""

def fork_checkpoint(device: int = 0) -> int:
    """The one that was taken at the last fork; 0: none. A lower number than was given: nothing was recorded since that one."""

def fork_origin(device: int = 0) -> int:
    """In a forked child whose session has not begun: the checkpoint of its parent's with which it will; 0: none."""

def drop_checkpoint(number: int, device: int = 0) -> None:
    """Nobody begins with it any more, nor goes back to it."""

def has_run_backward() -> bool:
    """Whether gradients were computed in this process, or in one that it was forked from."""

def restart_backwards() -> None:
    """In a forked child: starts the threads that compute gradients on devices."""

def go_back(number: int, device: int = 0) -> WentBack:
    """To a checkpoint that was held. Takes a lease."""

def storage_number(tensor: torch.Tensor) -> int:
    """Of its storage, 0 where that is not a virtual device's; numbers are never used again."""

def note_writes(objects: list[object], storages: set[int] | None, device: int) -> None:
    """Has autograd know that these storages of a device, or all, were written to, as far as the objects are tensors of them."""

def pin_memory(address: int, bytes: int) -> bool:
    """Says of the program's own memory that it is pinned. Whether it was not yet."""

def unpin_memory(address: int) -> bool:
    """Whether it was pinned."""

def device_table() -> object:
    """A capsule with what plug-ins of other frameworks are given: ``forebay/device_table.h`` of the wire package."""

def answer_callbacks(answer: Callable[[int, list[bytes]], list[bytes] | str]) -> None:
    """By what functions are called that programs of other frameworks call back to: with a function's number and its arrays. The answer is
    what it returned, or the sentence why nothing."""

def is_processor(device: int = 0) -> bool:
    """Whether a processor stands behind the device; takes a lease."""

def device_times() -> object:
    """A capsule, for ``forebay._kineto``."""

DEVICES_MAX: int
"""How many virtual devices a process can have."""

def install(devices: int = 1) -> None:
    """Registers kernels, guard, hooks and allocator for the CUDA key, for ``cuda:0`` to ``cuda:<devices - 1>``.

    Only the first call does anything. ``device`` below is one of these.
    """

def withdraw() -> None:
    """From here on there is no virtual device."""

def device_count() -> int: ...
def current_device() -> int:
    """Of this thread."""

def set_device(index: int, /) -> None:
    """Makes a device the thread's current one. Raises RuntimeError where there is none."""

def set_cut_callback(callback: Callable[[int], None], /) -> None:
    """``callback(device)`` is called, in a thread of its own, when a connection broke and its worker is not reached for a while."""

def set_lease_callback(callback: Callable[[int], None], /) -> None:
    """``callback(device)`` is called from the thread that recorded work for the device while no lease is open for it.

    It is called with the GIL and outside locks; returns after :func:`lease_opened`, or raises.
    """

def connect(
    address: str,
    ticket: bytes,
    device: int = 0,
    meeting: int | None = None,
    certificate: str = "",
    authorization: str = "",
    proxy: str = "",
    proxy_authorization: str = "",
) -> Welcome:
    """Connects to a worker's command stream, ``unix:/path``, ``tcp:host:port``, or ``wss://host/path`` of a hub's edge. Raises RuntimeError
    with one sentence.

    ``meeting``: under which number the process groups of this process and of those that compute with it meet at their workers; None where
    no pool knows that they compute together. ``certificate``: the SHA-256 of what the worker must show, in hex; empty: in clear.
    ``authorization``: for an edge, the value of that header. ``proxy``: HOST:PORT of an HTTP proxy before the edge, and the value of
    Proxy-Authorization for it."""

def connected(device: int = 0) -> bool: ...
def lease_opened(epoch: int, memory_bytes: int, device: int = 0) -> None: ...
def open_known_calls(path: str) -> None:
    """Learns from a file which kinds of calls earlier processes had carried out; they are not waited for."""

def save_known_calls() -> None:
    """Adds to that file what this process has learnt. Does nothing where it cannot be written."""

def lease_closed(device: int = 0) -> None: ...
def mark(device: int = 0) -> bool:
    """Ends the span: puts a MARK into the stream and clears the lease flag. False if no lease was open."""

def synchronize(device: int = 0) -> None:
    """Waits until all recorded work is done. Raises its first failure, with the user's source line."""

def leave(device: int = 0) -> bool:
    """Ends the stream at its worker, and returns once that has carried out what it was sent. What is recorded from now on waits for the
    next :func:`connect`, which goes on with the same tensors. False where there is no worker to leave."""

def set_journal(bytes_max: int, image_seconds: float, device: int = 0) -> None:
    """From the next session on the device keeps what it sends to its worker, up to so many bytes of its memory; 0: nothing. It has
    its workers keep an image of its session each time it has worked for so long; 0: never. Another worker goes on from it."""

def is_torn(device: int = 0) -> bool:
    """Whether a thread waits for an answer that a dead worker owed, and needs a lease at the present one for it: :func:`leave` does nothing
    then."""

def break_off(device: int = 0) -> bool:
    """Its worker died. What is recorded from now on waits for the next :func:`connect`, which sends the new worker all that this one was
    sent, and returns when that is carried out. Returns False, and does nothing, if not all of it was kept."""

def replay_differences(device: int = 0) -> tuple[int, int]:
    """How many small results that were read came out otherwise when another worker computed them again, and how many were compared."""

def broken(device: int = 0) -> bool:
    """Whether the connection to the worker broke, and the session is to go on at another."""

def settle_backwards(seconds: float) -> bool:
    """Waits until autograd's threads have let go of every backward pass that has returned: Python must not end before. False where it took
    longer than this."""

def lose(message: str, device: int = 0) -> None:
    """All tensors are gone; later uses of them raise RuntimeError(message). The connection is dropped."""

def resize_storage(storage: torch.UntypedStorage, nbytes: int, /) -> None:
    """Grows or shrinks a storage of the device; the bytes that fit are kept."""

def define_kernel(kernel: int, source: bytes, device: int = 0) -> tuple[int, str] | None:
    """Gives the worker a kernel of the program's own under this number (``forebay_wire.kernels.put_source``), and waits until it is
    compiled. The code and the sentence of why there is none; None where there is one."""

def launch_kernel(
    kernel: int, source: bytes, grid: tuple[int, int, int], arguments: Sequence[torch.Tensor | int], device: int = 0
) -> None:
    """Records a launch. ``arguments`` are tensors, and bits of numbers. Raises ValueError for a tensor that is not of the device, and
    NotImplementedError where the worker takes no such kernel."""

def memory(device: int = 0) -> Memory: ...
def reset_peak_memory(device: int = 0) -> None: ...
def set_memory_fraction(fraction: float, bytes: int, device: int = 0) -> None:
    """How much of a flavor of so many bytes the program lets itself have."""

def memory_fraction(device: int = 0) -> float: ...
def tell_flavor(name: str, bytes: int, device: int = 0) -> None:
    """Tells monitors the device's name and size; the first time shows this process to them."""

def held_ns(device: int = 0) -> int:
    """For which leases were open so far."""

def lease_is_open(device: int = 0) -> bool: ...
def withdraw_publication() -> None:
    """Monitors see this process no longer."""

def statistics(device: int = 0) -> Statistics: ...
def segments(device: int = 0) -> list[Segment]:
    """Those that came to an end in this session, in no particular order; empty without a worker. Waits for all that was recorded before."""

def gang_work(device: int = 0) -> GangWork:
    """Of this session so far; nothing of one device without a worker. Waits for all that was recorded before."""

def begin_profile() -> None:
    """Begins to note where time goes. Raises RuntimeError where that has begun already."""

def end_profile() -> list[Activity]:
    """Ends the stretch, and gives what was noted of all devices."""

def default_generator(device: int = 0) -> torch.Generator: ...
def recorded() -> list[str]:
    """Names (``add.Tensor``) of the operators that are sent to the worker as they are."""
