"""Takes and gives the files of jobs on threads of its own, and removes those that nobody needs any more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from forebay_pool.errors import StoreUnavailable
from forebay_pool.store.job_files import JobFiles
from forebay_pool.store.jobs import JobStore

SWEEP_SECONDS = 600.0
THREADS = 4
"""Members' bytes wait for each other, and nothing else does for them."""

log = logging.getLogger(__name__)
T = TypeVar("T")


class FileKeeper:
    """One for each pool that leads. ``told`` hears how many bytes all files take."""

    def __init__(self, files: JobFiles, jobs: JobStore, told: Callable[[int], None]) -> None:
        self.files = files
        self._jobs = jobs
        self._told = told
        self.links: Counter[tuple[str, str]] = Counter()
        """That are open, by tenant and user."""
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="job-files")

    async def do(self, call: Callable[..., T], *arguments: Any) -> T:
        """What a call gives that reads or writes files."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(call, *arguments))

    def later(self, call: Callable[..., object], *arguments: Any) -> None:
        """Makes a call that nobody waits for."""
        with contextlib.suppress(RuntimeError):  # the pool ends
            self._threads.submit(partial(call, *arguments)).add_done_callback(_tell_failure)

    async def needed(self, tenant: str, user: str) -> set[str]:
        """The lists that jobs of a member need. Raises StoreUnavailable."""
        return (await asyncio.to_thread(self._jobs.files_needed)).get((tenant, user), set())

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.sweep()
            await asyncio.sleep(SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Once. Where it cannot be known what is needed, all stays."""
        try:
            needed = await asyncio.to_thread(self._jobs.files_needed)
            self._told(await self.do(self.files.sweep, needed))
        except (OSError, StoreUnavailable) as error:
            log.warning("files of jobs that nobody needs stay for now: %s", error, extra={"action": "job_files_stay"})

    def close(self) -> None:
        """Waits for nothing: what is written by half has no name."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _tell_failure(done: Future[object]) -> None:
    if not done.cancelled() and done.exception() is not None:
        log.error("files of a job are not let go", exc_info=done.exception(), extra={"action": "job_files_failed"})
