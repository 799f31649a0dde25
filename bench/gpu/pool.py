"""A real pool that lends the one device, for what needs leases."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gpu.peer import BENCH, Peer, client

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 20.0
POLL_SECONDS = 0.02
FLAVOR = '[[flavors]]\nname = "trial"\nmemory = "{mib} MiB"\nequivalents = [{{ model = "trial", count = 1, share_milli = 1000 }}]\n'


class PoolSilent(Exception):
    """The pool did not start in time, or ended; the message has its last lines."""


class Pool:
    """A pool process for this user alone, with one flavor on one device."""

    def __init__(self, device: str, memory_bytes: int, root: Path, warm_workers: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="p-", dir=root))
        self.log = self.folder / "log"
        mib = memory_bytes // 2**20
        flavors = self.folder / "flavors.toml"
        flavors.write_text(FLAVOR.format(mib=mib), encoding="utf-8")
        settings = {
            "DEVICES": f'[{{ kind = "{device.partition(":")[0]}", model = "trial", memory = "{mib} MiB" }}]',
            "FLAVORS_FILE": str(flavors),
            "DEFAULT_FLAVOR": "trial",
            "WARM_WORKERS": str(warm_workers),
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        command = [sys.executable, "-m", "forebay_pool", "--embedded", "--state-dir", str(self.folder), "--port", "0"]
        command += ["--parent-pid", str(os.getpid())]
        with self.log.open("wb") as log:
            environment = kept | {f"FOREBAY_POOL_{name}": value for name, value in settings.items()}
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=BENCH, start_new_session=True)
        self.url, self.token = self._address()

    def _address(self) -> tuple[str, str]:
        ends = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < ends and self._process.poll() is None:
            with contextlib.suppress(FileNotFoundError, ValueError):
                written = json.loads((self.folder / "pool.json").read_text())
                return written["url"], written["token"]
            time.sleep(POLL_SECONDS)
        self.close()
        raise PoolSilent(" | ".join(self.log.read_text(errors="replace").strip().splitlines()[-3:]))

    def await_warm(self) -> None:
        """Returns when a worker that was started ahead of need is ready. Raises PoolSilent."""
        ends = time.monotonic() + START_SECONDS_MAX
        while not list(self.folder.rglob("*.sock")):
            if time.monotonic() > ends:
                raise PoolSilent("no worker got ready ahead of need")
            time.sleep(POLL_SECONDS)

    def client(self) -> Peer:
        """A process of this user, whose virtual device the pool serves."""
        return client(Path(tempfile.mkdtemp(prefix="c-", dir=self.folder)) / "log", self.url, self.token)

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def pool_on(device: str, memory_bytes: int, root: Path, warm_workers: int) -> Iterator[Pool]:
    """A started pool."""
    pool = Pool(device, memory_bytes, root, warm_workers)
    try:
        yield pool
    finally:
        pool.close()
