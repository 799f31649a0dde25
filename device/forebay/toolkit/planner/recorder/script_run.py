"""Runs a script on the null device until its step has come often enough: ``record`` gives what it sent."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from forebay_wire.steps import Event
from forebay_wire.stream import Mark, WireError

from forebay.devices import DEVICES_VARIABLE
from forebay.errors import ForebayError
from forebay.service import FLAVOR_VARIABLE, TOKEN_VARIABLE, URL_VARIABLE
from forebay.toolkit.planner.calls import CallShapes
from forebay.toolkit.planner.iteration import IterationFinder
from forebay.toolkit.planner.recorder.null_device import NullDevice
from forebay.toolkit.planner.recorder.null_pool import NullPool
from forebay.toolkit.planner.recorder.recording import NewRecording

KNOWN_CALLS_VARIABLE = "FOREBAY_KNOWN_CALLS"
POLL_SECONDS = 0.05
EVENTS_MAX = 4_000_000

Progress = Callable[[int, int], None]
"""Is told the iterations and the calls so far."""


def record(command: Sequence[str], iterations: int, seconds_max: float, progress: Progress) -> NewRecording:
    """Runs the command on the null device until ``iterations`` were seen, or it ends. What it prints goes to standard error.

    Raises ForebayError where it fails, or takes longer.
    """
    recording = NewRecording()
    finder = IterationFinder(recording.events, CallShapes(recording.operators))
    with tempfile.TemporaryDirectory(prefix="forebay-plan-") as folder, socket.socket(socket.AF_UNIX) as listener:
        path, ticket = Path(folder) / "stream", secrets.token_bytes(32)
        listener.bind(str(path))
        listener.listen(1)
        listener.settimeout(POLL_SECONDS)
        with NullPool(path, ticket) as pool:
            program = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), env=_environment(pool), start_new_session=True
            )
            try:
                _serve(program, listener, NullDevice(ticket, _noting(recording, finder, pool, iterations, progress)), seconds_max)
            finally:
                _stop(program)
    if program.returncode and not finder.enough(iterations):
        raise ForebayError(f"The script ended with status {program.returncode} before its step had come {iterations} times; see above.")
    return recording


def _environment(pool: NullPool) -> Mapping[str, str]:
    own = {URL_VARIABLE: pool.url, TOKEN_VARIABLE: pool.token, DEVICES_VARIABLE: "1", KNOWN_CALLS_VARIABLE: ""}
    return {name: value for name, value in os.environ.items() if name != FLAVOR_VARIABLE} | own


def _noting(
    recording: NewRecording, finder: IterationFinder, pool: NullPool, iterations: int, progress: Progress
) -> Callable[[bytes, list[Event]], bool]:
    def note(body: bytes, events: list[Event]) -> bool:
        recording.add(body, events)
        finder.look()
        for event in events:
            if isinstance(event, Mark):
                pool.drained(event.epoch)
        if len(recording.events) > EVENTS_MAX:
            raise ForebayError(f"The script made {EVENTS_MAX:,} calls without a step that repeats; make its steps shorter, or fewer.")
        progress(finder.iterations, finder.calls)
        return not finder.enough(iterations)

    return note


def _serve(program: subprocess.Popen[bytes], listener: socket.socket, device: NullDevice, seconds_max: float) -> None:
    """The first connection, until it ends; without any, until the program ends."""
    deadline = time.monotonic() + seconds_max
    too_long = ForebayError(f"The script's step had not come often enough after {seconds_max:g} s; allow more with --seconds.")
    while program.poll() is None:
        with contextlib.suppress(TimeoutError):
            peer, _ = listener.accept()
            break
        if time.monotonic() > deadline:
            raise too_long
    else:
        return
    with peer:
        peer.settimeout(max(POLL_SECONDS, deadline - time.monotonic()))
        try:
            if device.serve(peer):
                return _stop(program)  # before it sees its stream end
        except TimeoutError:
            raise too_long from None
        except ConnectionError:
            pass  # the program was killed: its status tells
        except WireError as error:
            raise ForebayError(f"The script's command stream cannot be read: {error}.") from None
    try:
        program.wait(max(POLL_SECONDS, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise too_long from None


def _stop(program: subprocess.Popen[bytes]) -> None:
    """Ends the program with all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)
    program.wait()
