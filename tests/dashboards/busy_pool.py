"""A pool with as many live leases as asked for, that open and close all the time: its reading endpoints and its event stream."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import deque
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

FLUSH_SECONDS = 0.05
"""As the pool's board does."""
MODELS = ("H200", "MI300X", "MI250", "L40S")
DEVICES_PER_NODE = 8


class Fleet:
    """Leases, each on a device of its own and of a session of its own."""

    def __init__(self, leases: int) -> None:
        self.chance = random.Random(1)
        self.opened: dict[str, float] = {}
        self.order: deque[str] = deque()
        self.leases: dict[str, dict[str, Any]] = {}
        self.watchers: set[asyncio.Queue[str]] = set()
        self.number = 0
        self.free = list(range(leases))
        while self.free:
            self.open()

    def open(self) -> None:
        """A lease opens on a device that is free."""
        self.number += 1
        name, seat = f"lease-{self.number}", self.free.pop()
        self.leases[name] = {
            "lease": name, "session": f"session-{seat}", "tenant": f"tenant-{seat % 40}", "user": f"user-{seat % 300}",
            "flavor": "small.64gb", "device_model": MODELS[seat % 4], "node": f"node-{seat // DEVICES_PER_NODE}", "devices": 1,
            "share_milli": 1000, "span": {"id": name, "kind": "cell", "label": f"work-{seat % 77}.ipynb", "cell": self.number},
            "opened_at_ns": time.time_ns(), "duration_ns": 0, "price_nano_per_hour": 2_990_000_000, "currency": "USD", "seat": seat,
        }  # fmt: skip
        self.opened[name] = time.time()
        self.order.append(name)
        self.tell("lease", self.lease(name))
        self.show_seat(seat, name)

    def close(self) -> None:
        """The oldest but some lease ends."""
        self.order.rotate(-self.chance.randrange(20))
        name = self.order.popleft()
        row = self.lease(name)
        del self.leases[name]
        self.free.append(row["seat"])
        self.tell("lease", row | {"removed": True})
        self.show_seat(row["seat"], None)

    def show_seat(self, seat: int, lease: str | None) -> None:
        self.tell("session", self.session(seat, lease))
        self.tell("device", self.device(seat, lease))

    def lease(self, name: str) -> dict[str, Any]:
        row = self.leases[name]
        return row | {"duration_ns": time.time_ns() - row["opened_at_ns"]}

    def session(self, seat: int, lease: str | None) -> dict[str, Any]:
        return {
            "session": f"session-{seat}", "tenant": f"tenant-{seat % 40}", "user": f"user-{seat % 300}", "flavor": "small.64gb",
            "device_model": MODELS[seat % 4], "state": "active" if lease else "resident", "span": None, "process": "ipykernel",
            "memory_bytes": 2**33, "position": None, "reason": None, "since_ns": time.time_ns(),
        }  # fmt: skip

    def device(self, seat: int, lease: str | None) -> dict[str, Any]:
        return {
            "device": f"node-{seat // DEVICES_PER_NODE}/gpu:{seat % DEVICES_PER_NODE}", "node": f"node-{seat // DEVICES_PER_NODE}",
            "kind": "cuda", "model": MODELS[seat % 4], "vendor": "nvidia", "memory_bytes": 141 * 2**30,
            "state": "leased" if lease else "free", "cordoned": False, "cause": None, "temperature_celsius": 55,
            "free_milli": 0 if lease else 1000, "lease": lease, "leases": [lease] if lease else [], "residents": [],
        }  # fmt: skip

    def holders(self) -> dict[int, str]:
        return {row["seat"]: name for name, row in self.leases.items()}

    def tell(self, name: str, row: dict[str, Any]) -> None:
        for watcher in self.watchers:
            watcher.put_nowait(f"event: {name}\ndata: {json.dumps(row)}\n\n")

    async def live(self, turnover: float) -> None:
        """So many leases a second close, and as many open."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            for _ in range(round(turnover * FLUSH_SECONDS)):
                self.close()
                self.open()


class Answer(RequestHandler):
    """Everything that is read."""

    def initialize(self, fleet: Fleet) -> None:
        self.fleet = fleet

    async def get(self, what: str) -> None:
        fleet = self.fleet
        if what == "events":
            await self.stream()
            return
        holders = fleet.holders()
        seats = sorted({*holders, *fleet.free})
        answers = {
            "leases": lambda: [fleet.lease(name) for name in fleet.leases],
            "sessions": lambda: [fleet.session(seat, holders.get(seat)) for seat in seats],
            "devices": lambda: [fleet.device(seat, holders.get(seat)) for seat in seats],
            "nodes": lambda: [
                {"node": f"node-{seat // DEVICES_PER_NODE}", "state": "up", "devices": DEVICES_PER_NODE}
                for seat in seats[::DEVICES_PER_NODE]
            ],
            "flavors": list,
            "quotas": list,
            "shares": list,
            "models": list,
            "forecast": list,
            "opened": lambda: fleet.opened,
        }
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(answers[what]()))

    async def stream(self) -> None:
        queue: asyncio.Queue[str] = asyncio.Queue()
        self.fleet.watchers.add(queue)
        self.set_header("Content-Type", "text/event-stream")
        try:
            self.write(": here\n\n")
            await self.flush()
            while True:
                self.write(await queue.get())
                while not queue.empty():
                    self.write(queue.get_nowait())
                await self.flush()
        except StreamClosedError:
            self.fleet.watchers.discard(queue)


async def serve(port: int, leases: int, turnover: float) -> None:
    fleet = Fleet(leases)
    routes = [(r"/services/pool/api/(\w+)", Answer, {"fleet": fleet}), (r"/services/pool/health", RequestHandler)]
    server = HTTPServer(Application(routes, log_function=lambda handler: None))
    server.add_sockets(bind_sockets(port, "127.0.0.1"))
    await fleet.live(turnover)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--leases", type=int, default=1000)
    parser.add_argument("--turnover", type=float, default=40, help="leases a second that close, and as many that open")
    options = parser.parse_args()
    asyncio.run(serve(options.port, options.leases, options.turnover))


if __name__ == "__main__":
    main()
