"""The launcher on a Ray cluster: workers are processes of actors on the nodes, gangs are placement groups, nodes come and go.

Ray only starts and watches; commands and tensors go straight from client to worker, and no user ever reaches Ray. This module is
imported only where the setting ``launcher`` says ``ray``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from forebay_service.account import Account
from forebay_service.errors import SettingsError
from ray import cloudpickle
from ray.exceptions import ActorDiedError, ActorUnavailableError, ActorUnschedulableError, RayError
from ray.util.placement_group import PlacementGroup, get_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from forebay_pool.errors import one_line
from forebay_pool.hosts import ray_host
from forebay_pool.hosts.launcher import WorkerCommand
from forebay_pool.hosts.ray_nodes import RayNode, named_apart
from forebay_pool.model.causes import Cause
from forebay_pool.model.snapshot import WorkerSnapshot
from forebay_pool.model.types import Device

NAMESPACE = "forebay"
NODE_ID_LABEL = "ray.io/node-id"
SHARE_OF_A_CPU = 0.001
"""What an actor or a bundle asks of Ray: the pool itself decides where there is room."""
CALLS_AT_A_TIME = 4
"""Of an actor: somebody waits for the worker's end while others ask for its output."""
WATCH_SECONDS = 0.5
"""How often Ray is asked for its nodes."""
OUTPUT_SECONDS = 1.0
"""How often workers' output is fetched."""
CONNECT_SECONDS_MAX = 60.0
KNOCK_SECONDS_MAX = 10.0
TICKET_BYTES = 32
WORD_SECONDS = 5.0
"""How long a worker has to tell its client that a device of it is gone, before it is ended."""
AUTO = "auto"
"""Ray finds the cluster on this host by itself, or says that there is none."""

log = logging.getLogger(__name__)
cloudpickle.register_pickle_by_value(ray_host)  # type: ignore[no-untyped-call] # so that nodes need no package of ours


