"""The kernels of a server, by the names that the agent gives them."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict

from forebay.errors import ForebayError
from forebay.toolkit.agents.kernel import Kernel, KernelSettings

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
KERNELS_MAX = 16


class Registry:
    """Starts kernels when they are first asked for, and ends all of them with the server."""

    def __init__(self) -> None:
        self._kernels: dict[str, Kernel] = {}
        self._starting: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @property
    def kernels(self) -> list[Kernel]:
        return list(self._kernels.values())

    def kernel(self, name: str) -> Kernel:
        """Raises ForebayError where there is none."""
        found = self._kernels.get(name)
        if found is None:
            raise ForebayError(f"There is no kernel {name!r}; there are: {', '.join(self._kernels) or 'none'}.")
        return found

    async def started(self, name: str, settings: KernelSettings | None = None) -> Kernel:
        """The kernel of that name, which is started where it is not there. Raises ForebayError, also where it has other settings."""
        if NAME.fullmatch(name) is None:
            raise ForebayError(f"{name!r} is no name of a kernel: letters, digits, _, . and -, 64 at most.")
        async with self._starting[name]:
            found = self._kernels.get(name)
            if found is None:
                found = await self._start(name, settings or KernelSettings())
            elif settings not in (None, found.settings):
                raise ForebayError(f"The kernel {name} is there already with another flavor or environment; end it first.")
            return found

    async def _start(self, name: str, settings: KernelSettings) -> Kernel:
        if len(self._kernels) + sum(lock.locked() for lock in self._starting.values()) > KERNELS_MAX:
            raise ForebayError(f"There are {KERNELS_MAX} kernels already; end one that you need no more.")
        kernel = Kernel(name, settings)
        await kernel.start()
        self._kernels[name] = kernel
        return kernel

    async def restart(self, name: str) -> Kernel:
        """A new kernel of the same name and settings. Raises ForebayError."""
        settings = self.kernel(name).settings
        await self.end(name)
        return await self.started(name, settings)

    async def end(self, name: str) -> None:
        """Raises ForebayError."""
        kernel = self.kernel(name)
        del self._kernels[name]
        await kernel.end()

    async def end_all(self) -> None:
        """Side by side."""
        kernels, self._kernels = self.kernels, {}
        await asyncio.gather(*(kernel.end() for kernel in kernels))
