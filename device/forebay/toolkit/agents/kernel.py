"""A kernel that an agent runs code in: of the user's environments, started as a notebook's is, and ended with the server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

import anyio
from jupyter_client.manager import AsyncKernelManager
from traitlets.config import Config

from forebay.errors import ForebayError
from forebay.service import BUDGET, FLAVOR_VARIABLE, LOSS_VARIABLE
from forebay.spans import LABEL_VARIABLE
from forebay.toolkit.agents.execution import Execution, StopReason
from forebay.toolkit.environments.environment import DEFAULT_KERNEL, environment
from forebay.toolkit.jobs.child_processes import end_with_parent

ENCRYPTED = Config({"KernelManager": {"transport_encryption": "auto"}})
"""What kernel and server say goes through a port of the machine, which others may be on."""
START_SECONDS_MAX = 60
LOOK_SECONDS = 0.1
"""How often a run is looked at for what stops it."""
INTERRUPT_SECONDS = (3.0, 7.0)
"""For so long a run that was interrupted is waited for, and again after a second interrupt; one that catches both goes on."""
END_SECONDS = 5.0
EXECUTIONS_MAX = 100
"""Runs of a kernel whose output is kept; the oldest are forgotten."""
HUB = "JUPYTERHUB_"
"""How variables begin that a notebook's server has, its token among them."""
PLAIN = "get_ipython().InteractiveTB.set_mode('Plain')"
"""Tracebacks without the lines around: those are long to read, and take IPython seconds to make in the middle of a large library."""
NO_BUDGET = f"{BUDGET}\n"

BELIEVED_SECONDS = 15.0
"""A wait for a budget ends a run after so long; sooner where billing says that it is the experiment's. The pool hears some seconds later
than billing that a budget was raised."""
ASK_SECONDS = 1.0
"""How often billing is asked."""

Tell = Callable[[Execution], Awaitable[None]]
"""Is told of a run that goes on."""


@dataclass(frozen=True)
class Payment:
    """Who pays for a run."""

    experiment: str
    label: str
    is_spent: Callable[[], Awaitable[bool]]
    """Whether billing says that its budget is used up."""


@dataclass(frozen=True)
class KernelSettings:
    """What a kernel begins with; None is as for a new notebook of the user."""

    flavor: str | None = None
    environment: str | None = None


