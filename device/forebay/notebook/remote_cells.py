"""``%%forebay exec``: a cell as a process beside a device, with some variables of the notebook's, and others that come back."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from forebay_wire.remote import values

from forebay.errors import ForebayError
from forebay.toolkit.jobs.child_processes import end_with_parent

USAGE = "usage: %%forebay exec [--in NAME,NAME] [--out NAME,NAME] [--flavor NAME] [--limit SIZE]"
RUNNER = ("python", "-m", "forebay_worker.remote.cell")
PIECE_BYTES = 65_536


class _Line(argparse.ArgumentParser):
    """Of the words behind the magic's name: an error is an exception, since the process is the notebook's."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"%%forebay exec: {message}; {USAGE}")


def names_in(text: str) -> list[str]:
    """``a,b`` as names. Raises ArgumentTypeError."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not name.isidentifier():
            raise argparse.ArgumentTypeError(f"{name!r} is no variable's name")
    return names


def parsed(line: str) -> argparse.Namespace:
    """Raises ValueError with the usage."""
    parser = _Line(prog="%%forebay exec", add_help=False, allow_abbrev=False)
    parser.add_argument("command", choices=("exec",))
    parser.add_argument("--in", dest="given", type=names_in, default=[])
    parser.add_argument("--out", dest="made", type=names_in, default=[])
    parser.add_argument("--flavor")
    parser.add_argument("--limit")
    return parser.parse_args(shlex.split(line))


def run(line: str, source: str, space: dict[str, Any]) -> None:
    """Runs the code beside a device, and takes what it makes into the notebook's variables. Raises ForebayError, ValueError."""
    wanted = parsed(line)
    missing = [name for name in wanted.given if name not in space]
    if missing:
        raise ValueError(f"%%forebay exec: there is no variable {', '.join(missing)}")
    with tempfile.TemporaryDirectory(prefix="forebay-cell-") as name:
        folder = Path(name)
        (folder / "cell.py").write_text(source, encoding="utf-8")
        try:
            values.write(folder / "given", {one: space[one] for one in wanted.given})
        except ImportError as error:
            raise ForebayError(f"Variables go by safetensors, which this environment lacks ({error}): `pip install safetensors`.") from None
        status = _performed(folder, _command(wanted))
        if status:
            raise ForebayError(f"The cell's process ended with exit status {status}; nothing came back.")
        found = values.read(folder / "made")
        space.update({one: found[one] for one in wanted.made})


def _command(wanted: argparse.Namespace) -> list[str]:
    options = [word for name in ("flavor", "limit") if getattr(wanted, name) for word in (f"--{name}", getattr(wanted, name))]
    return [sys.executable, "-m", "forebay", "exec", "-n", *options, "--", *RUNNER, *wanted.made]


def _performed(folder: Path, command: Sequence[str]) -> int:
    """The exit status; what the process writes is the cell's output meanwhile. An interrupt goes to the process."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # an interrupt of the kernel's comes once, and from here
        preexec_fn=end_with_parent,
    )
    streams = ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
    pumps = [threading.Thread(target=_pump, args=stream, daemon=True) for stream in streams]
    for pump in pumps:
        pump.start()
    interrupted = False
    while True:
        try:
            process.wait()
            for pump in pumps:
                pump.join()
            break
        except KeyboardInterrupt:
            interrupted = True
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
    if interrupted:
        raise KeyboardInterrupt
    return process.returncode


def _pump(source: IO[bytes], target: Any) -> None:
    """As text, as it comes; a character in pieces waits for its rest."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while piece := os.read(source.fileno(), PIECE_BYTES):
        target.write(decoder.decode(piece))
        target.flush()
    target.write(decoder.decode(b"", final=True))
