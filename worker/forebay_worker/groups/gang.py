"""The workers of a session's other devices: child processes of the first one's, which is their only client."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from forebay_worker import WorkerError
from forebay_worker.pytorch import SeenDevice

TICKET_VARIABLE = "FOREBAY_WORKER_TICKET"
WORD_SECONDS = 2.0
"""How long the executor has to tell its client that a device is gone, before this worker ends."""
STOP_SECONDS_MAX = 10.0


class Gang:
    """One process for each of the devices, which ends with this one.

    They listen on sockets in ``folder``, or in a folder of their own that goes with them.
    """

    def __init__(self, devices: Sequence[SeenDevice], folder: Path | None, name: str, options: Sequence[str]) -> None:
        self._devices = devices
        self._own_folder = Path(tempfile.mkdtemp(prefix="forebay-")) if folder is None else None
        self._folder = folder or self._own_folder
        self._name = name
        self._options = options
        self._processes: list[subprocess.Popen[bytes]] = []
        self.others: list[tuple[str, bytes]] = []
        """Where each listens, and the ticket that it is shown."""

    def start(self) -> None:
        """Returns at once."""
        for number, device in enumerate(self._devices, 1):
            address, ticket = f"unix:{self._folder}/{self._name}.{number}.sock", secrets.token_bytes(32)
            command = [sys.executable, "-m", "forebay_worker", "--standalone", address, "--device", device.device, *self._options]
            environ = {**os.environ, TICKET_VARIABLE: ticket.hex()}
            self._processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environ))
            self.others.append((address, ticket))

    async def watch(self) -> None:
        """Raises WorkerError when one of them has ended, a little later than the executor could tell its client."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[SeenDevice] = loop.create_future()
        descriptors = [os.pidfd_open(process.pid) for process in self._processes]
        for device, descriptor in zip(self._devices, descriptors, strict=True):
            loop.add_reader(descriptor, settle, ended, device)
        try:
            device = await ended
            await asyncio.sleep(WORD_SECONDS)
        finally:
            for descriptor in descriptors:
                loop.remove_reader(descriptor)
                os.close(descriptor)
        raise WorkerError(f"the process of device {device.device} ended")

    def stop(self) -> None:
        """Ends them and waits until they are gone."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._own_folder is not None:
            shutil.rmtree(self._own_folder, ignore_errors=True)


def settle(ended: asyncio.Future[SeenDevice], device: SeenDevice) -> None:
    """Notes the device whose process ended first."""
    if not ended.done():
        ended.set_result(device)
