"""A kernel spoken to as any front end does, without a browser."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from forebay_spawner.mixin import ENVIRONMENTS
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

CELL_SECONDS = 120
LATE_SECONDS = 60


@dataclass
class Shown:
    """What a cell showed, in the order in which it came."""

    streams: dict[str, str] = field(default_factory=dict)
    displays: dict[str, list[str]] = field(default_factory=dict)
    """By display id: each text that stood there."""
    html: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    comms: list[dict[str, Any]] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        """What each display says at last."""
        return [texts[-1] for texts in self.displays.values()]

    def take(self, message: dict[str, Any]) -> None:
        content = message["content"]
        match message["msg_type"]:
            case "stream":
                self.streams[content["name"]] = self.streams.get(content["name"], "") + content["text"]
            case "display_data" | "update_display_data":
                self.displays.setdefault(content["transient"]["display_id"], []).append(content["data"]["text/plain"])
                self.html.append(content["data"].get("text/html", ""))
            case "execute_result":
                self.results.append(content["data"]["text/plain"])
            case "error":
                self.errors.append(f"{content['ename']}: {content['evalue']}")
            case "comm_open" | "comm_msg":
                self.comms.append(content)


class Kernel:
    """One that runs."""

    def __init__(self, client: Any, manager: KernelManager) -> None:
        self._client = client
        self._manager = manager

    def run(self, code: str) -> Shown:
        """Executes a cell to its end."""
        return self.finish(self.start(code))

    def start(self, code: str, cell_id: str | None = None) -> str:
        """Begins to execute a cell, which has an id where a notebook's page asks for it."""
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": True, "stop_on_error": True}
        message = self._client.session.msg("execute_request", content, metadata={"cellId": cell_id} if cell_id else {})
        self._client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def request(self, **content: Any) -> Any:
        """What the kernel answers on the control channel, whether or not a cell runs."""
        message = self._client.session.msg("forebay_request", content)
        self._client.control_channel.send(message)
        reply = self._client.get_control_msg(timeout=CELL_SECONDS)
        assert reply["parent_header"]["msg_id"] == message["header"]["msg_id"] and reply["msg_type"] == "forebay_reply"
        return reply["content"]["value"]

    def answer(self, text: str) -> str:
        """Answers a question of the cell's, once it is asked; the question."""
        asked = self._client.get_stdin_msg(timeout=CELL_SECONDS)
        self._client.input(text)
        return str(asked["content"]["prompt"])

    def finish(self, cell: str, shown: Shown | None = None) -> Shown:
        """Waits for a cell's end; what it showed."""
        shown = shown or Shown()
        while True:
            message = self._client.get_iopub_msg(timeout=CELL_SECONDS)
            own = message["parent_header"].get("msg_id") == cell
            if own or message["msg_type"].startswith("comm"):
                shown.take(message)
            if own and message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return shown

    def until(self, shown: Shown, condition: Any) -> Shown:
        """Takes what comes, whichever cell it is of, until ``condition`` holds of it."""
        deadline = time.monotonic() + LATE_SECONDS
        while not condition(shown):
            shown.take(self._client.get_iopub_msg(timeout=max(0.0, deadline - time.monotonic())))
        return shown

    def interrupt(self) -> None:
        self._manager.interrupt_kernel()

    def open(self, **data: Any) -> str:
        """Connects as the extension does."""
        name = uuid.uuid4().hex
        self._send("comm_open", {"comm_id": name, "target_name": "forebay", "data": data})
        return name

    def say(self, comm: str, **data: Any) -> None:
        self._send("comm_msg", {"comm_id": comm, "data": data})

    def ask(self, comm: str, what: str, **data: Any) -> dict[str, Any]:
        """What the kernel answers."""
        number = uuid.uuid4().int % 10**9
        self.say(comm, ask=what, id=number, **data)
        shown = self.until(Shown(), lambda shown: any(said["data"].get("id") == number for said in shown.comms))
        return next(said["data"] for said in shown.comms if said["data"].get("id") == number)

    def _send(self, kind: str, content: dict[str, Any]) -> None:
        self._client.shell_channel.send(self._client.session.msg(kind, content))


def served(environment: dict[str, str]) -> dict[str, str]:
    """The variables of a notebook server that the spawner starts with these: the user's environments lie over the shared one."""
    command = [sys.executable, *ENVIRONMENTS, "env", "-0"]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return dict(line.split("=", 1) for line in told.split("\0") if line)


@contextmanager
def kernel(environment: dict[str, str]) -> Iterator[Kernel]:
    """A kernel with this environment, in the user's own environment of packages, as the spawner's servers start it."""
    server = served(environment)
    own = server["JUPYTER_PATH"].partition(":")[0]
    manager = KernelManager(kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[f"{own}/kernels"]))
    manager.start_kernel(env=server)
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=CELL_SECONDS)
        yield Kernel(client, manager)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
