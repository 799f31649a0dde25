"""The running pool: store, state machine, links, launcher and loops, put together and taken apart in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import astuple
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from forebay_service.account import Account
from forebay_service.errors import SettingsError
from forebay_service.handler import BODY_BYTES_CUT
from forebay_service.identity import Authenticator
from forebay_service.peers.front import FrontServer
from forebay_service.peers.tls import seconds_left
from forebay_service.people.memberships import HubPeople
from forebay_service.process import listen
from forebay_service.routes import rules
from forebay_wire.messages import MESSAGE_BYTES_MAX
from sqlalchemy.exc import SQLAlchemyError
from tornado.web import Application

from forebay_pool.billing.client import BillingClient
from forebay_pool.billing.heartbeats import Heartbeats
from forebay_pool.billing.job_notices import JobNotices
from forebay_pool.billing.outbox import Outbox
from forebay_pool.errors import BillingUnavailable, StoreUnavailable
from forebay_pool.hosts.image_folders import ImageFolders, is_own
from forebay_pool.hosts.launcher import Launcher, LocalLauncher, WorkerCommand
from forebay_pool.hosts.library_folders import LibraryFolders, keyed
from forebay_pool.hosts.probes import Probe, probes_of
from forebay_pool.hosts.ray_nodes import RayNode, devices_of
from forebay_pool.http import handler as handler_http
from forebay_pool.http.routes import ROUTES
from forebay_pool.jobs.activity import Activity, in_use
from forebay_pool.jobs.dispatcher import Dispatcher
from forebay_pool.jobs.file_transfers import transfers_of
from forebay_pool.jobs.hub import HubServers
from forebay_pool.jobs.leavers import Leavers
from forebay_pool.machine.state_machine import StateMachine
from forebay_pool.model.causes import Cause
from forebay_pool.model.events import PricesSet, QuotaSet, Restored
from forebay_pool.model.node_events import DeviceSet, NodeDrain, NodeJoined, NodeLost
from forebay_pool.model.policies import ImagePolicy, ModelPolicy, Policy
from forebay_pool.model.snapshot import Snapshot
from forebay_pool.model.types import Device, Flavor
from forebay_pool.placement.room import is_empty
from forebay_pool.settings import Settings
from forebay_pool.shell import Shell
from forebay_pool.store.database import OutboxCount, Store
from forebay_pool.store.flavors import seeds
from forebay_pool.store.jobs import JobStore
from forebay_pool.store.leadership import Leadership
from forebay_pool.store.receipts import receipt_key
from forebay_pool.store.trends import TrendStore
from forebay_pool.store.writer import Writer
from forebay_pool.views.event_stream import FLUSH_SECONDS
from forebay_pool.views.metrics import Backlog, Metrics, StateCollector, tell_certificate, tell_job_files
from forebay_pool.views.receipts import Receipts
from forebay_pool.views.trends import TrendRecorder

if TYPE_CHECKING:
    from forebay_pool.hosts.ray_autoscaler import RayAutoscaler

SOCKET_DIR_CHARACTERS_MAX = 60
"""A Unix socket's path has at most 107 characters; the rest is the worker's."""
TOKEN_CHECK_SECONDS = 30.0
"""How often the hub is asked whether the tokens of open sessions are still good."""
PROBE_SECONDS = 10.0
"""How often the drivers are asked for their devices' health."""
WRITE_SECONDS_MAX = 5.0
"""How long the end waits for the database."""
DELIVER_SECONDS_MAX = 2.0
"""How long the end waits for billing; what is left is delivered after the next start."""

log = logging.getLogger(__name__)
T = TypeVar("T")


