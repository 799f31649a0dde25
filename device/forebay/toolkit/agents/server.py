"""The server of tools: on standard input and output, as agents start it, by the official SDK of the Model Context Protocol.

https://modelcontextprotocol.io
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from forebay.client import Client
from forebay.errors import ForebayError
from forebay.toolkit.agents.experiments import Experiments
from forebay.toolkit.agents.kernel_tools import KernelTools
from forebay.toolkit.agents.money_tools import MoneyTools
from forebay.toolkit.agents.registry import Registry
from forebay.toolkit.agents.service_tools import ServiceTools

INSTRUCTIONS = """\
Runs Python with PyTorch on virtual GPUs that are billed by the second of device time, and only while something computes.
Begin with set_budget (a name and an amount), then run_code with that name as experiment. A kernel keeps its variables between runs;
several kernels run side by side. Where a budget is used up the run is interrupted and tensors stay: raise the budget and go on.
"""


def server_of(client: Client) -> MCPServer[None]:
    """Its kernels end with it."""
    registry, experiments = Registry(), Experiments(client)

    @asynccontextmanager
    async def life(_server: MCPServer[None]) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await registry.end_all()

    server = MCPServer[None]("forebay", instructions=INSTRUCTIONS, version=version("forebay"), lifespan=life, log_level="WARNING")
    for group in (KernelTools(registry, experiments), MoneyTools(client, experiments, registry), ServiceTools(client, experiments)):
        for tool in group.tools:
            server.add_tool(reporting(tool))
    return server


def reporting(tool: Callable[..., Any]) -> Callable[..., Any]:
    """The tool, whose refusals are the sentence that the agent reads."""
    if inspect.iscoroutinefunction(tool):

        @functools.wraps(tool)
        async def later(*arguments: Any, **named: Any) -> Any:
            try:
                return await tool(*arguments, **named)
            except ForebayError as error:
                raise ToolError(str(error)) from None

        return later

    @functools.wraps(tool)
    def now(*arguments: Any, **named: Any) -> Any:
        try:
            return tool(*arguments, **named)
        except ForebayError as error:
            raise ToolError(str(error)) from None

    return now
