"""One process beside a device, as its user sees it: its files go, its output comes, and its files come back."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

from forebay_wire.remote import frames
from forebay_wire.remote.frames import FrameKind, StreamError

from forebay.errors import ForebayError, SessionEnded
from forebay.service.files.copies import ASIDE, Copies, in_words
from forebay.toolkit.remote.process_stream import ProcessStream

INPUT_BYTES = 65_536
FORWARDED = (signal.SIGINT, signal.SIGTERM)


class RemoteRun:
    """Over a stream whose lease is open."""

    def __init__(self, stream: ProcessStream, copies: Copies, arguments: Sequence[str], reads: bool) -> None:
        self._stream, self._copies, self._arguments, self._reads = stream, copies, tuple(arguments), reads
        self._interrupts = 0

    def perform(self, bytes_max: int) -> frames.Exited:
        """How the process ended. Raises ForebayError."""
        try:
            self._send_files(bytes_max)
            with self._signals_forwarded():
                exited = self._follow()
            self._take_results()
            return exited
        except StreamError as error:
            told = f"The worker sent what this release does not understand ({error}); install the same release on both sides."
            raise SessionEnded(told) from None

    def _send_files(self, bytes_max: int) -> None:
        files = self._copies.files
        self._stream.say(frames.Start(arguments=self._arguments, files=files, result_bytes_max=bytes_max))
        wanted = self._message()
        if not isinstance(wanted, frames.Wanted):
            raise StreamError(f"{wanted.type} where wanted was awaited")
        for file in wanted.of(files):
            self._stream.contents(self._copies.pieces(file))

    def _message(self) -> frames.FromWorker:
        message = self._stream.message()
        if isinstance(message, frames.Denied):
            raise SessionEnded(message.why)
        return message

    # While it runs

    def _follow(self) -> frames.Exited:
        while True:
            kind, contents = self._stream.next()
            if kind in (FrameKind.OUTPUT, FrameKind.ERRORS):
                out = sys.stdout if kind == FrameKind.OUTPUT else sys.stderr
                out.buffer.write(contents)
                out.buffer.flush()
                continue
            message = frames.from_worker(contents)
            match message:
                case frames.Started():
                    threading.Thread(target=self._forward_input, name="forebay-input", daemon=True).start()
                case frames.Took():
                    self._stream.took(message.bytes)
                case frames.Exited():
                    return message
                case frames.Denied():
                    raise SessionEnded(message.why)
                case _:
                    raise StreamError(f"{message.type} while the process runs")

    def _forward_input(self) -> None:
        with contextlib.suppress(ForebayError, OSError):
            while self._reads and (piece := os.read(0, INPUT_BYTES)):
                self._stream.give(piece)
            self._stream.give(b"")

    @contextlib.contextmanager
    def _signals_forwarded(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._forward) for number in FORWARDED}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        """A second Ctrl-C ends a process that took the first one for nothing."""
        self._interrupts += number == signal.SIGINT
        self._stream.say(frames.signal_of(signal.SIGKILL if self._interrupts > 1 else number))

    # What comes back

    def _take_results(self) -> None:
        results = self._message()
        if not isinstance(results, frames.Results):
            raise StreamError(f"{results.type} where results were awaited")
        wanted = frames.Wanted(places=tuple(self._copies.wanted(results.files)))
        self._stream.say(wanted)
        aside = []
        for file in wanted.of(results.files):
            name = self._take(file)
            if name.endswith(ASIDE):
                aside.append(f"{file.path} changed here meanwhile, and what came back is beside it, as {name}")
        for told in (results.left, aside):
            if told:
                sys.stderr.write(f"forebay: {in_words(told)}\n")

    def _take(self, file: frames.File) -> str:
        written = self._copies.writing(file)
        try:
            while not written.complete:
                kind, contents = self._stream.next()
                if kind != FrameKind.CONTENTS or not contents:
                    raise StreamError(f"{kind.name} where contents were awaited")
                written.add(contents)
            name = self._copies.name_of(file)
            written.take_name(name)
            return name
        except OSError as error:
            raise ForebayError(f"{file.path} came back and cannot be written: {error.strerror}.") from None
        finally:
            written.drop()
