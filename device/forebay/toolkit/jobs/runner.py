"""The runner of a job: takes it at the pool, runs its program, sends what that prints, and says how it ended.

Nothing but the pool decides what is run and when: a runner whose job is not, or no longer, its own ends the program and itself.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import quote

from forebay.errors import ForebayError, NotConfigured, PoolRefused, PoolUnreachable
from forebay.service import URL_VARIABLE, Service, service_at
from forebay.toolkit.jobs.output import Output
from forebay.toolkit.jobs.page import served
from forebay.toolkit.jobs.program import Program
from forebay.toolkit.jobs.scratch import OVER, Scratch

NAME_PREFIX = "job-"
SEND_SECONDS = 1.0
HEARTBEAT_SECONDS = 10.0
ACTIVITY_SECONDS = 300.0
"""How often JupyterHub is told that the server is not idle, for what stops servers that are."""
RETRY_SECONDS = 2.0
BEGIN_SECONDS_MAX = 120.0
END_SECONDS_MAX = 86_400.0
"""For so long the end of a run is said to a pool that is away; the pool itself gives a silent runner up earlier, where it is there."""
STOPPED_SECONDS_MAX = 4.0
"""Where JupyterHub stops the runner there is no time for more."""
KEY_BYTES = 16
MOVE_SECONDS_MAX = 1_800.0
"""For so long a pool that is away is asked again for a job's files, or for room for them."""


@dataclass(frozen=True)
class End:
    """How a run ended, as the pool takes it."""

    exit_status: int | None
    reason: str | None


class NotOurs(Exception):
    """The pool says that the job is not, or no longer, this runner's."""


class _Stopped(Exception):
    """JupyterHub stops the runner."""


