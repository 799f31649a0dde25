"""Takes and gives the files of jobs on threads of its own, and removes those that nobody needs any more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from forebay_pool.errors import StoreUnavailable
from forebay_pool.settings import Settings
from forebay_pool.store.job_files import JobFiles
from forebay_pool.store.jobs import JobStore

SWEEP_SECONDS = 600.0
THREADS = 4
"""Members' bytes wait for each other, and nothing else does for them."""

log = logging.getLogger(__name__)
T = TypeVar("T")


class FileTransfers:
    """One for each pool that leads."""

    def __init__(self, files: JobFiles, jobs: JobStore) -> None:
        self.files = files
        self._jobs = jobs
        self.bytes = 0
        """What all files take on disk, as last looked at."""
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
            self.bytes = await self.do(self.files.sweep, needed)
        except (OSError, StoreUnavailable) as error:
            log.warning("files of jobs that nobody needs stay for now: %s", error, extra={"action": "job_files_stay"})

    def close(self) -> None:
        """Waits for nothing: what is written by half has no name."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def transfers_of(settings: Settings, jobs: JobStore) -> FileTransfers | None:
    """Where a folder can be had for the files of jobs."""
    folder = settings.job_files_dir or settings.state_dir / "job-files"
    files = JobFiles(folder.absolute(), settings.file_limits, time.time_ns)
    try:
        files.begin()
    except OSError as error:
        log.warning("no files of jobs are taken: %s", error, extra={"action": "job_files_off"})
        return None
    return FileTransfers(files, jobs)


def _tell_failure(done: Future[object]) -> None:
    if not done.cancelled() and done.exception() is not None:
        log.error("files of a job are not let go", exc_info=done.exception(), extra={"action": "job_files_failed"})
