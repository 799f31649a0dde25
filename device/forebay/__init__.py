"""One virtual device ``cuda:0`` on stock PyTorch, served by a shared pool of real ones.

Nothing needs to import this package: where the variable ``FOREBAY_URL`` is set, ``import torch`` activates it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from forebay_wire import torch_builds

if TYPE_CHECKING:
    from forebay_wire.messages import Flavor

    from forebay.facade.checkpoint import Checkpoint, WentBack
    from forebay.virtual_device import VirtualDevices


torch_builds.add_to(__path__)
Result = TypeVar("Result")


def flavor(name: str | None = None, device: int = 0) -> Flavor:
    """The size of the virtual device ``cuda:device``; with a name, chooses that one, from the device's next lease on.

    What is recorded is done first, and waited for. Tensors stay: they move to a device that serves the new flavor with the next work.
    Raises ForebayError: for a flavor that is unknown, that nothing here serves, or that is smaller than what the device holds.
    """
    devices = _devices(device)
    return devices.flavor(device) if name is None else devices.choose_flavor(device, name)


def priority(value: int | None = None, device: int = 0) -> int:
    """What the device's waits for a lease count, -99 to 99; with a value, asks for that one. The higher is served first.

    Returns what it gets: a quota may allow less than was asked for, and standard error says so. Raises ForebayError, ValueError.
    """
    from forebay.service import checked_priority

    session = _devices(device).session(device)
    return session.priority() if value is None else session.choose_priority(checked_priority(value))


def checkpoint(name: str | None = None) -> Checkpoint:
    """Keeps what tensors on the device hold now, to go back to; without waiting, and by copying only what is written to later.

    Raises ForebayError where there is nothing to keep yet, and where the device has no checkpoints.
    """
    from forebay.facade.history import history

    return history().take(name)


def checkpoints(each_cell: bool | None = None) -> list[Checkpoint]:
    """Those that are still there, the oldest first; with ``each_cell``, takes one at the end of every cell from now on, or no more.

    They are dropped where memory is short: the oldest first, and those with a name last. Raises ForebayError where there are no cells.
    """
    from forebay.facade.history import history

    if each_cell is not None:
        history().follow_cells(each_cell)
    return history().list()


def restore(name: str) -> WentBack:
    """Gives tensors on the device, and its generators, what they held at the checkpoint of this name. What is on the host stays.

    Raises ForebayError where the checkpoint is not there any more; then nothing has changed.
    """
    from forebay.facade.history import history

    return history().restore(name)


def undo(n: int = 1) -> WentBack:
    """As :func:`restore`, of the ``n``-th checkpoint before what tensors hold now. Raises ForebayError, ValueError."""
    from forebay.facade.history import history

    return history().undo(n)


def branches(over: int | Iterable[Any], function: Callable[[Any], Result]) -> list[Result]:
    """Calls ``function(i)`` for each number below ``over``, or for each of several things, all at a time: each call in a forked process
    whose tensors on the device begin as they are now. What is changed there does not change here.

    Returns what each call returned, in order; tensors of the device come back as CPU tensors. Raises BranchFailed if one has failed.
    """
    from forebay.forking.branch import run

    return run(_devices(0), over, function)


def _devices(device: int) -> VirtualDevices:
    import torch

    from forebay import process
    from forebay.errors import NotConfigured

    if process.installed is None:
        raise NotConfigured(f"There is no virtual device in this process: {process.failure or 'FOREBAY_URL is not set.'}")
    if not 0 <= device < torch.cuda.device_count():
        raise ValueError(f"There is no device cuda:{device}; this process has {torch.cuda.device_count()}.")
    return process.installed


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext forebay``: the virtual device and its magics before the first cell that imports PyTorch."""
    import torch  # noqa: F401 activates the virtual device

    from forebay import notebook

    notebook.attend(shell)
