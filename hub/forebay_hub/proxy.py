"""JupyterHub's proxy as the hub keeps it: traefik is watched, buried, and started again; it ends with the hub.

It faces the network, so it may have an account of its own, of which it needs its two files and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from forebay_service.account import Account
from forebay_service.processes.supervisor import Pauses, ending, say
from jupyterhub_traefik_proxy.fileprovider import TraefikFileProviderProxy
from jupyterhub_traefik_proxy.traefik_utils import TraefikConfigFileHandler
from traitlets import Instance

WATCH_SECONDS = 0.5


def hand_over(path: str, account: Account) -> None:
    """Lets the account's group read a file of ours, and nobody else. Raises OSError."""
    os.chown(path, os.getuid(), account.gid)
    os.chmod(path, 0o640)


class RoutesFile(TraefikConfigFileHandler):  # type: ignore[misc] # no type information in that package
    """The routes, which the proxy reads anew whenever the file is replaced: so each is readable to its account before it stands there."""

    def __init__(self, path: str, account: Account) -> None:
        super().__init__(path)
        self._account = account

    def atomic_dump(self, data: Mapping[str, Any]) -> None:
        """Raises OSError."""
        path = Path(self.file_path)
        with NamedTemporaryFile("w", prefix=f"{path.name}-", dir=path.parent, delete=False) as draft:
            try:
                self._dump(data, draft)
                draft.flush()
                hand_over(draft.name, self._account)
                os.replace(draft.name, path)
            except BaseException:
                os.unlink(draft.name)
                raise


class KeptTraefik(TraefikFileProviderProxy):  # type: ignore[misc] # no type information in that package
    """Traefik reads its routes from the file that the hub writes, so that one which is started again serves them all at once."""

    account = Instance(
        Account,
        allow_none=True,
        config=True,
        help="What the proxy runs as, where the hub is root. Its group must be able to read the folder of the two configuration files.",
    )
    _watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await super().start()
        self._watching = asyncio.create_task(self._watch(), name="proxy-watch")

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        await super().stop()

    async def _setup_traefik_static_config(self) -> None:
        """The first that is done when it starts."""
        await super()._setup_traefik_static_config()
        if self.account is not None:
            hand_over(self.static_config_file, self.account)
            self.dynamic_config_handler = RoutesFile(self.dynamic_config_file, self.account)

    def _start_traefik(self) -> None:
        command = ["traefik", "--configfile", os.path.abspath(self.static_config_file)]
        variables = dict(os.environ)
        if self.account is not None:
            command = self.account.command(command)
            variables = {"PATH": os.environ.get("PATH", os.defpath)}  # the hub's others are not its
        command = [sys.executable, "-m", "forebay_service.processes.parent_death", *command]
        self.traefik_process = subprocess.Popen(command, env={**variables, **self.traefik_env})

    async def _watch(self) -> None:
        """Until cancelled."""
        pauses, began = Pauses(), time.monotonic()
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            status = self.traefik_process.poll()
            if status is None:
                continue
            pause = pauses.after(time.monotonic() - began)
            say(f"the proxy {ending(status)}; it is started again in {pause:g} s")
            await asyncio.sleep(pause)
            began = time.monotonic()
            await self._start_again()

    async def _start_again(self) -> None:
        try:
            self._start_traefik()
            await self._wait_for_static_config()
        except (OSError, TimeoutError) as error:
            say(f"the proxy does not answer: {error or type(error).__name__}")
        else:
            say("the proxy is back")
