"""``sandboxed_program.py BOUNDS -- ARGUMENTS``: runs a program in the sandbox of users' processes, and prints how it ended, as JSON.

BOUNDS are JSON: ``memory_bytes``, ``processes``, ``files_bytes``, and maybe ``egress``, the places that it may be let out to."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from forebay_worker.remote.egress import Egress
from forebay_worker.remote.host import _environment, _readable
from forebay_worker.remote.sandbox import Order
from forebay_worker.remote.sandboxed_process import NotConfined, SandboxedProcess
from forebay_worker.remote.scratch import SOCKET, Scratch, own_account


async def outcome(bounds: dict[str, Any], arguments: tuple[str, ...]) -> dict[str, Any]:
    scratch = Scratch(Path(tempfile.gettempdir()), own_account())
    process = await SandboxedProcess.prepare(scratch)
    limits = (bounds["memory_bytes"], bounds["processes"], bounds["files_bytes"])
    egress = Egress(f"{scratch.path}/{SOCKET}", bounds["egress"]) if "egress" in bounds else None
    order = Order(scratch.path, arguments, own_account(), _readable(), _environment(), *limits)
    try:
        if egress is not None:
            await egress.open()
            order = dataclasses.replace(order, egress=egress.path)
        await process.start(order)
        process.input.close()
        pumps = asyncio.gather(process.output.read(), process.errors.read())
        ended = await process.end()
        output, errors = await pumps
        told = {"status": ended.status, "why": ended.why, "output": output.decode(), "errors": errors.decode()}
    except NotConfined as error:
        told = {"unconfined": str(error)}
    if egress is not None:
        egress.close()
    process.let_go()
    await process.gone()
    return told | {"left": os.path.exists(scratch.path)}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(outcome(json.loads(sys.argv[1]), tuple(sys.argv[3:])))))
