"""The worker's side of the worker link: what the pool orders, and what it is told."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay_wire import messages
from forebay_wire.messages import DeviceModel, FromWorker, MessageError, ToWorker
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from forebay_worker.errors import LinkLost
from forebay_worker.pytorch import SeenDevice, limit_accelerator_memory

if TYPE_CHECKING:
    from forebay_worker._executor import Event, Server

LOG = logging.getLogger("forebay.worker")

CONNECT_SECONDS_MAX = 15.0
UNASSIGNED_HEARTBEAT_SECONDS = 5.0
"""Heartbeats of a worker that serves no session yet."""


@dataclass(frozen=True)
class Worker:
    """Who this worker is."""

    name: str
    device: SeenDevice
    torch: str

    def ready(self, address: str) -> messages.Ready:
        """The link's first message."""
        model = DeviceModel(kind=self.device.kind, model=self.device.model)  # type: ignore[arg-type]  # pydantic checks the kind
        return messages.Ready(worker=self.name, address=address, torch=self.torch, device=model, pid=os.getpid())


def message_of(event: Event) -> FromWorker | None:
    """What the pool is told of an event of the executor; None for what only the log is told."""
    kind, epoch, number, _ = event
    match kind:
        case "drained":
            return messages.Drained(epoch=epoch)
        case "idle":
            return messages.Idle(epoch=epoch, idle_ns=number)
        case "starved":
            return messages.Starved()
        case "parked":
            return messages.Parked(bytes=number)
        case "closed":
            return messages.Closed(epoch=epoch)
        case "client_gone":
            return messages.ClientGone()
    return None


class WorkerLink:
    """Carries orders to the executor and its events to the pool, until the session or the link ends."""

    def __init__(self, worker: Worker, executor: Server) -> None:
        self._worker = worker
        self._executor = executor
        self._heartbeat_seconds = UNASSIGNED_HEARTBEAT_SECONDS
        self._assigned = asyncio.Event()

    async def run(self, url: str, token: str) -> None:
        """Returns when the pool ends the session. Raises LinkLost when the link is lost, or the executor failed."""
        try:
            connection = await connect(
                url,
                additional_headers={"Authorization": f"token {token}"},
                open_timeout=CONNECT_SECONDS_MAX,
                max_size=messages.MESSAGE_BYTES_MAX,
                compression=None,
                proxy=None,
            )
        except (OSError, InvalidHandshake, TimeoutError) as error:
            raise LinkLost(f"the pool at {url} cannot be reached: {error}") from None
        async with connection:
            await self._converse(connection)

    async def _converse(self, connection: ClientConnection) -> None:
        tasks = [
            asyncio.create_task(self._receive(connection)),
            asyncio.create_task(self._tell_events(connection)),
            asyncio.create_task(self._heartbeat(connection)),
        ]
        try:
            await connection.send(self._worker.ready(self._executor.address).encode())
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except ConnectionClosed as closed:
            raise LinkLost(f"the pool closed the worker link: {closed}") from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive(self, connection: ClientConnection) -> None:
        async for text in connection:
            try:
                message = messages.to_worker(text)
            except MessageError as error:
                raise LinkLost(f"the pool sent what is not the worker link: {error}") from None
            if isinstance(message, messages.End):
                LOG.info("the session is over", extra={"action": "end", "worker": self._worker.name})
                return
            await self._obey(message, connection)
        raise LinkLost("the pool closed the worker link")

    async def _obey(self, message: ToWorker, connection: ClientConnection) -> None:
        executor = self._executor
        match message:
            case messages.Assign():
                if self._assigned.is_set():
                    raise LinkLost("the pool gave this worker a second session")
                limit_accelerator_memory(self._worker.device, message.memory_limit_bytes)
                executor.assign(bytes.fromhex(message.ticket), message.memory_limit_bytes, message.idle_release_seconds)
                self._heartbeat_seconds = message.heartbeat_seconds
                self._assigned.set()
                await connection.send(messages.Assigned(session=message.session).encode())
            case _ if not self._assigned.is_set():
                raise LinkLost(f"the pool sent {message.type} to a worker without a session")
            case messages.Open():
                limit_accelerator_memory(self._worker.device, message.memory_limit_bytes)
                executor.open(message.epoch, message.memory_limit_bytes)
            case messages.Close():
                executor.close(message.epoch)
            case messages.Park():
                executor.park()
            case messages.End():
                pass

    async def _tell_events(self, connection: ClientConnection) -> None:
        loop = asyncio.get_running_loop()
        rung = asyncio.Event()
        loop.add_reader(self._executor.event_descriptor, rung.set)
        try:
            while True:
                await rung.wait()
                rung.clear()
                for event in self._executor.take_events():
                    await self._tell(event, connection)
        finally:
            loop.remove_reader(self._executor.event_descriptor)

    async def _tell(self, event: Event, connection: ClientConnection) -> None:
        kind, _, _, text = event
        LOG.info(text or kind, extra={"action": kind, "worker": self._worker.name})
        if kind == "failed":
            raise LinkLost(f"the executor failed: {text}")
        message = message_of(event)
        if message is not None:
            await connection.send(message.encode())

    async def _heartbeat(self, connection: ClientConnection) -> None:
        while True:
            try:
                await asyncio.wait_for(self._assigned.wait(), self._heartbeat_seconds)
                await asyncio.sleep(self._heartbeat_seconds)
            except TimeoutError:
                pass
            epoch, memory_bytes, busy_ns, commands = self._executor.statistics()
            beat = messages.Heartbeat(epoch=epoch, memory_bytes=memory_bytes, busy_ns=busy_ns, commands=commands)
            await connection.send(beat.encode())
