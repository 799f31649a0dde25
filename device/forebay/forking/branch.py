"""Branches: what this process holds goes into several processes, each of which goes on in its own way.

A branch is a forked process. Its session begins as a copy of this one's, and has leases and a bill of its own. What its function returns
comes back in memory of the host.
"""

from __future__ import annotations

import io
import multiprocessing
import sys
import traceback
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, Protocol, TypeVar

import torch

from forebay.errors import BranchFailed

BRANCHES_MAX = 256
"""More are a job's work: each is a process of this host."""
Given = TypeVar("Given")
Result = TypeVar("Result")


class Devices(Protocol):
    """What branches ask of this process's devices (:class:`forebay.virtual_device.VirtualDevices`)."""

    def end_span(self) -> None: ...
    def close(self) -> None: ...


def run(devices: Devices, over: int | Iterable[Any], function: Callable[[Any], Result]) -> list[Result]:
    """What ``function`` returns in each branch, in order. Raises BranchFailed once all have ended, if one has failed."""
    items = list(range(over)) if isinstance(over, int) else list(over)
    if len(items) > BRANCHES_MAX:
        raise ValueError(f"{len(items)} branches are too many, and {BRANCHES_MAX} the most; call forebay.branches() again for others.")
    sys.stdout.flush()
    sys.stderr.flush()
    running: dict[Connection, tuple[int, ForkProcess]] = {}
    try:
        for place, item in enumerate(items):
            running.update([_started(devices, place, item, function)])
        devices.end_span()  # the branches may need the device on which this process would wait
        return _gathered(running)
    finally:
        for connection, (_, branch) in running.items():
            branch.terminate()
            branch.join()
            connection.close()


def _started(devices: Devices, place: int, item: Any, function: Callable[[Any], Any]) -> tuple[Connection, tuple[int, ForkProcess]]:
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe(duplex=False)
    branch = context.Process(target=_branch, args=(devices, function, item, theirs), name=f"branch {place}")
    branch.start()
    theirs.close()
    return mine, (place, branch)


def _gathered(running: dict[Connection, tuple[int, ForkProcess]]) -> list[Any]:
    """Takes each branch out of ``running`` as it ends."""
    results: dict[int, Any] = {}
    failures: dict[int, str] = {}
    while running:
        ended = set(wait(list(running)))
        for connection in [one for one in running if one in ended]:
            place, branch = running[connection]
            try:
                succeeded, value = _unpacked(connection.recv_bytes())
            except EOFError:
                branch.join()
                succeeded, value = False, f"Its process ended with exit status {branch.exitcode}."
            (results if succeeded else failures)[place] = value
            branch.join()
            connection.close()
            del running[connection]
    if failures:
        place = min(failures)
        others = f" So did {len(failures) - 1} more." if len(failures) > 1 else ""
        raise BranchFailed(f"Branch {place} failed.{others}\n{failures[place]}", results)
    return [results[place] for place in sorted(results)]


def _branch(devices: Devices, function: Callable[[Any], Any], item: Any, connection: Connection) -> None:
    """In the forked process. The threads of the parent's that computed on the host are gone."""
    torch.set_num_threads(1)
    try:
        answer = _packed(True, function(item))
    except BaseException:
        answer = _packed(False, traceback.format_exc())
    devices.close()
    connection.send_bytes(answer)
    connection.close()


def _packed(succeeded: bool, value: Any) -> bytes:
    """Tensors of devices are brought to the host as they are read."""
    file = io.BytesIO()
    torch.save((succeeded, value), file)
    return file.getvalue()


def _unpacked(answer: bytes) -> tuple[bool, Any]:
    succeeded, value = torch.load(io.BytesIO(answer), map_location="cpu", weights_only=False)
    return succeeded, value

