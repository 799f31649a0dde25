"""The runner of a job: takes it at the pool, runs its program, sends what that prints, and says how it ended.

Nothing but the pool decides what is run and when: a runner whose job is not, or no longer, its own ends the program and itself.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import FrameType
from typing import Any
from urllib.parse import quote

from forebay.errors import ForebayError, NotConfigured, PoolRefused, PoolUnreachable
from forebay.service import URL_VARIABLE, Service, service_at
from forebay.toolkit.jobs.output import Output
from forebay.toolkit.jobs.page import served
from forebay.toolkit.jobs.program import Program

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


@dataclass(frozen=True)
class End:
    """How a run ended, as the pool takes it."""

    exit_status: int | None
    reason: str | None


class NotOurs(Exception):
    """The pool says that the job is not, or no longer, this runner's."""


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
        answer = self._tell("begin", {}, BEGIN_SECONDS_MAX)
        if not isinstance(answer, dict):
            raise self._service.no_service()
        return answer

    def _run(self, job: Mapping[str, Any]) -> End:
        try:
            program = Program(job, self._output, self._environment)
        except ForebayError as error:
            self._output.write(f"forebay: {error}\n".encode())
            return End(None, "unstartable")
        try:
            return self._follow(program, job["time_limit_seconds"])
        except BaseException:
            program.end()
            raise

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