class Kernel:
    """Runs one piece of code at a time; each belongs to an experiment, to which its device time is billed."""

    def __init__(self, name: str, settings: KernelSettings) -> None:
        self.name = name
        self.settings = settings
        kernel = DEFAULT_KERNEL if settings.environment is None else environment(settings.environment).kernel
        self._manager = AsyncKernelManager(kernel_name=kernel, config=ENCRYPTED)
        self._client: Any = None
        self._readers: list[asyncio.Task[None]] = []
        self._executions: dict[str, Execution] = {}
        """By the message that asked for it."""
        self._count = 0
        self._experiment: str | None = None
        self.key = f"{name}-{uuid.uuid4().hex[:12]}-"
        """How the ids of its runs begin."""
        self.experiments: dict[str, None] = {}
        """All that its runs were of, in order."""
        descriptor, name_of_file = tempfile.mkstemp(prefix="forebay-kernel-")
        os.close(descriptor)
        self._stop_file = Path(name_of_file)
        """Where the virtual device says what stops it."""

    async def start(self) -> None:
        """Raises ForebayError where it does not start."""
        try:
            await self._manager.start_kernel(env=self._variables(), stdout=subprocess.DEVNULL, preexec_fn=end_with_parent)
            self._client = self._manager.client()
            self._client.start_channels()
            await self._client.wait_for_ready(timeout=START_SECONDS_MAX)
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await self.end()
            if isinstance(error, Exception):
                raise ForebayError(f"The kernel {self.name} does not start: {error}.") from None
            raise
        self._send(PLAIN, silent=True)
        self._readers = [asyncio.create_task(self._read_output()), asyncio.create_task(self._read_replies())]

    def _variables(self) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(HUB) and name != LABEL_VARIABLE}
        flavor = {} if self.settings.flavor is None else {FLAVOR_VARIABLE: self.settings.flavor}
        return {**own, **flavor, LOSS_VARIABLE: str(self._stop_file)}

    async def _read_output(self) -> None:
        while True:
            message = await self._client.get_iopub_msg(timeout=None)
            execution = self._executions.get(message["parent_header"].get("msg_id", ""))
            if execution is not None:
                execution.take(message)

    async def _read_replies(self) -> None:
        """They say nothing that the output does not; unread they would pile up."""
        while True:
            with contextlib.suppress(Empty):
                await self._client.get_shell_msg(timeout=None)

    @property
    def executions(self) -> list[Execution]:
        """The latest last."""
        return list(self._executions.values())

    @property
    def busy(self) -> bool:
        return any(not execution.over for execution in self._executions.values())

    @property
    def unfinished(self) -> str | None:
        """The experiment whose budget stopped this kernel, where work of it still waits for more."""
        return self._experiment if self._budget_stop() else None

    def execution(self, number: int | None) -> Execution:
        """The run of that number, without one the latest. Raises ForebayError."""
        found = [execution for execution in self.executions if number in (None, execution.number)]
        if not found:
            raise ForebayError(f"The kernel {self.name} has no run {'yet' if number is None else number}, or it is forgotten.")
        return found[-1]

    async def run(self, code: str, payment: Payment, seconds_max: float, tell: Tell) -> Execution:
        """Runs code to its end, or until something stops it. Raises ForebayError where it is not begun."""
        if self.busy:
            raise ForebayError(f"The kernel {self.name} is busy; interrupt it, or run this in another kernel.")
        experiment, unfinished = payment.experiment, self.unfinished
        if unfinished not in (None, experiment):
            raise ForebayError(
                f"The kernel {self.name} has work of the experiment {unfinished} that its budget stopped, and it would be billed to "
                f"{experiment}; raise that budget, restart the kernel, or use another one."
            )
        self._stop_file.write_text("", encoding="utf-8")
        self._send(f"import os\nos.environ[{LABEL_VARIABLE!r}] = {payment.label!r}\ndel os", silent=True)
        self._experiment = experiment
        self.experiments[experiment] = None
        self._count += 1
        execution = Execution(self._count, f"{self.key}{self._count}", experiment)
        self._executions[self._send(code, silent=False, cell_id=execution.cell_id)] = execution
        if len(self._executions) > EXECUTIONS_MAX:
            del self._executions[next(iter(self._executions))]
        try:
            await self._follow(execution, payment, seconds_max, tell)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await self._stop(execution, "cancelled", None)
            raise
        return execution

    def _send(self, code: str, silent: bool, cell_id: str | None = None) -> str:
        content = {"code": code, "silent": silent, "store_history": not silent, "user_expressions": {}, "allow_stdin": False}
        metadata: Mapping[str, str] = {} if cell_id is None else {"cellId": cell_id}
        message = self._client.session.msg("execute_request", {**content, "stop_on_error": True}, metadata=metadata)
        self._client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    async def _follow(self, execution: Execution, payment: Payment, seconds_max: float, tell: Tell) -> None:
        wait = _Wait(payment)
        while not await execution.ended(LOOK_SECONDS):
            said = self._budget_stop()
            if not await self._manager.is_alive():
                execution.die()
            elif await wait.is_over(said):
                return await self._stop(execution, "budget_used_up", said)
            elif execution.seconds >= seconds_max:
                return await self._stop(execution, "timed_out", None)
            await tell(execution)

    def _budget_stop(self) -> str | None:
        """What the pool says of a budget for which this kernel waits."""
        with contextlib.suppress(OSError):
            said = self._stop_file.read_text(encoding="utf-8", errors="replace")
            if said.startswith(NO_BUDGET):
                return said.removeprefix(NO_BUDGET)
        return None

    async def _stop(self, execution: Execution, reason: StopReason, why: str | None) -> None:
        execution.stopped, execution.why = reason, why
        for seconds in INTERRUPT_SECONDS:
            await self._manager.interrupt_kernel()
            if await execution.ended(seconds):
                break

    async def interrupt(self) -> bool:
        """Interrupts what runs; whether anything did."""
        running = next((execution for execution in self.executions if not execution.over), None)
        if running is not None:
            await self._stop(running, running.stopped or "interrupted", running.why)
        return running is not None

    async def end(self) -> None:
        """Ends it with all its variables; its session at the pool, and the tensors there, end with it."""
        for reader in self._readers:
            reader.cancel()
        if self._client is not None:
            self._client.stop_channels()
        with contextlib.suppress(Exception):  # of a kernel that never began
            with anyio.move_on_after(END_SECONDS):
                await self._manager.shutdown_kernel(now=False)
            await self._manager.shutdown_kernel(now=True)
        for execution in self.executions:
            if not execution.over:
                execution.die()
        self._stop_file.unlink(missing_ok=True)


class _Wait:
    """A run's wait for a budget."""

    def __init__(self, payment: Payment) -> None:
        self._payment = payment
        self._since: float | None = None
        self._asked = float("-inf")

    async def is_over(self, said: str | None) -> bool:
        """Whether nothing but more money helps; ``said`` is what the pool says of a budget."""
        now = time.monotonic()
        self._since = None if said is None else self._since or now
        if self._since is None or now - self._since >= BELIEVED_SECONDS:
            return self._since is not None
        if now - self._asked < ASK_SECONDS:
            return False
        self._asked = now
        return await self._payment.is_spent()
