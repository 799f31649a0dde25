"""Programs of users that run beside a test."""

from __future__ import annotations

import asyncio
import os
import subprocess
from typing import Any

import fork_server

PATIENCE_SECONDS = 120.0


async def printed(text: str, *arguments: str, **environment: str) -> tuple[list[str], str]:
    """What a program prints that ends well, and what it complains of; of ours its environment has what is given alone."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = (fork_server.programs(), "-c", text, *arguments)
    process = await asyncio.create_subprocess_exec(*command, env=others | environment, **pipes)
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
    assert process.returncode == 0, err.decode()
    return out.decode().splitlines(), err.decode()


async def output_of(running: Any, text: str, *arguments: str, **more: str) -> tuple[list[str], str]:
    """The same of ada's, which computes by the pool."""
    return await printed(text, *arguments, FOREBAY_URL=running.service.url, FOREBAY_TOKEN="ada", OMP_NUM_THREADS="1", **more)
