"""The world around the state machine: carries events in and instructions out, and tells its watchers both."""

from __future__ import annotations

from typing import Any, Protocol

from forebay_pool.machine.state_machine import StateMachine
from forebay_pool.model.events import Event, Tick, WorkerAway, WorkerGone, WorkerSaid
from forebay_pool.model.instructions import Instruction, Kill, Launch, TellClient, TellWorker
from forebay_pool.model.types import Device

from simulation.agenda import SECOND_NS, Agenda
from simulation.clients import Client
from simulation.links import Delay, Link
from simulation.workers import Ask, Timings, Worker

UNIX_OFFSET_NS = 1_700_000_000 * SECOND_NS


class Watcher(Protocol):
    """Sees every event with what came of it, after it was handled."""

    def saw(self, now_ns: int, event: Event, instructions: list[Instruction]) -> None: ...


class World:
    """Everything outside of ``machine``. Subclasses make links and workers worse."""

    def __init__(self, machine: StateMachine, agenda: Agenda, timings: Timings, delay: Delay, tick_ns: int) -> None:
        self.machine = machine
        self.agenda = agenda
        self.timings = timings
        self.delay = delay
        self.tick_ns = tick_ns
        self.unix_offset_ns = UNIX_OFFSET_NS
        self.workers: dict[str, Worker] = {}
        self.clients: dict[str, Client] = {}
        self.watchers: list[Watcher] = []
        self._orders: dict[str, Link] = {}
        self._answers: dict[str, Link] = {}

    # The state machine

    def apply(self, event: Event) -> None:
        """The event happens now."""
        now_ns = self.agenda.now_ns
        instructions = self.machine.handle(event, now_ns)
        for watcher in self.watchers:
            watcher.saw(now_ns, event, instructions)
        for instruction in instructions:
            kind = type(instruction)
            if kind is TellClient:
                self._tell_client(instruction)
            elif kind is TellWorker:
                self._tell_worker(instruction)
            elif kind is Launch:
                self.launch(instruction.worker, instruction.devices)
            elif kind is Kill:
                self.kill(instruction.worker)

    def tick(self) -> None:
        """Lets the machine notice time, now and from now on."""
        self.apply(Tick(self.unix_offset_ns))
        self.agenda.after(self.tick_ns, self.tick)

    def _tell_client(self, instruction: TellClient) -> None:
        link = self._answers.get(instruction.session)
        if link is not None:
            link.send(instruction.message)

    def _tell_worker(self, instruction: TellWorker) -> None:
        link = self._orders.get(instruction.worker)
        if link is not None:
            link.send(instruction.message)

    # Links

    def link(self, deliver: Any) -> Link:
        return Link(self.agenda, self.delay, deliver)

    def link_to_pool(self, client: str) -> Link:
        """A client's session link; the way back is made with it."""
        self._answers[client] = self.link(lambda message: self._client_hears(client, message))
        return self.link(self.apply)

    def _client_hears(self, name: str, message: Any) -> None:
        client = self.clients.get(name)
        if client is not None:
            client.hear(message)

    def link_to_worker(self, worker: Worker) -> Link:
        """A client's command stream. ``None`` in it is its end."""
        return self.link(lambda command: worker.lose_client() if command is None else worker.stream(command))

    def link_of_worker(self, name: str) -> Link:
        """What the worker says goes this way."""
        return self.link(lambda message: self.apply(WorkerSaid(name, message)))

    def add(self, client: Client) -> None:
        self.clients[client.name] = client
        client.join()

    def forget(self, client: Client) -> None:
        """Its process is gone: nobody hears what it is told."""
        self.clients.pop(client.name, None)
        self._answers.pop(client.name, None)

    # Processes

    def launch(self, name: str, devices: tuple[Device, ...]) -> None:
        worker = Worker(self, name, devices, self.link_of_worker(name))
        self.workers[name] = worker
        self._orders[name] = self.link(worker.hear)
        worker.start()

    def kill(self, name: str) -> None:
        worker = self.workers.get(name)
        if worker is not None:
            self.exits(worker, "killed")

    def exits(self, worker: Worker, cause: str) -> None:
        """The worker's process ends; the pool hears so once its link has ended."""
        if worker.alive:
            worker.die()
            worker.to_pool.after_all(self.timings.exit_ns, lambda: self._gone(worker.name, cause))

    def _gone(self, name: str, cause: str) -> None:
        self.apply(WorkerAway(name))
        self._bury(name)
        self.apply(WorkerGone(name, cause))

    def _bury(self, name: str) -> None:
        del self.workers[name], self._orders[name]

    # What workers do, for those who measure

    def tensor_bytes(self, limit_bytes: int) -> int:
        """What a session's tensors take on the device, of what they may at first."""
        return limit_bytes

    def work_begins(self, worker: Worker) -> None: ...

    def work_ends(self, worker: Worker) -> None: ...

    def parks(self, worker: Worker) -> None: ...

    def restores(self, worker: Worker, taken_ns: int) -> None: ...

    def answer(self, worker: Worker, ask: Ask) -> None:
        """The worker's answer to a question travels to the client."""
        self.agenda.after(self.delay(), ask.answer)
