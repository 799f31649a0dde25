"""The steps of a server's start, for whoever watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any


class Steps:
    """Everybody who follows sees all steps from the first one on."""

    def __init__(self) -> None:
        self.over = False
        self._steps: list[dict[str, Any]] = []
        self._news = asyncio.Event()

    def tell(self, progress: int, message: str) -> None:
        """``progress`` is in hundredths of the whole start, the hub's own waiting for the server included."""
        self._steps.append({"progress": progress, "message": message})
        self._wake()

    def end(self) -> None:
        """No more will come."""
        self.over = True
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def follow(self) -> AsyncIterator[dict[str, Any]]:
        """The steps as JupyterHub's progress events, until the end."""
        for number in count():
            while number == len(self._steps):
                if self.over:
                    return
                await self._news.wait()
            yield self._steps[number]
