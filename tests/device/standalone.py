"""A worker without a pool, for one client in a process of its own."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import fork_server


@contextmanager
def standalone_worker(
    folder: Path,
    *options: str,
    memory_bytes: int = 1 << 30,
    python: str | Path | None = None,
    program: Sequence[str] = ("-m", "forebay_worker"),
) -> Iterator[tuple[str, str]]:
    """Address and ticket of a worker whose socket and log are in the folder. ``python``: where a test looks at its process."""
    address, ticket = f"unix:{folder}/worker.sock", secrets.token_hex(32)
    options = ("--ticket", ticket, "--memory", str(memory_bytes), *options)
    command = [python or fork_server.services(), *program, "--standalone", address, *options]
    with (folder / "worker.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    try:
        assert process.stdout is not None
        assert b"ready" in process.stdout.readline()
        yield address, ticket
    finally:
        process.kill()
        process.communicate()
