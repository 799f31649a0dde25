"""A pool with as many live leases as asked for, that open and close all the time: its reading endpoints and its event stream."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import time
from collections import deque
from typing import Any

from forebay_pool.garbage import collect_rarely
from forebay_pool.model.timeline import Holding, stretches
from forebay_pool.model.trends import HOUR_NS, KEPT, REACHES, Over, Sample, Trend, folded
from forebay_pool.views.timeline import Timeline
from forebay_pool.views.trends import trend_rows
from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

FLUSH_SECONDS = 0.05
"""As the pool's board does."""
MODELS = ("H200", "MI300X", "MI250", "L40S")
DEVICES_PER_NODE = 8


def model_of(seat: int) -> str:
    """Nodes have devices of one model."""
    return MODELS[seat // DEVICES_PER_NODE % len(MODELS)]


class Fleet:
    """Leases, each on a device of its own and of a session of its own."""

    def __init__(self, leases: int) -> None:
        self.chance = random.Random(1)
        self.opened: dict[str, float] = {}
        self.order: deque[str] = deque()
        self.leases: dict[str, dict[str, Any]] = {}
        self.watchers: set[asyncio.Queue[str]] = set()
        self.number = 0
        self.trends_known: dict[int, Trend] = {}
        self.free = list(range(leases * 6 // 5 if leases >= 1000 else leases))
        """A fifth more devices than leases, where there are many; the others rest."""
        self.chance.shuffle(self.free)
        while len(self.leases) < leases:
            self.open()

    def open(self) -> None:
        """A lease opens on a device that is free."""
        self.number += 1
        name, seat = f"lease-{self.number}", self.free.pop()
        self.leases[name] = {
            "lease": name, "session": f"session-{seat}", "tenant": f"tenant-{seat % 40}", "user": f"user-{seat % 300}",
            "flavor": "small.64gb", "device_model": model_of(seat), "node": f"node-{seat // DEVICES_PER_NODE}", "devices": 1,
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
            "device_model": model_of(seat), "state": "active" if lease else "resident", "span": None, "process": "ipykernel",
            "memory_bytes": 2**33, "position": None, "reason": None, "since_ns": time.time_ns(),
        }  # fmt: skip

    def device(self, seat: int, lease: str | None) -> dict[str, Any]:
        return {
            "device": f"node-{seat // DEVICES_PER_NODE}/gpu:{seat % DEVICES_PER_NODE}", "node": f"node-{seat // DEVICES_PER_NODE}",
            "kind": "cuda", "model": model_of(seat), "vendor": "nvidia", "memory_bytes": 141 * 2**30,
            "state": "leased" if lease else "free", "cordoned": not lease and seat % 9 == 0, "cause": None, "temperature_celsius": 55,
            "free_milli": 0 if lease else 1000, "lease": lease, "leases": [lease] if lease else [],
            "residents": [f"session-{seat}"] if not lease and seat % 2 else [],
        }  # fmt: skip

    def holders(self) -> dict[int, str]:
        return {row["seat"]: name for name, row in self.leases.items()}

    def trends(self, over: Over) -> Any:
        """Days that come and go, with an hour yesterday of which nothing is known."""
        now_ns, reach = time.time_ns(), REACHES[over]
        times = range(now_ns - now_ns % reach.kept_ns - KEPT[reach.kept_ns], now_ns, reach.kept_ns)
        known = [self.trend(at) for at in times if not 9 * HOUR_NS < now_ns - at < 10 * HOUR_NS]
        return trend_rows(over, folded(known, reach.step_ns), now_ns)

    def trend(self, start_ns: int) -> Trend:
        """The same whenever it is asked for, as if it had been written down."""
        if start_ns not in self.trends_known:
            self.trends_known[start_ns] = self.made_up(start_ns)
        return self.trends_known[start_ns]

    def made_up(self, start_ns: int) -> Trend:
        devices, wave = len(self.leases), 0.5 + 0.35 * math.sin(start_ns / (24 * HOUR_NS) * 2 * math.pi) + self.chance.uniform(-0.08, 0.08)
        held, closed = int(devices * wave), devices // 60
        free = max(0, devices - held - closed - devices // 8)
        waiting = max(0, int(devices * (wave - 0.75) * 0.6))
        seen = Sample(held, devices - held - closed - free, free, closed, waiting, int(2200 * held), 1000 * held)
        return Trend(start_ns).with_sample(seen).with_all(Trend(start_ns, waits={8: held, 30 + waiting // 4: 1 + held // 10}))

    def timeline(self, devices: list[str], since_ns: int, until_ns: int) -> Any:
        """Every device is held again and again, by cells that last longer and longer."""
        held = []
        for number, device in enumerate(devices):
            at_ns, length_ns = until_ns - until_ns % HOUR_NS - 26 * HOUR_NS, int(HOUR_NS / 2 ** (number % 8))
            while at_ns < min(until_ns, time.time_ns()):
                end_ns = min(at_ns + length_ns, time.time_ns())
                held.append(Holding(device, at_ns, end_ns, f"{device}.{at_ns}", f"{device}.{at_ns}/1"))
                at_ns += int(length_ns * (1.05 + self.chance.random() / 2))
        found = [self.stretch(one) for one in stretches(held, since_ns, until_ns)]
        return Timeline(since_ns=since_ns, until_ns=until_ns, more=False, stretches=found)

    def stretch(self, one: Any) -> Any:
        seat = hash(one.last.lease) % 300
        span = {"id": "s", "kind": "cell", "label": f"work-{seat % 77}.ipynb", "cell": 3, "first_line": "model.fit(x)"}
        holder = {"lease": one.last.lease, "tenant": f"tenant-{seat % 40}", "user": f"user-{seat}", "flavor": "small.64gb", "span": span}
        kept = {name: getattr(one, name) for name in ("device", "lane", "started_ns", "ended_ns", "held_ns", "leases", "is_open")}
        return kept | {"holder": holder if one.leases == 1 else None}

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
            "jobs": list,
            "schedules": list,
            "shared-notebooks": list,
            "suggestions": list,
            "audit": lambda: {"entries": [], "next": None},
            "forecast": list,
            "opened": lambda: fleet.opened,
            "trends": lambda: fleet.trends(self.get_argument("over")),  # type: ignore[arg-type]
            "timeline": lambda: fleet.timeline(
                self.get_argument("devices").split(","), int(self.get_argument("since_ns")), int(self.get_argument("until_ns"))
            ),
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


class QuotaAnswer(RequestHandler):
    """Nobody has one."""

    async def get(self, tenant: str, user: str | None = None) -> None:
        self.finish({"tenant": tenant, "user": user})


async def serve(port: int, leases: int, turnover: float) -> None:
    fleet = Fleet(leases)
    routes = [
        (r"/services/pool/api/([\w-]+)", Answer, {"fleet": fleet}),
        (r"/services/pool/api/quotas/([^/]+)(?:/([^/]+))?", QuotaAnswer),
        (r"/services/pool/health", RequestHandler),
    ]
    server = HTTPServer(Application(routes, log_function=lambda handler: None))
    server.add_sockets(bind_sockets(port, "127.0.0.1"))
    await fleet.live(turnover)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--leases", type=int, default=1000)
    parser.add_argument("--turnover", type=float, default=40, help="leases a second that close, and as many that open")
    options = parser.parse_args()
    collect_rarely()  # as the pool does
    asyncio.run(serve(options.port, options.leases, options.turnover))


if __name__ == "__main__":
    main()