class RayLauncher:
    """Workers on the nodes of a Ray cluster that is there already.

    ``on_exit(worker, cause)`` follows every start once; ``on_nodes(nodes)`` is told the nodes that live whenever they changed. Workers run
    under ``account``, which Ray must be able to give them on each node, or else under Ray's own.
    """

    def __init__(
        self,
        address: str,
        command: WorkerCommand,
        inherit: tuple[str, ...],
        on_start: Callable[[str, tuple[str, ...], str, int, int], None],
        on_exit: Callable[[str, str], None],
        on_nodes: Callable[[Sequence[RayNode]], None],
        account: Account | None = None,
    ) -> None:
        self._address = address
        self._command = command
        self._account = account
        self._inherit = inherit
        self._on_start = on_start
        self._on_exit = on_exit
        self._on_nodes = on_nodes
        self._nodes: dict[str, RayNode] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._actors: dict[str, Any] = {}
        self._killed: set[str] = set()
        self._watcher: asyncio.Task[None] | None = None
        self._left = False
        """Whether the workers are another pool's now."""

    async def open(self) -> None:
        """Joins the cluster and learns its nodes. Raises SettingsError where there is none."""
        try:
            await self._knock()
            await asyncio.wait_for(asyncio.to_thread(self._connect), CONNECT_SECONDS_MAX)
        except (RayError, OSError, RuntimeError, ValueError) as error:
            why = one_line(error) or f"nothing within {CONNECT_SECONDS_MAX:g} s"
            raise SettingsError(f"no Ray cluster answers at {self._address!r} ({why}): start one, or set ray_address") from None
        await self._look()
        self._watcher = asyncio.create_task(self._watch_nodes(), name="Ray's nodes")

    async def _knock(self) -> None:
        """Raises OSError where nobody listens: Ray itself would try again for minutes, and keep the process from ending meanwhile."""
        if self._address != AUTO:
            host, _, port = self._address.rpartition(":")
            _, writer = await asyncio.wait_for(asyncio.open_connection(host.strip("[]"), int(port)), KNOCK_SECONDS_MAX)
            writer.close()

    def _connect(self) -> None:
        ray.init(address=self._address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)

    @property
    def workers(self) -> int:
        """Workers that were started and not seen to end."""
        return len(self._tasks)

    # The nodes

    async def _watch_nodes(self) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                await self._look()
            except RayError as error:
                log.warning("Ray does not tell its nodes: %s", one_line(error), extra={"action": "nodes_unknown"})

    async def _look(self) -> None:
        rows, reclaims = await asyncio.to_thread(_nodes)
        living = [RayNode.of(row, reclaims) for row in rows if row["Alive"]]
        nodes = {node.id: node for node in named_apart(living, self._nodes)}
        if nodes != self._nodes:
            self._nodes = nodes
            self._on_nodes(list(nodes.values()))

    def _node(self, name: str) -> RayNode:
        """Raises LookupError."""
        found = next((node for node in self._nodes.values() if node.name == name), None)
        if found is None:
            raise LookupError(Cause("node_gone", node=name))
        return found

    # Workers

    def start(self, worker: str, devices: tuple[Device, ...], token: str, programs: bool) -> None:
        life = self._run(worker, devices, token, programs)
        self._tasks[worker] = asyncio.create_task(self._watch(worker, life), name=f"worker {worker}")

    def adopt(self, worker: WorkerSnapshot) -> None:
        self._tasks[worker.id] = asyncio.create_task(self._watch(worker.id, self._follow(worker)), name=f"worker {worker.id}")

    def kill(self, worker: str) -> None:
        self._killed.add(worker)
        actor = self._actors.get(worker)
        if actor is not None:
            ray.kill(actor, no_restart=True)

    def remove(self, node: str, folders: Sequence[str]) -> None:
        found = next((one for one in self._nodes.values() if one.name == node), None)
        if found is not None:
            task: Any = ray.remote(ray_host.remove)
            task.options(num_cpus=SHARE_OF_A_CPU, num_gpus=0, max_retries=0, label_selector=on_node(found)).remote(list(folders))

    def leave(self) -> None:
        self._left = True
        for task in (*self._tasks.values(), *([self._watcher] if self._watcher is not None else [])):
            task.cancel()
        ray.shutdown()

    async def close(self) -> None:
        for worker in list(self._tasks):
            self.kill(worker)
        await asyncio.gather(*self._tasks.values())
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        await asyncio.to_thread(ray.shutdown)

    async def _watch(self, worker: str, life: Coroutine[Any, Any, str]) -> None:
        try:
            cause = await life
        except LookupError as error:
            (cause,) = error.args
        except RayError as error:
            cause = Cause("ray_failed", problem=type(error).__name__)
            log.warning("worker %s: %s", worker, one_line(error), extra={"action": "ray_failed", "worker": worker})
        finally:
            self._tasks.pop(worker, None)
            self._actors.pop(worker, None)
            self._killed.discard(worker)
        self._on_exit(worker, cause)

    async def _run(self, worker: str, devices: tuple[Device, ...], token: str, programs: bool) -> str:
        nodes = [self._node(device.node) for device in devices]
        group = _gang(worker, nodes, self._lifetime) if len(nodes) > 1 else None
        others: list[Other] = []
        try:
            if group is not None:
                await _done(group.ready())
            apart = [index for index, node in enumerate(nodes) if node is not nodes[0]]
            others = [Other(self._actor(other_name(worker, index), nodes[index], group, index), devices[index].id) for index in apart]
            addresses = [await self._begin_other(other, devices[index], nodes[index]) for other, index in zip(others, apart, strict=True)]
            actor = self._actor(worker, nodes[0], group)
            begins = self._begin(worker, actor, nodes[0], devices, token, addresses, programs)
            return await self._end_of(worker, actor, nodes[0], others, begins)
        finally:
            self._end_others(others)
            self._dissolve(group)

    def _end_others(self, others: Sequence[Other]) -> None:
        for other in others:
            if not self._left:
                ray.kill(other.actor, no_restart=True)

    async def _begin_other(self, other: Other, device: Device, node: RayNode) -> tuple[str, str]:
        """Starts the process of a device on another node; where it listens, and its ticket. Raises LookupError where it ends instead."""
        ticket = secrets.token_hex(TICKET_BYTES)
        argv = self._under_account(self._command.of_another(device, node.address))
        await _done(other.actor.start.remote(argv, self._inherit, {"FOREBAY_WORKER_TICKET": ticket, **self._command.variables()}))
        address = await _done(other.actor.address.remote())
        if address is None:
            raise LookupError(Cause("part_ended_as", _said(await _done(other.actor.wait.remote())), device=other.device))
        return address, ticket

    def _under_account(self, argv: list[str]) -> list[str]:
        return argv if self._account is None else self._account.command(argv, python=argv[0])

    def _dissolve(self, group: PlacementGroup | None) -> None:
        if group is not None and not self._left:
            remove_placement_group(group)

    @property
    def _lifetime(self) -> str | None:
        """Of actors and groups: they outlive a pool that another one may take over from."""
        return "detached" if self._command.resume_seconds else None

    def _actor(self, name: str, node: RayNode, group: PlacementGroup | None, bundle: int = 0) -> Any:
        where: dict[str, Any] = {"label_selector": on_node(node)}
        if group is not None:
            where = {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)}
        own = {"num_cpus": SHARE_OF_A_CPU, "num_gpus": 0, "max_restarts": 0, "max_concurrency": CALLS_AT_A_TIME}
        host: Any = ray.remote(ray_host.Host)
        actor: Any = host.options(name=name, lifetime=self._lifetime, **own, **where).remote()
        return actor

    async def _begin(
        self,
        worker: str,
        actor: Any,
        node: RayNode,
        devices: tuple[Device, ...],
        token: str,
        others: Sequence[tuple[str, str]],
        programs: bool,
    ) -> None:
        argv = self._command.of(worker, [device for device in devices if device.node == devices[0].node], node.address)
        argv = self._under_account([*argv, *(option for address, _ in others for option in ("--other", address))])
        tickets = ",".join(ticket for _, ticket in others)
        environ = {"FOREBAY_WORKER_TOKEN": token, "FOREBAY_OTHER_TICKETS": tickets, **self._command.variables(programs)}
        pid = await _done(actor.start.remote(argv, self._inherit, environ))
        if pid is not None:
            self._on_start(worker, tuple(device.id for device in devices), token, pid, 0)

    async def _follow(self, worker: WorkerSnapshot) -> str:
        """Waits for the end of a worker that another pool started."""
        try:
            actor: Any = ray.get_actor(worker.id, namespace=NAMESPACE)
        except ValueError:
            return Cause("ended_unwatched")
        group = get_placement_group(worker.id) if len(worker.devices) > 1 else None
        others = _others_of(worker)
        try:
            return await self._end_of(worker.id, actor, self._node(worker.devices[0].partition("/")[0]), others, asyncio.sleep(0))
        finally:
            self._end_others(others)
            self._dissolve(group)

    async def _end_of(
        self, worker: str, actor: Any, node: RayNode, others: Sequence[Other], beginning: Coroutine[Any, Any, None]
    ) -> str:
        """Begins, and returns once the actor's worker has ended."""
        self._actors[worker] = actor
        if worker in self._killed:
            self.kill(worker)
        output = asyncio.create_task(self._log_output(worker, actor))
        try:
            await beginning
            cause = await _first_end(actor, others)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._log_lines(worker, actor), OUTPUT_SECONDS)  # the last ones say why
            return cause
        except (ActorDiedError, ActorUnschedulableError):
            return Cause("killed_by_pool") if worker in self._killed else Cause("actor_died", node=node.name)
        except ActorUnavailableError:
            await self._end_surely(worker, actor, node)
            return Cause("node_unreachable", node=node.name)
        finally:
            output.cancel()
            if not self._left:
                ray.kill(actor, no_restart=True)

    async def _end_surely(self, worker: str, actor: Any, node: RayNode) -> None:
        """Waits until an actor that did not answer is known to be dead: its worker dies with it."""
        while node.id in self._nodes:
            try:
                ray.kill(actor, no_restart=True)
                await _done(actor.output.remote())
            except ActorDiedError:
                return
            except RayError:
                log.info("worker %s: its actor does not answer", worker, extra={"action": "actor_silent", "worker": worker})
            await asyncio.sleep(WATCH_SECONDS)

    async def _log_output(self, worker: str, actor: Any) -> None:
        while True:
            await asyncio.sleep(OUTPUT_SECONDS)
            if self._left:  # a call would connect this process to the cluster again
                return
            await self._log_lines(worker, actor)

    async def _log_lines(self, worker: str, actor: Any) -> None:
        """What the worker wrote since the last call, as far as its actor still tells it."""
        with contextlib.suppress(RayError):
            for line in await _done(actor.output.remote()):
                log.info("%s: %s", worker, line, extra={"action": "worker_output", "worker": worker})