class Runner:
    """Of the job that the server's name says. Raises NotConfigured for an environment that JupyterHub did not make."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        number = environment.get("JUPYTERHUB_SERVER_NAME", "").removeprefix(NAME_PREFIX)
        if not number.isdecimal():
            raise NotConfigured("This runs the jobs of JupyterHub's servers that are named job-NUMBER; `forebay submit` makes a job.")
        self._path = f"api/jobs/{number}/"
        self._key = secrets.token_hex(KEY_BYTES)
        self._service: Service = service_at(environment.get(URL_VARIABLE, ""), environment)
        self._output = Output()
        self._stopped = False
        self._waited = False
        """Whether the pool knows that this run came to wait for a budget."""
        self._heard = 0.0
        self._active = float("-inf")
        self._scratch: Scratch | None = None
        """A job's own folder, once what was written there is sent."""

    def run(self) -> int:
        """Until the run is over and the pool knows it; the exit status."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        with served(self._environment.get("JUPYTERHUB_SERVICE_URL", "")):
            try:
                job = self._begin()
                self._finish(self._run(job))
            except (NotOurs, PoolUnreachable, PoolRefused) as error:
                sys.stderr.write(f"forebay: {error}\n")
                return 1
        return 0

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopped = True

    def _begin(self) -> Mapping[str, Any]:
        """The job, once the pool has given it to this runner. Raises NotOurs, PoolUnreachable."""
        answer = self._tell("begin", {"takes_files": True}, BEGIN_SECONDS_MAX)
        if not isinstance(answer, dict):
            raise self._service.no_service()
        return answer

    def _run(self, job: Mapping[str, Any]) -> End:
        scratch = None if job.get("files") is None else Scratch(job, self._service, self._go_on)
        try:
            if scratch is not None:
                self._fill(scratch)
            program = Program(job, self._output, self._environment, Path.home() if scratch is None else scratch.path)
        except ForebayError as error:
            self._output.write(f"forebay: {error}\n".encode())
            return End(None, "unstartable")
        except _Stopped:
            return End(None, "server_stopped")
        try:
            end = self._follow(program, job["time_limit_seconds"])
        except BaseException:
            program.end()
            raise
        if scratch is not None and end.reason != "server_stopped":
            self._send_back(scratch)
        return end

    # The files of a job that brought its own

    def _fill(self, scratch: Scratch) -> None:
        """Raises ForebayError, NotOurs, _Stopped."""
        self._patiently(scratch.fill)

    def _send_back(self, scratch: Scratch) -> None:
        """What the program wrote; where that cannot be, it stays, and the job's output says where."""
        try:
            self._patiently(lambda: scratch.send_back(self._key))
        except (ForebayError, _Stopped) as error:
            why = str(error) or "its server was stopped"
            self._output.write(f"\nforebay: what the job wrote stays in {scratch.path} of the hub's host: {why}\n".encode())
        else:
            self._scratch = scratch

    def _patiently(self, move: Callable[[], object]) -> None:
        """Again, where the pool is away. Raises ForebayError, NotOurs, _Stopped."""
        deadline = time.monotonic() + MOVE_SECONDS_MAX
        while True:
            try:
                move()
                return
            except PoolUnreachable:
                if time.monotonic() > deadline:
                    raise
            self._go_on()
            time.sleep(RETRY_SECONDS)

    def _go_on(self) -> None:
        """While files move: the pool hears that the run goes on. Raises NotOurs, _Stopped."""
        if self._stopped:
            raise _Stopped
        if time.monotonic() - self._heard > HEARTBEAT_SECONDS:
            with contextlib.suppress(PoolUnreachable):
                self._say("printed", {"pieces": []})
            self._heard = time.monotonic()
        self._tell_activity()

    def _follow(self, program: Program, limit_seconds: float | None) -> End:
        """Raises NotOurs."""
        began = time.monotonic()
        while (status := program.wait(SEND_SECONDS)) is None:
            self._send(program)
            self._tell_activity()
            if self._stopped:
                return End(program.end(), "server_stopped")
            if limit_seconds is not None and time.monotonic() - began > limit_seconds:
                return End(program.end(), "time_limit")
        loss = program.loss()
        if status and loss is not None:
            reason, why = loss
            said = "this run is lost" if reason == "worker_lost" else "this run is stopped by a budget"
            self._output.write(f"\nforebay: {said}: {why}\n".encode())
            return End(status, reason)
        return End(status, "exit_status" if status else None)

    def _send(self, program: Program) -> None:
        """What was printed since, that it goes on, or, once, that it waits for a budget. A pool that is away is tried again with the next.

        Raises NotOurs.
        """
        pieces, waits = self._output.waiting(), not self._waited and program.waits_for_budget
        if not pieces and not waits and time.monotonic() - self._heard < HEARTBEAT_SECONDS:
            return
        try:
            self._say("printed", {"pieces": pieces, **({"waits": "budget"} if waits else {})})
        except PoolUnreachable:
            return
        self._waited = self._waited or waits
        self._output.sent(pieces)
        self._heard = time.monotonic()

    def _tell_activity(self) -> None:
        """A hub that is away hears it the next time."""
        told, user = self._environment, self._environment.get("JUPYTERHUB_USER", "")
        if time.monotonic() - self._active < ACTIVITY_SECONDS or "JUPYTERHUB_API_URL" not in told:
            return
        self._active, now = time.monotonic(), datetime.now(UTC).isoformat()
        servers = {told["JUPYTERHUB_SERVER_NAME"]: {"last_activity": now}}
        with contextlib.suppress(PoolUnreachable, PoolRefused):
            hub = replace(service_at(told["JUPYTERHUB_API_URL"], told), name="hub")
            hub.post(f"users/{quote(user, safe='')}/activity", {"servers": servers, "last_activity": now})

    def _finish(self, end: End) -> None:
        """Raises NotOurs, PoolUnreachable."""
        seconds = STOPPED_SECONDS_MAX if end.reason == "server_stopped" else END_SECONDS_MAX
        while pieces := self._output.waiting():
            self._tell("printed", {"pieces": pieces}, seconds)
            self._output.sent(pieces)
        self._tell("end", {"exit_status": end.exit_status, "reason": end.reason}, seconds)
        if self._scratch is not None and self._is_over():
            self._scratch.remove()

    def _is_over(self) -> bool:
        """Whether no other run follows, which would go on in the same folder."""
        try:
            return str(self._service.get(self._path.rstrip("/"))["state"]) in OVER
        except (PoolUnreachable, PoolRefused, KeyError, TypeError):
            return False

    def _tell(self, what: str, body: Mapping[str, Any], seconds: float) -> Any:
        """What the pool answers; one that is away is waited for. Raises NotOurs, PoolUnreachable."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self._say(what, body)
            except PoolUnreachable:
                if time.monotonic() > deadline or (self._stopped and seconds > STOPPED_SECONDS_MAX):
                    raise
            time.sleep(min(RETRY_SECONDS, seconds / 4))

    def _say(self, what: str, body: Mapping[str, Any]) -> Any:
        """Raises NotOurs, PoolUnreachable."""
        try:
            return self._service.post(self._path + what, {"key": self._key, **body})
        except PoolRefused as error:
            if error.status is not None and error.status >= 500:
                raise PoolUnreachable(str(error)) from None
            raise NotOurs(str(error)) from None
