"""The tools that run code: kernels, and what they printed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import anyio.to_thread
from mcp.server.mcpserver import Context
from pydantic import Field

from forebay.toolkit.agents.execution import Execution
from forebay.toolkit.agents.experiments import Experiments, label_of
from forebay.toolkit.agents.kernel import Kernel, KernelSettings, Payment
from forebay.toolkit.agents.registry import Registry

CODE_CHARS_MAX = 200_000
OUTPUT_CHARS_MAX = 20_000
"""Of one answer."""
NOTES_SHOWN = 10
TELL_SECONDS = 1.0
SECONDS_DEFAULT = 300
SECONDS_MAX = 86_400

KernelName = Annotated[str, Field(description="Name of a kernel, as you like: letters, digits, _, . and -.")]
ExperimentName = Annotated[str, Field(description="Name of the experiment that pays for the device time; it needs a budget (set_budget).")]
Code = Annotated[str, Field(description="Python, as in one notebook cell; %magics work.", max_length=CODE_CHARS_MAX)]
Seconds = Annotated[float, Field(description="The run is interrupted after so many seconds.", gt=0, le=SECONDS_MAX)]


@dataclass(frozen=True)
class RunResult:
    """What became of a run."""

    kernel: str
    run: int
    id: str
    """Names the run in costs."""
    experiment: str
    status: str
    """running, ok, error, interrupted, timed_out, budget_used_up, cancelled or died."""
    seconds: float
    output: str
    """Its end, where it is long: read_output has the rest."""
    output_start: int
    """Position of the first character of ``output``; 0: nothing was left out."""
    output_length: int
    error: str | None
    explanation: str | None
    """What to do, where something stopped the run."""
    device: list[str]
    """Device time, waits and cost, as a notebook shows them."""


@dataclass(frozen=True)
class OutputPage:
    """A page of what a run printed."""

    kernel: str
    run: int
    status: str
    text: str
    start: int
    next: int
    """Ask for this position next; at ``length`` there is no more now."""
    length: int


@dataclass(frozen=True)
class KernelRow:
    """A kernel of this server."""

    name: str
    busy: bool
    runs: int
    experiment: str | None
    """That of its latest run."""
    flavor: str | None
    environment: str | None


def explanation_of(execution: Execution) -> str | None:
    """What to do after a run that something stopped."""
    running = "" if execution.over else " It caught the interrupt and still runs; interrupt_kernel or restart_kernel ends it."
    match execution.status:
        case "budget_used_up":
            said = f" ({execution.why})" if execution.why else ""
            ways = "Variables and tensors stay. Raise it, an experiment's with set_budget, and go on from where it was interrupted."
            return f"A budget is used up{said}. {ways}{running}"
        case "timed_out":
            return f"The time for this run was over, so it was interrupted. Variables and tensors stay.{running}"
        case "died":
            return "The kernel's process has ended; restart_kernel starts it anew, without variables."
        case _:
            return running.strip() or None


class KernelTools:
    """Each method is a tool; its docstring tells agents what it does."""

    def __init__(self, registry: Registry, experiments: Experiments) -> None:
        self._registry = registry
        self._experiments = experiments

    @property
    def tools(self) -> list[Callable[..., Any]]:
        found: list[Callable[..., Any]] = [self.run_code, self.read_output, self.start_kernel, self.list_kernels, self.interrupt_kernel]
        return [*found, self.restart_kernel, self.end_kernel]

    async def run_code(
        self,
        code: Code,
        experiment: ExperimentName,
        context: Context,
        kernel: KernelName = "main",
        timeout_seconds: Seconds = SECONDS_DEFAULT,
    ) -> RunResult:
        """Run Python in a kernel that keeps its variables between runs, as a notebook does.

        PyTorch's `cuda:0` is a virtual GPU: device time costs only while something computes there. The kernel is started if it is not
        there. The run is interrupted after timeout_seconds, when this call is cancelled, and when the experiment's budget is used up;
        variables and tensors stay in all three cases. Long output is kept: read_output reads all of it.
        """
        payment = Payment(experiment, label_of(experiment), lambda: anyio.to_thread.run_sync(self._experiments.is_spent, experiment))
        await anyio.to_thread.run_sync(self._experiments.check, experiment)
        found = await self._registry.started(kernel)
        last = float("-inf")

        async def tell(execution: Execution) -> None:
            nonlocal last
            if time.monotonic() - last >= TELL_SECONDS:
                last = time.monotonic()
                await context.report_progress(execution.seconds, timeout_seconds, last_line(execution))

        return _result(found, await found.run(code, payment, timeout_seconds, tell))

    async def read_output(
        self,
        kernel: KernelName,
        run: Annotated[int | None, Field(description="Number of the run; without it the latest.")] = None,
        start: Annotated[int, Field(description="Position of the first character; negative: from the end.")] = 0,
        limit: Annotated[int, Field(description="How many characters at most.", ge=1, le=OUTPUT_CHARS_MAX)] = OUTPUT_CHARS_MAX,
    ) -> OutputPage:
        """Read what a run printed, page by page, while it runs too."""
        execution = self._registry.kernel(kernel).execution(run)
        page = execution.output.page(start, limit)
        return OutputPage(kernel, execution.number, execution.status, page.text, page.start, page.next, page.length)

    async def start_kernel(
        self,
        name: KernelName,
        flavor: Annotated[str | None, Field(description="Size of its virtual GPU (list_flavors); without it the user's choice.")] = None,
        environment: Annotated[str | None, Field(description="One of the user's environments of packages.")] = None,
    ) -> KernelRow:
        """Start a kernel with a certain flavor or environment. run_code starts one by itself where neither matters. It costs nothing."""
        return _row(await self._registry.started(name, KernelSettings(flavor, environment)))

    async def list_kernels(self) -> list[KernelRow]:
        """List the kernels of this server."""
        return [_row(kernel) for kernel in self._registry.kernels]

    async def interrupt_kernel(self, name: KernelName) -> str:
        """Interrupt what runs in a kernel, as Ctrl-C does. Variables and tensors stay."""
        return "It was interrupted." if await self._registry.kernel(name).interrupt() else "Nothing was running."

    async def restart_kernel(self, name: KernelName) -> KernelRow:
        """Start a kernel anew, with the same flavor and environment. Its variables, tensors and kept output are lost."""
        return _row(await self._registry.restart(name))

    async def end_kernel(self, name: KernelName) -> str:
        """End a kernel. Its variables, tensors and kept output are lost."""
        await self._registry.end(name)
        return f"The kernel {name} has ended."


def last_line(execution: Execution) -> str:
    """What it printed last, for who waits."""
    lines = execution.output.page(-200, 200).text.split()
    return " ".join(lines) or "running"


def _result(kernel: Kernel, execution: Execution) -> RunResult:
    page = execution.output.page(-OUTPUT_CHARS_MAX, OUTPUT_CHARS_MAX)
    return RunResult(
        kernel=kernel.name,
        run=execution.number,
        id=execution.cell_id,
        experiment=execution.experiment,
        status=execution.status,
        seconds=round(execution.seconds, 3),
        output=page.text,
        output_start=page.start,
        output_length=page.length,
        error=execution.error,
        explanation=explanation_of(execution),
        device=[text for text in execution.notes.values() if text][-NOTES_SHOWN:],
    )


def _row(kernel: Kernel) -> KernelRow:
    executions = kernel.executions
    experiment = executions[-1].experiment if executions else None
    return KernelRow(kernel.name, kernel.busy, len(executions), experiment, kernel.settings.flavor, kernel.settings.environment)

