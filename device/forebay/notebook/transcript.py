"""What cells showed, kept until a page has saved it: a page that comes back gets what it missed.

Jupyter's server sends what a cell shows to the pages that are open at the time, and to nobody else. The kernel is there as long as the
cell is, so it keeps a copy, as a front end in its own process that hears what all others hear. Pages ask for it on the control channel,
which is answered while a cell runs, and whose messages the server does not drop where there are many (``iopub_data_rate_limit``).
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from forebay.notebook.output import Output
from forebay.spans import running_cell
from forebay.texts import Texts

RUN_CHARACTERS_MAX = 8 * 2**20
"""Kept of one cell: the last that it showed."""
ALL_CHARACTERS_MAX = 64 * 2**20
"""Kept of all cells: the cells that ended first give way."""
OVERWRITTEN_CHARACTERS = 64 * 1024
"""Text that is longer is kept without what carriage returns wrote over."""
STATUS_SECONDS = 0.05
"""So long after an answer the kernel says again that it is busy: an answer ends with the word that it is idle."""
REQUEST, REPLY = "forebay_request", "forebay_reply"
"""Types of the messages on the control channel."""
HIDDEN = "········"
"""Stands for a password, as JupyterLab shows it."""
LISTENING_SECONDS = 2.0
"""The first cell waits for the listener for so long."""

Message = Mapping[str, Any]
Announce = Callable[[Mapping[str, Any]], None]

log = logging.getLogger(__name__)


@dataclass
class CellRun:
    """The last run of a cell. ``session`` is the page that asked for it."""

    request: str
    session: str
    cell_id: str
    count: int
    running: bool = True
    outputs: list[dict[str, Any]] = field(default_factory=list)
    """As in a notebook's file; displays that may change also have their ``transient``."""
    last: str = ""
    """Id of the last message that is in it."""
    asks: Mapping[str, Any] | None = None
    """``prompt`` and ``password`` of the input that it waits for."""
    cut: bool = False
    characters: int = 0
    clears: bool = False
    """Whether the next output takes the place of all before it."""

    def head(self) -> dict[str, Any]:
        """What a page needs to find the cell."""
        return {"request": self.request, "session": self.session, "cell_id": self.cell_id, "count": self.count, "running": self.running}

    def take(self, kind: str, content: Message) -> None:
        """A message that belongs to it."""
        match kind:
            case "stream" | "display_data" | "execute_result" | "error":
                self._add(kind, content)
            case "clear_output":
                self.clears = bool(content.get("wait"))
                if not self.clears:
                    self._clear()
            case "status" if content.get("execution_state") == "idle":
                self.running, self.asks = False, None

    def change(self, content: Message) -> None:
        """Other data in the place of a display's."""
        name = content.get("transient", {}).get("display_id")
        for output in self.outputs:
            if output.get("transient", {}).get("display_id") == name:
                before = _size(output)
                output.update(data=content["data"], metadata=content["metadata"])
                self.characters += _size(output) - before
        self._bound()

    def _add(self, kind: str, content: Message) -> None:
        if self.clears:
            self.clears = False
            self._clear()
        previous = self.outputs[-1] if self.outputs else {}
        if kind == "stream" and previous.get("output_type") == "stream" and previous["name"] == content["name"]:
            previous["text"] = _overwritten(previous["text"] + content["text"])
        else:
            text = {"text": _overwritten(content["text"])} if kind == "stream" else {}
            self.outputs.append({"output_type": kind, **content, **text})
        self.characters += _size(content)
        self._bound()

    def _clear(self) -> None:
        self.outputs.clear()
        self.characters = 0

    def _bound(self) -> None:
        if self.characters <= RUN_CHARACTERS_MAX:
            return
        self.characters = sum(map(_size, self.outputs))
        while self.characters > RUN_CHARACTERS_MAX:
            self.cut = True
            first = self.outputs[0]
            if first["output_type"] == "stream" and len(self.outputs) == 1:
                first["text"] = first["text"][-RUN_CHARACTERS_MAX // 2 :]
            else:
                del self.outputs[0]
            self.characters = sum(map(_size, self.outputs))


class Transcript:
    """Listens from :meth:`begin` on. ``announce`` tells all pages."""

    def __init__(self, shell: Any, output: Output, texts: Texts, announce: Announce) -> None:
        self._shell = shell
        self._output = output
        self._texts = texts
        self._announce = announce
        self._lock = threading.Lock()
        self._runs: dict[str, CellRun] = {}
        """By cell, the last that began last."""
        self._present: Message = {}
        """The header of the request whose cell runs now."""
        self._depth = 0
        self._listening = threading.Event()

    def begin(self) -> None:
        """Follows cells. Does nothing where the kernel has no connection file, as in a process that embeds one."""
        from ipykernel import get_connection_file

        try:
            file = get_connection_file()
        except RuntimeError as error:
            log.info("what cells show is not kept: %s", error, extra={"action": "transcript.off"})
            return
        threading.Thread(target=self._listen, args=(file,), name="forebay-transcript", daemon=True).start()
        self._shell.events.register("pre_run_cell", self._began)
        self._shell.events.register("post_run_cell", self._ended)
        kernel = self._shell.kernel
        kernel.control_handlers[REQUEST] = self._requested
        kernel.raw_input = _asking(kernel.raw_input, self, password=False)
        kernel.getpass = _asking(kernel.getpass, self, password=True)

    def _requested(self, stream: Any, idents: Any, message: Message) -> None:
        """Answers a page, in the thread of the control channel."""
        said: Message = message["content"]
        value: Any = None
        match said.get("ask"):
            case "runs":
                value = self.heads()
            case "run":
                value = self.run(str(said.get("request")))
            case "saved":
                self.saved([str(request) for request in said.get("requests", ())])
            case other:
                log.info("a page asked for what is not known: %s", other, extra={"action": "transcript.ask"})
        self._shell.kernel.session.send(stream, REPLY, {"status": "ok", "value": value}, parent=message, ident=idents)
        asyncio.get_running_loop().call_later(STATUS_SECONDS, self._still_busy)

    def _still_busy(self) -> None:
        header = self._present
        if header:
            self._output.send("status", {"execution_state": "busy"}, b"status", header)

    def heads(self) -> list[dict[str, Any]]:
        """All runs, without what they showed."""
        with self._lock:
            return [run.head() for run in self._runs.values()]

    def run(self, request: str) -> dict[str, Any] | None:
        """A run as it is now; None where it is not kept."""
        with self._lock:
            run = self._run(request)
            if run is None:
                return None
            outputs = copy.deepcopy([*self._note(run), *run.outputs])
            return {**run.head(), "outputs": outputs, "last": run.last, "asks": run.asks, "clears": run.clears}

    def saved(self, requests: list[str]) -> None:
        """A page has saved all that these runs showed."""
        with self._lock:
            for run in [run for run in self._runs.values() if run.request in requests and not run.running]:
                del self._runs[run.cell_id]

    def asks(self, prompt: str, password: bool) -> CellRun | None:
        """The cell that runs waits for input from now on."""
        with self._lock:
            run = self._run(str(self._present.get("msg_id")))
        if run is not None:
            run.asks = {"prompt": prompt, "password": password}
            self._announce({"type": "input", "request": run.request, **run.asks})
        return run

    def answered(self, run: CellRun, shown: str | None) -> None:
        """It does so no more; ``shown`` stands where the question was, if it was answered."""
        output = None if shown is None else {"output_type": "stream", "name": "stdin", "text": shown}
        with self._lock:
            run.asks = None
            run.outputs += [] if output is None else [output]
        self._announce({"type": "input", "request": run.request, "output": output})

    def _run(self, request: str) -> CellRun | None:
        return next((run for run in self._runs.values() if run.request == request), None)

    def _note(self, run: CellRun) -> list[dict[str, Any]]:
        if not run.cut:
            return []
        text = self._texts("cut", size=f"{RUN_CHARACTERS_MAX // 2**20} MiB")
        return [{"output_type": "stream", "name": "stderr", "text": text + "\n"}]

    def _began(self, _info: Any) -> None:
        """In the thread of the cell, before it shows anything. A cell may run others in itself."""
        self._depth += 1
        if self._depth > 1:
            return
        self._listening.wait(LISTENING_SECONDS)
        header, cell = self._output.header(), running_cell(self._shell)
        if cell is None or cell.id is None or "msg_id" not in header:
            return
        self._present = header
        run = CellRun(str(header["msg_id"]), str(header.get("session", "")), cell.id, cell.count)
        with self._lock:
            self._runs.pop(run.cell_id, None)
            self._runs[run.cell_id] = run
        self._announce({"type": "run", **run.head()})

    def _ended(self, _result: Any) -> None:
        self._depth = max(0, self._depth - 1)
        if self._depth == 0:
            self._present = {}

    def _listen(self, file: str) -> None:
        import zmq
        from jupyter_client.blocking.client import BlockingKernelClient

        context = zmq.Context()
        context.rcvhwm = 0  # a cell that shows much at once may not lose any of it here
        client = BlockingKernelClient(connection_file=file, context=context)
        client.load_connection_file()
        client.start_channels(shell=False, stdin=False, hb=False, control=False)
        while True:
            try:
                message = client.get_iopub_msg()
            except (zmq.ZMQError, ValueError) as error:  # the process ends, or somebody else's message has no signature
                log.info("a message was not heard: %s", error, extra={"action": "transcript.listen"})
                if isinstance(error, zmq.ZMQError):
                    return
                continue
            self._listening.set()
            self._heard(message)

    def _heard(self, message: Message) -> None:
        request, kind = message["parent_header"].get("msg_id"), message["msg_type"]
        with self._lock:
            if kind == "update_display_data":
                for run in self._runs.values():
                    run.change(message["content"])
            own = self._run(str(request))
            if own is not None:
                own.last = message["header"]["msg_id"]
                own.take(kind, message["content"])
                self._bound()

    def _bound(self) -> None:
        while sum(run.characters for run in self._runs.values()) > ALL_CHARACTERS_MAX:
            oldest = next((run for run in self._runs.values() if not run.running), None)
            if oldest is None:
                return
            del self._runs[oldest.cell_id]


def _asking(ask: Callable[..., str], transcript: Transcript, password: bool) -> Callable[..., str]:
    """``ask``, which a page that did not start the cell may answer too."""

    def asked(prompt: object = "", *arguments: Any) -> str:
        run = transcript.asks(str(prompt), password)
        shown: str | None = None
        try:
            value = ask(prompt, *arguments)
            shown = f"{prompt}{HIDDEN if password else value}\n"
            return value
        finally:
            if run is not None:
                transcript.answered(run, shown)

    return asked


def _overwritten(text: str) -> str:
    """Without what carriage returns wrote over, where there is much of it: a page would show the same."""
    if "\r" not in text or len(text) < OVERWRITTEN_CHARACTERS:
        return text
    return "\n".join(line[line.rfind("\r", 0, len(line) - 1) + 1 :] for line in text.split("\n"))


def _size(output: Message) -> int:
    """Of what a message shows, in characters, about."""
    shown = [output.get("text"), *output.get("traceback", ()), *(output.get("data") or {}).values()]
    return sum(len(part) if isinstance(part, str) else len(json.dumps(part)) for part in shown if part is not None)
