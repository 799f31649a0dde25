"""JupyterHub's proxy as the hub keeps it: traefik is watched, buried, and started again; it ends with the hub."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time

from forebay_service.keeper import Pauses, ending, say
from jupyterhub_traefik_proxy.fileprovider import TraefikFileProviderProxy

WATCH_SECONDS = 0.5


class KeptTraefik(TraefikFileProviderProxy):  # type: ignore[misc] # no type information in that package
    """Traefik reads its routes from the file that the hub writes, so that one which is started again serves them all at once."""

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

    def _start_traefik(self) -> None:
        command = [sys.executable, "-m", "forebay_service.leash", "traefik", "--configfile", os.path.abspath(self.static_config_file)]
        self.traefik_process = subprocess.Popen(command, env={**os.environ, **self.traefik_env})

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
