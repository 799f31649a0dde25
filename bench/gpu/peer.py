"""A child process that does what it is told, one call after the other: a client of the virtual device, or native PyTorch.

Run as ``python -m gpu.peer``, it reads calls as lines of JSON, ``{"function": "programs.fill", "arguments": {…}}``, and answers each with
one, ``{"value": …}`` or ``{"error": "Type: message"}``. Functions are those of this package's modules, and get the name of PyTorch's device
first. What they print goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

CALL_SECONDS_MAX = 120.0
BENCH = Path(__file__).resolve().parent.parent
NOWHERE = "http://127.0.0.1:9/"
"""A pool's address at which nobody listens: the client's worker is given to it, and nothing else may start one."""

NOBODY = "none"


class PeerFailed(Exception):
    """A call raised in the peer; the message is ``Type: message`` of it."""


class PeerLost(Exception):
    """The peer ended, or did not answer in time."""


class Peer:
    """This process's end of one."""

    def __init__(self, environment: dict[str, str], device: str, log: Path) -> None:
        self.device = device
        self.log = log
        command = [sys.executable, "-m", "gpu.peer", device]
        self._waits = False
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=BENCH, bufsize=0
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, function: str, seconds_max: float = CALL_SECONDS_MAX, **arguments: Any) -> Any:
        """What the function returns. Raises PeerFailed, PeerLost."""
        self.start(function, **arguments)
        return self.finish(seconds_max)

    def start(self, function: str, **arguments: Any) -> None:
        """Has it begin, without waiting."""
        line = json.dumps({"function": function, "arguments": arguments}).encode() + b"\n"
        assert self._process.stdin
        try:
            self._process.stdin.write(line)
        except BrokenPipeError:
            raise PeerLost(self._last_words("it ended")) from None
        self._waits = True

    def finish(self, seconds_max: float = CALL_SECONDS_MAX) -> Any:
        """What the function that was started returns. Raises PeerFailed, PeerLost."""
        answer = json.loads(self._line(time.monotonic() + seconds_max))
        self._waits = False
        if "error" in answer:
            raise PeerFailed(answer["error"])
        return answer["value"]

    def _line(self, deadline: float) -> bytes:
        assert self._process.stdout
        found = b""
        while not found.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.kill()
                raise PeerLost(self._last_words("it did not answer in time"))
            piece = self._process.stdout.read(1 << 16)
            if not piece:
                raise PeerLost(self._last_words("it ended"))
            found += piece
        return found

    def _last_words(self, what: str) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return f"{what}: {' | '.join(lines[-3:]) or 'it wrote nothing'}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Ends it, after the call it is in."""
        if self._process.stdin:
            self._process.stdin.close()
        try:
            self._process.wait(0.1 if self._waits else 20)
        except subprocess.TimeoutExpired:
            self.kill()
        if self._process.stdout:
            self._process.stdout.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    return {**kept, "PYTHONPATH": str(BENCH), **changes}


def native(device: str, log: Path) -> Peer:
    """PyTorch on the device itself: ``cuda:0``, or ``cpu`` for a CPU device."""
    return Peer(_environment(), "cpu" if device.startswith("cpu") else device.replace("hip", "cuda"), log)


def client(log: Path, url: str = NOWHERE, token: str = NOBODY, compiles: bool = False) -> Peer:
    """PyTorch on the virtual device, in a process that sees no GPU. ``compiles``: it asks for tier 2."""
    blind = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "FOREBAY_URL": url, "FOREBAY_TOKEN": token}
    return Peer(_environment(**blind, FOREBAY_COMPILE=str(int(compiles))), "cuda", log)


def _answer(device: str, line: str) -> dict[str, Any]:
    asked = json.loads(line)
    module, _, name = asked["function"].partition(".")
    try:
        return {"value": getattr(importlib.import_module(f"gpu.{module}"), name)(device, **asked["arguments"])}
    except Exception as error:  # the caller judges
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"}


def main() -> None:
    """Answers until the calls end."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(_answer(sys.argv[1], line)), file=answers, flush=True)


if __name__ == "__main__":
    main()
