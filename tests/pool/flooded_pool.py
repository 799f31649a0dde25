"""``flooded_pool.py STATE PYTHON SHARE``: a pool in a process of its own that knows fifty members who flood it, and ada, who does not.

Flooders have a device of their own to ask for: what is measured is what they take of the pool's time, and not of its devices.
Says its address, and serves until its standard input ends. PYTHON runs its workers.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from forebay_pool.model.types import Equivalent, Flavor
from forebay_pool.service import Service
from forebay_pool.settings import Settings
from forebay_service.identity import COMPUTE, Identity, TokenAuthenticator

FLOODERS = 50


def people() -> dict[str, Identity]:
    """By token. Five members of each of ten tenants flood."""
    flooders = {f"flooder-{number}": f"tenant-{number % 10}" for number in range(FLOODERS)}
    tenants = {"ada": "acme", "ben": "brace"} | flooders
    return {name: Identity(name, "user", tenant, frozenset({COMPUTE})) for name, tenant in tenants.items()}


async def main(state: str, python: str, share: str) -> None:
    values = {
        "host": "127.0.0.1", "port": 0, "state_dir": Path(state), "worker_python": Path(python), "peers_share": float(share),
        "devices": [{"kind": "cpu", "model": "cpu-dev", "memory": "4 GiB"}, {"kind": "null", "model": "flood-dev", "memory": "4 GiB"}],
        "default_flavor": "dev.1gb", "workers_max": 32, "resume_seconds": 1.0,
    }  # fmt: skip
    flavors = tuple(Flavor(name, 2**30, (Equivalent("flood-dev", 1),)) for name in ("flood-1", "flood-2"))
    service = Service(Settings.load(None, {}, values, managed=False), TokenAuthenticator(people()), os.environ, flavors)
    await service.start()
    print(service.url, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await service.stop()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
