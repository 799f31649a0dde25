"""A worker that computes nothing: a real process that speaks the worker link, driven over its socket.

Started as the pool starts workers. Its "command stream" is lines of text: ``mark`` (the span ended), ``idle NS``, ``starved``,
``memory BYTES``, ``gone``, ``die``, ``crash``, ``mute`` (no more heartbeats), ``garble``, ``shout BYTES``, ``say JSON``.
Each is done once a lease is open, or at once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

from forebay_wire import messages as wire
from websockets.asyncio.client import ClientConnection, connect

AT_ONCE = ("starved", "gone", "die", "crash", "mute", "garble", "shout", "memory", "say")


class FakeWorker:
    """One worker: the link's state, and the commands that wait for a lease."""

    def __init__(self, link: ClientConnection, options: argparse.Namespace) -> None:
        self.link = link
        self.options = options
        self.epoch: int | None = None
        self.memory_bytes = 0
        self.muted = False
        self.waiting: list[list[str]] = []

    async def say(self, message: wire.Message) -> None:
        await self.link.send(message.encode())

    async def run(self) -> None:
        address = Path(self.options.socket_dir) / f"{self.options.worker}.sock"
        server = await asyncio.start_unix_server(self.serve, path=address)
        kind = self.options.device.split(":")[0]
        model = wire.DeviceModel(kind=kind, model="null" if kind == "null" else f"{kind}-dev")
        told = os.environ.get("FAKE_ADDRESS", f"unix:{address}"), os.environ.get("FAKE_CERTIFICATE")
        ready = wire.Ready(
            worker=self.options.worker, address=told[0], certificate=told[1], torch="none", device=model, pid=os.getpid()
        )
        await self.say(ready)
        beats = asyncio.create_task(self.beat(0.2))
        try:
            async for text in self.link:
                message = wire.to_worker(text)
                if isinstance(message, wire.End):
                    break
                await self.obey(message)
        finally:
            beats.cancel()
            server.close()
            address.unlink(missing_ok=True)

    async def obey(self, message: wire.ToWorker) -> None:
        match message:
            case wire.Assign():
                if "slow-assign" in os.environ.get("TZ", ""):
                    await asyncio.sleep(0.3)
                if message.libraries is not None and Path(message.libraries).parent.is_dir():
                    Path(message.libraries, message.session).mkdir(parents=True)
                door, certificate = os.environ.get("FAKE_DOOR"), os.environ.get("FAKE_DOOR_CERTIFICATE")
                await self.say(wire.Assigned(session=message.session, door=door, certificate=certificate))
            case wire.Open():
                self.epoch = message.epoch
                waiting, self.waiting = self.waiting, []
                for words in waiting:
                    await self.do(words)
            case wire.Close():
                self.epoch = None
                await self.say(wire.Closed(epoch=message.epoch))
            case wire.Park():
                parked, self.memory_bytes = self.memory_bytes, 0
                await self.say(wire.Parked(bytes=parked))
            case wire.Restore():
                await self.say(wire.Restored())

    async def beat(self, period_seconds: float) -> None:
        while not self.muted:
            await self.say(wire.Heartbeat(epoch=self.epoch, memory_bytes=self.memory_bytes, busy_ns=0, commands=0))
            await asyncio.sleep(period_seconds)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            words = line.decode().split(maxsplit=1)
            if self.epoch is None and words[0] not in AT_ONCE:
                self.waiting.append(words)
            else:
                await self.do(words)
        writer.close()

    async def do(self, words: list[str]) -> None:
        epoch = self.epoch or 0
        match words[0]:
            case "mark":
                self.epoch = None
                await self.say(wire.Drained(epoch=epoch))
            case "idle":
                self.epoch = None
                await self.say(wire.Idle(epoch=epoch, idle_ns=int(words[1])))
            case "starved":
                await self.say(wire.Starved())
            case "memory":
                self.memory_bytes = int(words[1])
                await self.say(wire.Heartbeat(epoch=self.epoch, memory_bytes=self.memory_bytes, busy_ns=0, commands=0))
            case "gone":
                await self.say(wire.ClientGone())
            case "mute":
                self.muted = True
            case "garble":
                await self.link.send("{")
            case "shout":
                await self.link.send("x" * int(words[1]))
            case "say":
                await self.link.send(words[1])
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "crash":
                os.abort()


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", dest="module")
    for name in ("--pool", "--worker", "--device", "--socket-dir", "--log-level", "--resume-seconds"):
        parser.add_argument(name, required=True)
    parser.add_argument("--kernels", action="store_true")
    options = parser.parse_args()
    headers = {"Authorization": "token " + os.environ["FOREBAY_WORKER_TOKEN"]}
    print(f"fake worker on {options.device}", file=sys.stderr, flush=True)
    async with connect(options.pool, additional_headers=headers, compression=None, proxy=None) as link:
        await FakeWorker(link, options).run()


if __name__ == "__main__":
    asyncio.run(main())
