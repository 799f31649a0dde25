"""A real program on a real pool and worker, billed by real billing: its bill is what its own record says."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fork_server
import pytest
from price_books import POOL, Books, billing
from programs import output_of

pytestmark = pytest.mark.skipif(importlib.util.find_spec("forebay_worker._executor") is None, reason="the worker's extension is not built")
Make = Callable[..., Any]
PROGRAM = """
import time, torch
a = torch.ones(64, 64, device="cuda:0")
for _ in range(3):
    a = (a @ a).clamp(max=1)
    print(float(a.sum()), flush=True)
    time.sleep(0.6)
"""
COMMAND = "import sys; from forebay.toolkit.command import main; sys.exit(main(sys.argv[1:]))"
FLAVOR = {"memory_bytes": 2**28, "equivalents": [{"model": "cpu-dev", "count": 1}]}


def settings(opened: Books) -> dict[str, Any]:
    devices = [{"kind": "cpu", "model": "cpu-dev", "memory": "4 GiB"}]
    told = {"billing_url": opened.url, "hub_token": POOL, "price_poll_seconds": 0.05, "heartbeat_seconds": 0.1}
    return told | {"devices": devices, "real_workers": True, "idle_release_seconds": 0.3, "default_flavor": "paid"}


async def command(running: Any, folder: Path, *words: str) -> tuple[int, str]:
    """Exit status and what it prints, as ada."""
    environment = os.environ | {"FOREBAY_URL": running.service.url, "FOREBAY_TOKEN": "ada", "FOREBAY_RECEIPTS": str(folder)}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = await asyncio.create_subprocess_exec(fork_server.programs(), "-c", COMMAND, *words, env=environment, **pipes)
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, out.decode()


async def draft(running: Any, books: Books, path: Path) -> Path:
    """The month's draft, once all sessions are over and all that was metered has arrived."""
    await running.until(lambda: not (running.machine.sessions or running.rows("open_leases") or running.rows("usage_outbox")))
    found = await books.ask("GET", f"api/drafts?tenant=acme&month={time.strftime('%Y-%m', time.gmtime())}")
    path.write_text(json.dumps(found))
    return path


def test_the_bill_of_a_program_is_what_its_record_says_and_what_a_killed_one_missed_is_fetched(pool: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        kept = tmp_path / "receipts"
        async with billing(tmp_path, {"paid": 2_990_000_001}) as books, pool(**settings(books)) as running:
            assert (await running.call("PUT", "api/flavors/paid", body=FLAVOR)).code == 200
            receipts = running.service.shell.receipts
            await running.until(lambda: receipts.prices("USD", ["paid"], []))
            lines, _ = await output_of(running, PROGRAM, FOREBAY_RECEIPTS=str(kept))
            assert lines == ["4096.0"] * 3
            path = await draft(running, books, tmp_path / "draft.json")
            status, out = await command(running, kept, "bill", "verify", str(path))
            assert status == 0, out
            assert "1 line of leases, equal to the receipts to the nano-unit." in out

            environment = os.environ | {"FOREBAY_URL": running.service.url, "FOREBAY_TOKEN": "ada", "FOREBAY_RECEIPTS": str(kept)}
            killed = await asyncio.create_subprocess_exec(fork_server.programs(), "-c", PROGRAM, env=environment, stdout=subprocess.PIPE)
            assert killed.stdout is not None and await killed.stdout.readline()
            killed.send_signal(signal.SIGKILL)
            await killed.wait()
            path = await draft(running, books, tmp_path / "draft.json")
            status, out = await command(running, kept, "bill", "verify", str(path))
            assert status == 3 and out.startswith("open: lease ") and "\ntime: " in out, out
            status, out = await command(running, kept, "bill", "fetch")
            assert status == 0 and out.startswith("1 of "), out
            status, out = await command(running, kept, "bill", "verify", str(path))
            assert status == 0, out

    asyncio.run(scenario())