def _nodes() -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Ray's rows of nodes, and the deadlines of those that are to go."""
    return ray.nodes(), ray._private.state.state.get_draining_nodes()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Other:
    """The process of a device that is on another node than its worker's first one."""

    actor: Any
    device: str
    """Its id."""


def other_name(worker: str, index: int) -> str:
    """Of the actor that runs the process of the worker's device of that number."""
    return f"{worker}.{index}"


def _others_of(worker: WorkerSnapshot) -> list[Other]:
    found = []
    for index, device in enumerate(worker.devices):
        with contextlib.suppress(ValueError):  # it is on the first one's node
            found.append(Other(ray.get_actor(other_name(worker.id, index), namespace=NAMESPACE), device))
    return found


def _said(end: ray_host.End | str) -> str:
    """How a process ended, as its actor says; one that a pool of an older release started says it in English."""
    return end if isinstance(end, str) else Cause(end[0], **end[1])


async def _first_end(actor: Any, others: Sequence[Other]) -> str:
    """How the worker's process ended, or the first of those of its other devices, of which it is told a little later."""
    main = asyncio.ensure_future(_done(actor.wait.remote()))
    ends = {asyncio.ensure_future(_done(other.actor.wait.remote())): other for other in others}
    try:
        done, _ = await asyncio.wait([main, *ends], return_when=asyncio.FIRST_COMPLETED)
        if main in done:
            return _said(main.result())
        await asyncio.wait([main], timeout=WORD_SECONDS)
        return Cause("part_ended", device=ends[done.pop()].device)
    finally:
        for one in (main, *ends):
            one.cancel()
        await asyncio.gather(main, *ends, return_exceptions=True)


def _gang(worker: str, nodes: Sequence[RayNode], lifetime: str | None) -> PlacementGroup:
    """One bundle a device on its node: all are there, or the gang is not."""
    bundles = [{"CPU": SHARE_OF_A_CPU} for _ in nodes]
    group: PlacementGroup = placement_group(
        bundles, strategy="PACK", name=worker, lifetime=lifetime, bundle_label_selector=[on_node(node) for node in nodes]
    )
    return group


def on_node(node: RayNode) -> dict[str, str]:
    """Ray's label selector for that node alone."""
    return {NODE_ID_LABEL: node.id}


async def _done(reference: Any) -> Any:
    """The value of Ray's reference, awaited on this loop."""
    return await asyncio.wrap_future(reference.future())