class Service:
    """One pool. ``start`` returns once it serves; ``stop`` returns once nothing of it is left."""

    def __init__(
        self,
        settings: Settings,
        authenticator: Authenticator,
        environ: Mapping[str, str],
        extra_flavors: tuple[Flavor, ...] = (),
        leadership: Leadership | None = None,
    ) -> None:
        self.settings = settings
        self.leadership = leadership or Leadership(settings.database)
        self.authenticator = authenticator
        self.choices: dict[tuple[str, str], str] = {}
        self.stopped = asyncio.Event()
        self.broken = False
        self.deposed = False
        self.store = Store(settings.database)
        self.billing = _billing(settings)
        self.port = 0
        self.epoch = 0
        """The epoch of this pool's leadership."""
        self._environ = environ
        self._extra_flavors = extra_flavors
        self._quotas: list[QuotaSet] = []
        self._models: dict[str, ModelPolicy] = {}
        self._closures: list[tuple[str, str, str]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._socket_dir: Path | None = None
        self._nodes: dict[str, RayNode] = {}
        self._autoscaler: RayAutoscaler | None = None
        self._outbox_count: OutboxCount | None = None
        self._beats: Heartbeats | None = None

    @property
    def url(self) -> str:
        return self.settings.url_at(self.port)

    async def start(self) -> None:
        """Raises SettingsError, StoreUnavailable."""
        if self.settings.database_url is None:
            self.settings.state_dir.mkdir(parents=True, exist_ok=True)
        flavors, kept = await asyncio.to_thread(self._open_store)
        self._loop = asyncio.get_running_loop()
        self.metrics = Metrics()
        machine = StateMachine(
            () if self.settings.launcher == "ray" else self.settings.all_devices(),
            flavors,
            self.settings.limits,
            name=secrets.token_hex(4),
            unix_offset_ns=time.time_ns() - time.monotonic_ns(),
            policy=Policy(self.settings.placement_preference, self.settings.gang_spread, self._models, self.settings.images),
            groups=self.settings.node_groups,
        )
        self.writer = Writer(
            self.store,
            deliver=self.billing is not None,
            backlog_max=self.settings.unwritten_records_max,
            on_backlog=lambda accepting: self._on_loop(self.shell.store_changed, accepting),
            on_committed=lambda count: self._on_loop(self._records_written, count),
            on_failure=lambda: self._on_loop(self.metrics.store_failures.inc),
            on_deposed=lambda: self._on_loop(self._depose),
        )
        receipts = Receipts(await asyncio.to_thread(receipt_key, self.store), self.settings.source)
        self.shell = Shell(machine, self.writer, self.metrics, receipts, self._break)
        self.shell.library_folders = self._library_folders()
        self.shell.process_bounds = self.settings.process
        self.shell.image_folders, self.shell.images_fill_max = self._image_folders(flavors), self.settings.images_fill_max
        for quota in self._quotas:
            self.shell.apply(quota)
        self._collect_state(machine)
        self.dispatcher = self._make_dispatcher()
        self._trends = TrendRecorder(machine, self.metrics, TrendStore(self.store), self.writer, time.time_ns)
        self.outbox = None
        if self.billing is not None:
            told = (self.metrics.delivered, self.metrics.deliveries_failed.inc)
            self.outbox = Outbox(self.store, self.writer, self.billing, self.settings.source, *told)
        self._listen()
        self.shell.leads = lambda: self.leadership.sure
        with contextlib.ExitStack() as undo:
            undo.callback(self._server.stop)
            self.shell.launcher = await (self._on_ray() if self.settings.launcher == "ray" else self._on_this_host(kept))
            undo.pop_all()
        self._go_on(kept)
        self.leadership.hold(self.store.still_leads, lambda: self._on_loop(self._depose))
        self.writer.start()
        await self.refresh_prices()
        self._start_loops()
        log.info("pool serves %s with %d devices", self.url, len(machine.fleet.seats), extra={"action": "started", "url": self.url})

    def _make_dispatcher(self) -> Dispatcher | None:
        """Of jobs, where there is a JupyterHub that runs them as their users."""
        if self.settings.hub_api_url is None or self.settings.hub_token is None:
            return None
        limits, servers = self.settings.job_limits, HubServers(self.settings.hub_api_url, self.settings.hub_token)

        async def write(call: Callable[[], T]) -> T:
            return await asyncio.wrap_future(self.writer.call(call))

        store = JobStore(self.store, limits, tells=self.billing is not None)
        files = transfers_of(self.settings, store)
        if files is not None:
            tell_job_files(self.metrics.registry, lambda: files.bytes)
        return Dispatcher(store, servers, write, limits, time.time_ns, lambda: self.shell.attentive_seconds, files)

    def _collect_state(self, machine: StateMachine) -> None:
        """What metrics tell besides what they count."""

        def backlog() -> Backlog:
            count = self._outbox_count
            return Backlog(self.writer.backlog) if count is None else Backlog(self.writer.backlog, *astuple(count))

        collector = StateCollector(machine, self.metrics.readings, backlog, self.shell.clock_ns, time.time_ns)
        self.metrics.registry.register(collector)

    def _go_on(self, kept: Snapshot) -> None:
        """Takes over what the pool before left."""
        if self.settings.launcher == "local":
            self.shell.image_folders.remove_others({session.secret for session in kept.sessions})
        for worker in kept.workers:
            self.shell.adopt(worker)
        self.shell.apply(Restored(kept))
        for kind, name, cause in self._closures:
            self.shell.apply(NodeDrain(name, True) if kind == "node" else DeviceSet(name, True, cause))

    def _worker_command(self, socket_dir: Path | None) -> WorkerCommand:
        own = self.settings.advertise_url or self.url
        urls = [own, *(url for url in self.settings.replicas if url != own)]
        return WorkerCommand(
            self.settings.python_of,
            socket_dir,
            ",".join(url.rstrip("/").replace("http", "ws", 1) + "/api/worker" for url in urls),
            self.settings.inherited(self._environ),
            self.settings.resume_seconds and self.settings.outage_seconds,
            self.settings.worker_log_level,
            self._make_spill_dir(),
            self.settings.reconnect_seconds,
            self.settings.user_kernels,
            plaintext=self.settings.plaintext,
        )

    async def _on_this_host(self, kept: Snapshot) -> Launcher:
        self._socket_dir = self._make_socket_dir(kept)
        command = self._worker_command(self._socket_dir)
        return LocalLauncher(command, self.shell.worker_started, self.shell.worker_exited, self._worker_account)

    @property
    def _worker_account(self) -> Account | None:
        given = self.settings.worker_account
        return None if given is None else Account(given[0], given[1:])

    async def _on_ray(self) -> Launcher:
        """Raises SettingsError."""
        try:
            from forebay_pool.hosts.ray_launcher import RayLauncher  # Ray is an optional extra
        except ImportError as error:
            raise SettingsError(f"launcher is ray, but Ray is not installed ({error}): pip install 'forebay-pool[ray]'") from None
        command, inherit = self._worker_command(None), self.settings.worker_environment
        told = (self.shell.worker_started, self.shell.worker_exited, self._nodes_changed)
        launcher = RayLauncher(self.settings.ray_address, command, inherit, *told, self._worker_account)
        await launcher.open()
        if self.settings.node_groups:
            from forebay_pool.hosts.ray_autoscaler import RayAutoscaler

            self._autoscaler = autoscaler = RayAutoscaler()
            self.shell.on_scale = lambda scale: autoscaler.ask(scale, frozenset(n.id for n in self._nodes.values() if n.name in scale.over))
        return launcher

    def _make_spill_dir(self) -> Path | None:
        """Tensors of every tenant pass through it: it is nobody else's. Raises SettingsError."""
        folder = self.settings.spill_dir
        return None if folder is None else self._make_workers_folder("spill_dir", folder)

    def _library_folders(self) -> LibraryFolders | None:
        """Workers make each tenant's when they need it. Raises SettingsError."""
        folder = self.settings.libraries_dir
        if folder is None:
            return None
        if self._worker_account is None:
            return LibraryFolders(folder.absolute())
        try:
            return keyed(self._make_workers_folder("libraries_dir", folder))
        except OSError as error:
            raise SettingsError(f"libraries_dir {folder} cannot be used ({error.strerror or error})") from None

    def _image_folders(self, flavors: Mapping[str, Flavor]) -> ImageFolders:
        """Workers make each session's when they need it. Raises SettingsError."""
        for flavor in flavors.values():
            if not self.settings.keeps_images(flavor.images):
                why = "flavor %s has images = %r, and image_dirs names no folder for that: its sessions keep none"
                log.warning(why, flavor.name, flavor.images, extra={"action": "images_off"})
        made: dict[ImagePolicy, Path] = {}
        for policy, folder in self.settings.image_dirs.items():
            if is_own(folder):
                made[policy] = self._make_workers_folder("image_dirs", folder)
            else:
                why = "image_dirs %s cannot be made, or belongs to somebody else: no images are kept there"
                log.warning(why, folder, extra={"action": "images_off"})
        return ImageFolders(made, self.settings.database)

    def _make_workers_folder(self, setting: str, folder: Path) -> Path:
        """One in which workers make files and folders, and neither list nor remove those of others. Raises SettingsError."""
        account = self._worker_account
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if account is not None and self.settings.launcher == "local":
                os.chown(folder, os.getuid(), account.gid)
                folder.chmod(0o1730)
        except OSError as error:
            owner = f"uid {os.getuid()}" if account is None else f"{account.groups[0]}, the workers' group"
            why = error.strerror or error
            raise SettingsError(f"{setting} {folder} cannot be used ({why}): make it, and give it to {owner}") from None
        return folder.absolute()

    def _open_store(self) -> tuple[dict[str, Flavor], Snapshot]:
        if not self.leadership.take():
            raise StoreUnavailable("another pool leads on this database")
        self.store.migrate()
        self.epoch = self.store.lead(self.settings.own_url)
        try:
            self.store.seed_flavors(_seeds(self.settings))
            self.choices = self.store.choices()
            self._models = self.store.models()
            self._closures = self.store.closures()
            self._quotas = [QuotaSet(*quota) for quota in self.store.quotas()]
            kept = self.store.kept(self.settings.limits.fair_share_half_life_seconds)
            return self.store.flavors() | {flavor.name: flavor for flavor in self._extra_flavors}, kept
        except SQLAlchemyError as error:
            raise StoreUnavailable(f"the database cannot be read: {error}") from error

    def _nodes_changed(self, nodes: Sequence[RayNode]) -> None:
        """Tells the state machine which nodes came and which are gone; one that came back after a restart is another."""
        now = {node.id: node for node in nodes}
        for node in [node for node in self._nodes.values() if node.id not in now]:
            self.shell.apply(NodeLost(node.name, Cause("ray_dead")))
        for node in [node for node in now.values() if node.id not in self._nodes]:
            devices = devices_of(node, self.settings.devices)
            if devices:
                self.shell.apply(NodeJoined(node.name, tuple(devices)))
                self._check_release(node)
        for node in now.values():
            before = self._nodes.get(node.id)
            if node.reclaim_unix_ms is not None and (before is None or before.reclaim_unix_ms is None):
                self._reclaimed(node.name, node.reclaim_unix_ms)
        self._nodes = now

    def _check_release(self, node: RayNode) -> None:
        """What `forebay node join` has made starts workers as the pool of its own release asks; others would fail one after the other."""
        ours = version("forebay-pool")
        if self.settings.worker_account is not None and node.release != ours:
            told = {"action": "node_release", "node": node.name, "release": node.release or "unknown"}
            log.warning("node %s is of release %s, the pool of %s: nothing is lent there", node.name, told["release"], ours, extra=told)
            self.shell.apply(NodeLost(node.name, Cause("other_release", release=ours)))

    def _reclaimed(self, name: str, deadline_unix_ms: int) -> None:
        """The node's provider takes it back: sessions have half of the time to leave by themselves, and their tensors the rest."""
        node = self.shell.machine.fleet.nodes.get(name)
        if node is not None and not node.releases:
            left_seconds = max(0.0, deadline_unix_ms / 1000 - time.time())
            log.warning("node %s is taken back in %.0f s", name, left_seconds, extra={"action": "node_reclaimed", "node": name})
            self.shell.apply(NodeDrain(name, True, left_seconds / 2, reclaimed=True))

    def _context(self) -> handler_http.Context:
        return handler_http.Context(
            settings=self.settings,
            authenticator=self.authenticator,
            shell=self.shell,
            store=self.store,
            writer=self.writer,
            epoch=self.epoch,
            choices=self.choices,
            refresh_prices=self.refresh_prices,
            count_outbox=self._count_outbox,
            billing_trouble=lambda: None if self._beats is None else self._beats.trouble,
            dispatcher=self.dispatcher,
        )

    def _listen(self) -> None:
        own = {"context": self._context()}
        application = Application(
            rules(ROUTES, self.settings.prefix, own),
            default_handler_class=handler_http.NotFound,
            default_handler_args=own,
            websocket_max_message_size=4 * MESSAGE_BYTES_MAX,
            log_function=_log_request,
        )
        shown = self.settings.tls()
        tell_certificate(self.metrics.registry, lambda: seconds_left(shown))
        sockets = listen(self.settings.host, self.settings.port)
        sizes = {"max_body_size": BODY_BYTES_CUT, "max_buffer_size": 8 * MESSAGE_BYTES_MAX}
        waits = {"body_timeout": handler_http.BODY_SECONDS_MAX, "idle_connection_timeout": handler_http.IDLE_SECONDS_MAX}
        bounds = {"share": self.settings.peers_share, "connections_max": self.settings.connections_max}
        trusts = lambda token: self.shell.worker_of(token) is not None  # noqa: E731
        self._server = FrontServer(application, ssl_options=shown and shown.context, trusts=trusts, **bounds, **sizes, **waits)
        self._server.add_sockets(sockets)
        self.port = sockets[0].getsockname()[1]

    def _make_socket_dir(self, kept: Snapshot) -> Path:
        """A directory for the workers' sockets; a short one elsewhere if the state's path is too long for sockets.

        A new one is private. For workers under accounts of their own it is one that they write to, each for itself, and others pass. The
        sockets of workers that are still there stay.
        """
        wanted = (self.settings.socket_dir or self.settings.state_dir / "sockets").absolute()
        if len(str(wanted)) > SOCKET_DIR_CHARACTERS_MAX:
            mode = stat.S_IMODE(wanted.stat().st_mode) if wanted.exists() else 0o700
            wanted = Path(tempfile.mkdtemp(prefix="forebay-"))
            wanted.chmod(mode)
        wanted.mkdir(parents=True, mode=0o700, exist_ok=True)
        if self._worker_account is not None:
            try:
                os.chown(wanted, -1, self._worker_account.gid)
            except OSError as error:
                raise SettingsError(f"worker_account cannot be used ({error.strerror or error})") from None
            wanted.chmod(0o1771)
        living = {worker.id for worker in kept.workers}
        for path in wanted.iterdir():
            if path.name.partition(".")[0] not in living:
                path.unlink(missing_ok=True)
        return wanted

    def _start_loops(self) -> None:
        loops: list[Coroutine[Any, Any, None]] = [
            self.shell.tick(),
            self.shell.check_links(self.settings.session_heartbeat_seconds),
            self.shell.check_tokens(TOKEN_CHECK_SECONDS),
            self.shell.flush_board(FLUSH_SECONDS),
            self._trends.run(),
        ]
        loops += (self.shell.watch_health(probe, PROBE_SECONDS) for probe in self._probes())
        if self._autoscaler is not None:
            loops.append(self._autoscaler.run())
        if self.billing is not None:
            loops.append(self._poll_prices(self.billing))
            self._beats = self._heartbeats(self.billing)
            loops.append(self._beats.run())
        if self.outbox is not None:
            loops += (self.outbox.run(), self.outbox.retry_refused())
        if self.dispatcher is not None:
            activity = Activity(self._in_use, self.dispatcher.servers, time.time)
            loops += () if self.dispatcher.files is None else (self.dispatcher.files.run(),)
            loops += (self.dispatcher.run(), self._leavers(self.dispatcher).run(), activity.run())
            if self.billing is not None:
                loops.append(JobNotices(self.dispatcher.store, self.writer, self.billing, self.settings.source).run())
        for loop in loops:
            task = asyncio.create_task(loop)
            task.add_done_callback(self._loop_ended)
            self._tasks.append(task)

    def _leavers(self, dispatcher: Dispatcher) -> Leavers:
        people = HubPeople(self.settings.hub_api_url or "", self.settings.hub_token or "")
        return Leavers(dispatcher, people, self.settings.source)

    def _in_use(self) -> set[str]:
        """Whose notebook servers nobody should stop."""
        held_ns = round(self.settings.held_server_seconds * 10**9)
        return in_use(self.shell.machine.sessions.values(), time.monotonic_ns(), held_ns)

    def _heartbeats(self, billing: BillingClient) -> Heartbeats:
        def count(taken: bool) -> None:
            self.metrics.billing_heartbeats.labels("taken" if taken else "failed").inc()

        told = (count, self.metrics.heartbeat_leases_refused.inc)
        return Heartbeats(self.shell, billing, self.settings.source, self.settings.billing_heartbeat_seconds, *told)

    def _probes(self) -> Sequence[Probe]:
        if self.settings.launcher == "ray":
            from forebay_pool.hosts.ray_probes import RayProbe  # Ray is an optional extra

            return [RayProbe(self._watched)]
        here = [seat.device for seat in self.shell.machine.fleet.seats.values() if seat.device.node == self.settings.node]
        return probes_of(here, self._environ)

    def _watched(self) -> list[tuple[RayNode, list[Device]]]:
        """Nodes whose devices' health is asked for."""
        return [(node, devices_of(node, self.settings.devices)) for node in self._nodes.values() if self._stays(node)]

    def _stays(self, node: RayNode) -> bool:
        """Whether it may have an actor of ours: one that is to end has to be idle."""
        known = self.shell.machine.fleet.nodes.get(node.name)
        return known is None or not (known.releases and is_empty(known))

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.critical("a loop of the pool failed", exc_info=task.exception(), extra={"action": "loop_failed"})
            self._break()

    def _depose(self) -> None:
        """Another pool leads: this one says no more to anybody."""
        self.deposed = True
        self.stopped.set()

    def _break(self) -> None:
        self.broken = True
        self.stopped.set()

    async def stop(self) -> None:
        """Ends sessions and workers, writes what is metered, and stops listening."""
        self._server.stop()
        await self.shell.shut_down()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.outbox is not None:
            await self._deliver_rest(self.outbox)
        await self._close()
        if self._socket_dir is not None:
            shutil.rmtree(self._socket_dir, ignore_errors=True)
        log.info("pool stopped", extra={"action": "stopped"})

    async def leave(self) -> None:
        """Stops without ending anything: sessions, workers and leases go on, for whoever leads next."""
        self._server.stop()
        self.shell.leave()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._close()
        log.info("pool left its sessions to the next one", extra={"action": "left"})

    async def _close(self) -> None:
        self._trends.close()
        if self.dispatcher is not None and self.dispatcher.files is not None:
            self.dispatcher.files.close()
        await asyncio.to_thread(self.writer.close, WRITE_SECONDS_MAX)
        await asyncio.to_thread(self.leadership.release)
        self.store.close()
        await self._server.close_all_connections()

    async def _deliver_rest(self, outbox: Outbox) -> None:
        deadline = time.monotonic() + DELIVER_SECONDS_MAX
        while self.writer.backlog and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        try:
            await asyncio.wait_for(outbox.deliver(), DELIVER_SECONDS_MAX)
        except TimeoutError:
            log.warning("billing is slow: the rest is delivered after the next start", extra={"action": "delivery_failed"})

    # What the handlers ask for

    async def _count_outbox(self) -> None:
        """What the outbox holds, for the metrics, which do without where the database does not say."""
        try:
            self._outbox_count = await asyncio.to_thread(self.store.count_undelivered)
        except SQLAlchemyError as error:
            self._outbox_count = None
            log.warning("the outbox cannot be counted: %s", error, extra={"action": "store_failed"})

    async def refresh_prices(self) -> None:
        """Asks billing for prices; where it does not answer, those known stay."""
        if self.billing is None:
            return
        try:
            self.shell.prices_changed(PricesSet(await self.billing.tariff()))
        except BillingUnavailable as error:
            log.warning("%s", error, extra={"action": "prices_unknown"})

    async def _poll_prices(self, billing: BillingClient) -> None:
        """Also of all versions there are, for receipts."""
        while True:
            try:
                self.shell.receipts.learn(await billing.price_versions())
            except BillingUnavailable as error:
                log.warning("%s", error, extra={"action": "prices_unknown"})
            await asyncio.sleep(self.settings.price_poll_seconds)
            await self.refresh_prices()

    # From the writer's thread

    def _on_loop(self, call: Callable[..., object], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *arguments)

    def _records_written(self, count: int) -> None:
        self.metrics.records_written.inc(count)
        if self.outbox is not None:
            self.outbox.wake()


def _billing(settings: Settings) -> BillingClient | None:
    if settings.billing_url is None:
        return None
    if settings.hub_token is None:
        raise SettingsError("billing_url is set, but hub_token is not: the pool needs a token to speak to billing")
    return BillingClient(settings.billing_url, settings.hub_token)


def _log_request(handler: Any) -> None:
    fields = {"action": "http", "status": handler.get_status()}
    seconds = handler.request.request_time()
    log.debug("%d %s %s %.1f ms", handler.get_status(), handler.request.method, handler.request.path, 1000 * seconds, extra=fields)


def _seeds(settings: Settings) -> list[Flavor]:
    """Raises SettingsError."""
    found = seeds(settings.flavors_file)
    homeless = next((flavor for flavor in found if not settings.keeps_images(flavor.images)), None)
    if homeless is not None:
        raise SettingsError(f"flavor {homeless.name} has images = {homeless.images!r}, and image_dirs names no folder for that")
    return found
