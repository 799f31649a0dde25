"""The pool of ``FOREBAY_URL=local``: a child process, with a private directory that goes when this process goes."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, MutableMapping
from pathlib import Path

from forebay.errors import NotConfigured, PoolUnreachable
from forebay.service import LOCAL, TOKEN_VARIABLE, URL_VARIABLE, Service

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 10.0
POLL_SECONDS = 0.01
LOG_LINES_SHOWN = 3
DIRECTORY_PREFIX = "forebay-"
ADDRESS_FILE = "pool.json"


class EmbeddedPool:
    """Starts a pool with a worker on this machine, for this process and its children."""

    def __init__(self, withhold: Callable[[MutableMapping[str, str]], None]) -> None:
        """``withhold`` takes out of its environment what would keep it from finding GPUs of this host."""
        if importlib.util.find_spec("forebay_pool") is None:
            raise NotConfigured(
                f"{URL_VARIABLE}={LOCAL} needs the package forebay-pool in this environment ({sys.executable}); "
                f"install it, or set {URL_VARIABLE} to the address of a pool."
            )
        self._directory = Path(tempfile.mkdtemp(prefix=DIRECTORY_PREFIX))
        self._log = self._directory / "pool.log"
        self._owner = os.getpid()
        try:
            self._process = self._start(_environment(withhold))
            self.service = self._await_service()
        except BaseException:
            self.stop()
            raise

    @property
    def usable(self) -> bool:
        """Whether the pool runs, as far as this process can tell: in a forked child its parent's pool does."""
        return os.getpid() != self._owner or self._process.poll() is None

    def _start(self, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "forebay_pool", "--embedded", "--state-dir", str(self._directory)]
        command += ["--port", "0", "--parent-pid", str(self._owner)]
        with self._log.open("wb") as log:
            # A session of its own: Ctrl-C at the terminal is for the user's program, which then ends the pool in order.
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True)

    def _await_service(self) -> Service:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError, ValueError):
                return _read(self._directory / ADDRESS_FILE)
            if self._process.poll() is not None:
                raise PoolUnreachable(f"The embedded pool ended with status {self._process.returncode} as it started: {self._last_words()}")
            time.sleep(POLL_SECONDS)
        raise PoolUnreachable(f"The embedded pool did not start within {START_SECONDS_MAX:.0f} seconds: {self._last_words()}")

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        return " | ".join(lines[-LOG_LINES_SHOWN:]) or "it wrote nothing"

    def stop(self) -> None:
        """Ends the pool, then removes its directory. Does nothing in a forked child."""
        if os.getpid() != self._owner:
            return
        process = getattr(self, "_process", None)
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._remove_directory()

    def _remove_directory(self) -> None:
        """Workers of a pool that was killed may still be on their way out, and leave files behind the removal's back."""
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while self._directory.exists() and time.monotonic() < deadline:
            shutil.rmtree(self._directory, ignore_errors=True)
            time.sleep(POLL_SECONDS)


def running() -> list[Service]:
    """The embedded pools that programs of this user have on this machine now, or had until they were killed."""
    found = []
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{DIRECTORY_PREFIX}*/{ADDRESS_FILE}")):
        with contextlib.suppress(OSError, ValueError, KeyError):
            if path.parent.stat().st_uid == os.getuid():
                found.append(_read(path))
    return found


def _read(path: Path) -> Service:
    """What the pool wrote of itself. Raises FileNotFoundError before, ValueError while it writes."""
    written = json.loads(path.read_text())
    return Service(str(written["url"]).rstrip("/") + "/", str(written["token"]))


def _environment(withhold: Callable[[MutableMapping[str, str]], None]) -> dict[str, str]:
    """Ours, without what would make the pool a client of a pool, or a service of the JupyterHub that we run in."""
    own = (URL_VARIABLE, TOKEN_VARIABLE)
    kept = {name: value for name, value in os.environ.items() if name not in own and not name.startswith("JUPYTERHUB_")}
    withhold(kept)  # its workers look for GPUs of this host
    return kept
