"""The comms between a kernel and the front ends that show its devices: ``docs/reference/notebook.md`` tells what is said on them.

What the kernel says goes out from any thread, so also while a cell computes. What front ends ask arrives on the shell channel, or on a
subshell where kernel and front end have those (ipykernel 7, JupyterLab 4.4): then it is answered while a cell computes, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from forebay.notebook.output import Output

TARGET = "forebay"
EVERYBODY = "forebay-state"
"""Id of the comm on which all is told that concerns every front end. Nobody opens it: a page that was loaded while a cell runs listens
to it at once, before the kernel can hear that it is there."""
PROTOCOL = 1
FRONT_ENDS_MAX = 8
"""A page that was loaded anew opens another comm and does not close the one before: the oldest are forgotten."""

Heard = Callable[[Mapping[str, Any], Callable[[Mapping[str, Any]], None]], None]
"""Takes what a front end said, and what answers it."""


class Channel:
    """The front ends that are connected."""

    def __init__(self, output: Output, heard: Heard) -> None:
        self._output = output
        self._heard = heard
        self._lock = threading.Lock()
        self._comms: dict[str, Any] = {}

    def register(self) -> None:
        """Lets front ends connect."""
        from comm import get_comm_manager

        get_comm_manager().register_target(TARGET, self._opened)

    @property
    def attached(self) -> bool:
        """Whether a front end has connected, and has not said goodbye."""
        return bool(self._comms)

    def say(self, data: Mapping[str, Any]) -> None:
        """Tells all front ends."""
        self._send(EVERYBODY, data)

    def offer(self) -> None:
        """Invites front ends that were there before this package: they open a comm of their own when they hear of it."""
        name = uuid4().hex
        content = {"comm_id": name, "target_name": TARGET, "data": {"protocol": PROTOCOL}}
        self._output.send("comm_open", content, _topic(name))

    def _send(self, name: str, data: Mapping[str, Any]) -> None:
        # Not by the comm itself: what that sends belongs to the cell that runs, whose shell front ends would then have to use.
        self._output.send("comm_msg", {"comm_id": name, "data": data}, _topic(name))

    def _opened(self, comm: Any, message: Mapping[str, Any]) -> None:
        name = str(comm.comm_id)
        with self._lock:
            self._comms[name] = comm
            while len(self._comms) > FRONT_ENDS_MAX:
                del self._comms[next(iter(self._comms))]
        comm.on_close(lambda _message: self._closed(name))
        comm.on_msg(lambda said: self._take(name, said))
        self._take(name, message)

    def _closed(self, name: str) -> None:
        with self._lock:
            self._comms.pop(name, None)

    def _take(self, name: str, message: Mapping[str, Any]) -> None:
        said = message.get("content", {}).get("data")
        if isinstance(said, Mapping):
            self._heard(said, lambda data: self._send(name, data))


def _topic(name: str) -> bytes:
    return f"comm-{name}".encode()
